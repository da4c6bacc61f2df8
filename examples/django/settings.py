"""A project of Django with a rate limit for each client. REDIS_URL is a Redis server with the module."""

import os

from redis_cell import Local, Rate

SECRET_KEY = os.environ.get("SECRET_KEY", "for this example only")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "urls"
WSGI_APPLICATION = "wsgi.application"
# First, so that a refused request costs nothing else; after the authentication if `key` needs the user.
MIDDLEWARE = ["ratelimit.RateLimit"]

RATE_LIMIT = {
    "url": os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
    "name": "default",
    "rate": Rate.per_minute(60, burst=9),  # 10 at once, then one a second
    # Behind a proxy this is the address of the proxy: take the client's from a field that the proxy sets.
    "key": lambda request: request.META["REMOTE_ADDR"],
    "when_unavailable": Local(share=2),  # FailOpen(), FailClosed() or Local, with the number of processes
}
