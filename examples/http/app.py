"""A small web application behind the limiter. Usage: app.py [URL of the Redis server] [port]

Try it with: curl -i http://127.0.0.1:8000/
With uvicorn: uvicorn app:asgi
"""

import sys
from wsgiref.simple_server import make_server

import redis
import redis.asyncio

from ratelimit import Policy, RateLimitASGI, RateLimitWSGI

URL = "redis://127.0.0.1:6379"
TIMEOUTS = {"socket_connect_timeout": 0.5, "socket_timeout": 0.5}
POLICY = Policy("default", max_burst=9, count=60, period=60)  # 10 at once, then one a second


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


async def hello_async(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello\n"})


asgi = RateLimitASGI(hello_async, redis.asyncio.Redis.from_url(URL, **TIMEOUTS), POLICY, fail_open=True)


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else URL
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
    wsgi = RateLimitWSGI(hello, redis.Redis.from_url(url, **TIMEOUTS), POLICY, fail_open=True)
    with make_server("127.0.0.1", port, wsgi) as server:
        server.serve_forever()
