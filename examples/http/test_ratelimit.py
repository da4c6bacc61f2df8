"""Tests of the middleware with real servers (wsgiref, uvicorn) and real requests. REDIS_URL is the Redis server,
REDIS_URL_DOWN a server that does not reply."""

import asyncio
import json
import os
import re
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
import uuid
from wsgiref.simple_server import WSGIRequestHandler, make_server

import redis
import redis.asyncio
import uvicorn

from app import TIMEOUTS, hello, hello_async
from ratelimit import Policy, RateLimitASGI, RateLimitWSGI

URL = os.environ["REDIS_URL"]
URL_DOWN = os.environ["REDIS_URL_DOWN"]
NEVER_SENT = {"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_):
        pass


class WSGIServer:
    def __init__(self, url: str, policy: Policy, fail_open: bool):
        app = RateLimitWSGI(
            hello, redis.Redis.from_url(url, **TIMEOUTS), policy, fail_open, lambda environ: environ["HTTP_X_USER"]
        )
        self.server = make_server("127.0.0.1", 0, app, handler_class=QuietHandler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class ASGIServer:
    def __init__(self, url: str, policy: Policy, fail_open: bool):
        self.client = redis.asyncio.Redis.from_url(url, **TIMEOUTS)
        app = RateLimitASGI(
            hello_async, self.client, policy, fail_open, lambda scope: dict(scope["headers"])[b"x-user"].decode()
        )
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()
        deadline = time.monotonic() + 30
        while not self.server.started:
            assert self.thread.is_alive() and time.monotonic() < deadline, "uvicorn did not start"
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    async def run(self):
        await self.server.serve()
        await self.client.aclose()

    def stop(self):
        self.server.should_exit = True
        self.thread.join()


class Suite:
    """For both kinds of server."""

    start: type

    def serve(self, policy=None, url=URL, fail_open=False):
        self.policy = policy or Policy("default", max_burst=2, count=30, period=60)  # 3 at once, one every 2 seconds
        server = self.start(url, self.policy, fail_open)
        self.addCleanup(server.stop)
        self.url = f"http://127.0.0.1:{server.port}/"
        self.user = uuid.uuid4().hex

    def get(self, user=None):
        request = urllib.request.Request(self.url, headers={"X-User": user or self.user})
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return response.status, response.headers, response.read()

    def burst(self, calls):
        """The answers to calls made within a second of each other: a machine that stands still shows other numbers."""
        for _ in range(5):
            self.user = uuid.uuid4().hex
            start = time.monotonic()
            answers = [self.get() for _ in range(calls)]
            if time.monotonic() - start < 1:
                return answers
        self.fail("this machine is too busy for this test")

    def test_the_fields_tell_what_is_left(self):
        self.serve()
        answers = self.burst(3)
        for (status, headers, body), remaining, reset in zip(answers, (2, 1, 0), (2, 4, 6), strict=True):
            self.assertEqual((status, body), (200, b"hello\n"))
            self.assertEqual(headers["RateLimit-Policy"], '"default";q=3;w=6')
            self.assertRegex(headers["RateLimit"], rf'^"default";r={remaining};t=[12]$')
            self.assertEqual(headers["X-RateLimit-Limit"], "3")
            self.assertEqual(headers["X-RateLimit-Remaining"], str(remaining))
            self.assertEqual(headers["X-RateLimit-Reset"], str(reset))
            self.assertNotIn("Retry-After", headers)
            self.assertEqual(headers["Content-Type"], "text/plain")

    def test_a_refusal_tells_how_long_to_wait_and_that_is_true(self):
        self.serve()
        status, headers, body = self.burst(4)[-1]
        self.assertEqual(status, 429)
        self.assertEqual(headers["Retry-After"], "2")
        self.assertEqual(headers["RateLimit"], '"default";r=0;t=2')
        self.assertEqual(headers["X-RateLimit-Remaining"], "0")
        self.assertEqual(headers["Content-Type"], "application/problem+json")
        self.assertEqual(json.loads(body)["violated-policies"], ["default"])
        time.sleep(int(headers["Retry-After"]))
        self.assertEqual(self.get()[0], 200)

    def test_t_is_the_time_of_the_next_unit(self):
        """Two units, one every 100 seconds: after one is taken the next comes in 100 seconds, after both as well."""
        self.serve(Policy("slow", max_burst=1, count=3, period=300))
        for (_, headers, _), remaining in zip(self.burst(2), (1, 0), strict=True):
            self.assertEqual(headers["RateLimit-Policy"], '"slow";q=2;w=200')
            self.assertEqual(headers["RateLimit"], f'"slow";r={remaining};t=100')

    def test_rounding_never_tells_less_than_it_takes(self):
        """Three every 10 seconds: 3333.3 ms are four seconds."""
        self.serve(Policy("thirds", max_burst=0, count=3, period=10))
        (_, admitted, _), (status, refused, _) = self.burst(2)
        self.assertEqual(admitted["RateLimit"], '"thirds";r=0;t=4')
        self.assertEqual(admitted["RateLimit-Policy"], '"thirds";q=1;w=4')
        self.assertEqual(status, 429)
        wait, reset = int(refused["Retry-After"]), int(re.search(r"t=(\d+)", refused["RateLimit"])[1])
        self.assertIn(wait, (3, 4))
        self.assertGreaterEqual(wait, reset)

    def test_each_client_has_a_limit_of_its_own(self):
        self.serve(Policy("own", max_burst=0, count=1, period=3600))
        self.assertEqual([self.get()[0], self.get()[0]], [200, 429])
        self.assertEqual(self.get(user=uuid.uuid4().hex)[0], 200)

    def test_fail_open_lets_through_and_promises_nothing(self):
        self.serve(url=URL_DOWN, fail_open=True)
        status, headers, body = self.get()
        self.assertEqual((status, body), (200, b"hello\n"))
        self.assertFalse(NEVER_SENT & set(headers))

    def test_fail_closed_is_not_the_clients_fault(self):
        self.serve(url=URL_DOWN, fail_open=False)
        status, headers, _ = self.get()
        self.assertEqual(status, 503)
        self.assertFalse(NEVER_SENT & set(headers))

    def test_an_error_of_the_call_is_an_error_in_both_choices(self):
        for fail_open in (True, False):
            with self.subTest(fail_open=fail_open), redis.Redis.from_url(URL) as client:
                self.serve(fail_open=fail_open)
                client.set(f"http:default:{self.user}", "of another type")
                status, headers, _ = self.get()
                self.assertEqual(status, 500)
                self.assertFalse(NEVER_SENT & set(headers))
                client.delete(f"http:default:{self.user}")
                self.assertEqual(self.get()[0], 200)

    def test_a_server_that_cannot_write_is_unavailable(self):
        with redis.Redis.from_url(URL) as client:
            for setting, value, normal in (("maxmemory", 1, 0), ("min-replicas-to-write", 1, 0)):
                client.config_set(setting, value)
                self.addCleanup(redis.Redis.from_url(URL).config_set, setting, normal)
                with self.subTest(setting):
                    self.serve(fail_open=True)
                    self.assertEqual(self.get()[0], 200)
                    self.serve(fail_open=False)
                    self.assertEqual(self.get()[0], 503)
                client.config_set(setting, normal)

    def test_an_error_of_the_set_up_is_an_error(self):
        with redis.Redis.from_url(URL) as client:
            client.ping()  # this connection stays allowed
            client.config_set("requirepass", "secret")
            try:
                for url in (URL, URL.replace("//", "//:wrong@")):
                    self.serve(url=url, fail_open=True)
                    self.assertEqual(self.get()[0], 500)
            finally:
                client.config_set("requirepass", "")


class WSGI(Suite, unittest.TestCase):
    start = WSGIServer

    def test_requests_without_an_address_are_one_client(self):
        policy = Policy(uuid.uuid4().hex, max_burst=1, count=1, period=3600)
        app = RateLimitWSGI(hello, redis.Redis.from_url(URL, **TIMEOUTS), policy, fail_open=False)
        statuses = []
        for environ in ({}, {"REMOTE_ADDR": ""}, {}):
            app(environ, lambda status, headers, exc_info=None: statuses.append(status[:3]))
        self.assertEqual(statuses, ["200", "200", "429"])


class ASGI(Suite, unittest.TestCase):
    start = ASGIServer

    def test_requests_through_a_unix_socket_are_one_client(self):
        policy = Policy(uuid.uuid4().hex, max_burst=1, count=1, period=3600)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "socket")
            asyncio.run(self.through_a_unix_socket(path, policy))

    async def through_a_unix_socket(self, path, policy):
        async with redis.asyncio.Redis.from_url(URL, **TIMEOUTS) as client:
            app = RateLimitASGI(hello_async, client, policy, fail_open=False)
            server = uvicorn.Server(uvicorn.Config(app, uds=path, log_level="warning"))
            running = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            statuses = []
            for _ in range(3):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                statuses.append((await reader.read())[9:12])
                writer.close()
            server.should_exit = True
            await running
        self.assertEqual(statuses, [b"200", b"200", b"429"])


class Names(unittest.TestCase):
    def test_the_name_of_a_policy_ends_at_the_colon_of_a_key(self):
        with self.assertRaisesRegex(ValueError, "colon"):
            Policy("api:v1", max_burst=1, count=1, period=1)


if __name__ == "__main__":
    unittest.main()
