"""A Celery application whose tasks share a rate: 10 calls of the upstream per second, evenly spaced.

REDIS_URL is the broker, the result backend, and the server with the module. UPSTREAM is the service that is called.
"""

import os
import time
from email.utils import parsedate_to_datetime

import httpx
import redis
from celery import Celery, Task

from pace import Pace
from redis_cell import Cell, Rate

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:9000")
MAX_WAIT = float(os.environ.get("MAX_WAIT", "600"))

app = Celery("tasks", broker=URL, backend=URL)
app.conf.result_extended = True  # results name their worker
upstream = httpx.Client(base_url=UPSTREAM, timeout=30)
limiter = redis.Redis.from_url(URL, socket_timeout=1, socket_connect_timeout=1)
pace = Pace(Cell(limiter), "upstream", Rate.per_second(10, burst=0), max_wait=MAX_WAIT)


def retry_after(response: httpx.Response, default: float = 60) -> float:
    """The seconds of the header Retry-After, which has a number or a date."""
    value = response.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return default


# Without the limiter's server there is no decision: the task is sent again until there is one. The delay is constant,
# because Celery's retry_backoff would count each slot as a failure.
@app.task(bind=True, max_retries=None, autoretry_for=(redis.ConnectionError, redis.TimeoutError), default_retry_delay=2)
def fetch(self: Task, path: str, slot: float | None = None) -> str:
    pace.wait_turn(self, slot)
    response = upstream.get(path)
    if response.status_code == 429:
        pace.pause(self, retry_after(response))
    response.raise_for_status()
    return response.text
