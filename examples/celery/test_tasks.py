"""Tests of the tasks with two workers of two processes each, a broker, and an upstream that records its requests.

REDIS_URL is a Redis server with the module, redis://127.0.0.1:6379 if it is not set. The tests use its database 9,
which must be empty, and hold up all writes of the server for two seconds.
"""

import http.server
import os
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

SERVER = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
os.environ["REDIS_URL"] = urlsplit(SERVER)._replace(path="/9").geturl()
os.environ["MAX_WAIT"] = "1.5"  # so short that some bookings are refused

import httpx  # noqa: E402
from celery.exceptions import Retry  # noqa: E402

import tasks  # noqa: E402
from pace import Pace  # noqa: E402
from tasks import fetch, limiter, pace  # noqa: E402

HERE = Path(__file__).parent
WORKERS = ("first", "second")
PROCESSES = 4  # of both workers
RATE = 10
PAUSE = 2
ROUND_TRIP = 1  # the longest that a reply of the server can take, because of the timeout


@dataclass
class Request:
    arrived: float
    path: str
    status: int
    answered: float = 0


class Upstream(http.server.ThreadingHTTPServer):
    """Answers the path, and once, at the request number `refuse`, 429."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuse: int | None = None
        self.lock = threading.Lock()
        self.requests: list[Request] = []

    def record(self, path: str) -> Request:
        with self.lock:
            status = 429 if len(self.requests) == self.refuse else 200
            request = Request(time.time(), path, status)
            self.requests.append(request)
            return request


class Handler(http.server.BaseHTTPRequestHandler):
    server: Upstream
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        request = self.server.record(self.path)
        self.send_response(request.status)
        if request.status == 429:
            self.send_header("Retry-After", str(PAUSE))
        self.send_header("Content-Length", str(len(self.path)))
        self.end_headers()
        request.answered = time.time()  # before the client has read it
        self.wfile.write(self.path.encode())

    def log_message(self, *_) -> None:
        pass


def answered_by_all(ask: Callable[..., list]) -> None:
    """Asks until all workers answer."""
    deadline = time.monotonic() + 60
    while len(replies := ask(timeout=0.5)) < len(WORKERS):
        if time.monotonic() > deadline:
            raise AssertionError(replies)


class TasksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if limiter.dbsize():
            raise AssertionError("database 9 is in use")
        cls.addClassCleanup(limiter.flushdb)
        cls.upstream = Upstream()
        thread = threading.Thread(target=cls.upstream.serve_forever)
        thread.start()
        cls.addClassCleanup(cls.upstream.server_close)
        cls.addClassCleanup(thread.join)
        cls.addClassCleanup(cls.upstream.shutdown)

        command = [sys.executable, "-m", "celery", "--quiet", "--app", "tasks", "worker", "--loglevel", "ERROR"]
        workers: list[subprocess.Popen[bytes]] = []
        for name in WORKERS:
            worker = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command, "--hostname", name, "--concurrency", str(PROCESSES // 2)],
                cwd=HERE,
                env=os.environ | {"UPSTREAM": f"http://127.0.0.1:{cls.upstream.server_port}"},
            )
            workers.append(worker)
            cls.addClassCleanup(worker.wait)
        cls.addClassCleanup(lambda: [worker.terminate() for worker in workers])
        answered_by_all(tasks.app.control.ping)

    def setUp(self) -> None:
        self.upstream.requests.clear()
        self.upstream.refuse = None

    def assert_complete(self, results: list) -> None:
        """Each task has its answer, and has had it once."""
        answers = [result.get(timeout=120) for result in results]
        admitted = [request.path for request in self.upstream.requests if request.status == 200]
        self.assertEqual(sorted(admitted), sorted(answers))
        self.assertEqual(len(set(answers)), len(results))

    def assert_rate(self, begin: float) -> None:
        """The upstream has seen no more than the limit: since the beginning, and in any stretch of time.

        Of the second bound, each process may exceed it by one request, which it was about to send at the beginning.
        """
        arrived = [request.arrived for request in self.upstream.requests]
        for number, instant in enumerate(arrived, 1):
            self.assertLessEqual(number, 1 + RATE * (instant - begin))
        for (low, first), (high, last) in combinations(enumerate(arrived), 2):
            bound = 1 + RATE * (last - first + pace.late + ROUND_TRIP) + PROCESSES
            self.assertLessEqual(high - low + 1, bound)

    def test_all_workers_share_the_rate_and_a_pause(self) -> None:
        self.upstream.refuse = 20
        refused = limiter.info("redis-cell")["redis-cell_reserve_refused"]
        begin = time.time()
        # Half of the tasks come with a slot, the others book it in the worker.
        results = [pace.send(fetch, [f"/{number}"]) for number in range(30)]
        results += [fetch.delay(f"/{number}") for number in range(30, 60)]
        self.assert_complete(results)
        self.assert_rate(begin)
        self.assertEqual({result.worker for result in results}, {f"celery@{name}" for name in WORKERS})
        self.assertGreater(limiter.info("redis-cell")["redis-cell_reserve_refused"], refused)

        # After the 429 come at most the requests that the other processes were sending at that moment.
        (pausing,) = (request for request in self.upstream.requests if request.status == 429)
        during = [r for r in self.upstream.requests if pausing.answered < r.arrived < pausing.answered + PAUSE]
        self.assertLess(len(during), PROCESSES)
        self.assertGreater(self.upstream.requests[-1].arrived, pausing.answered + PAUSE)

    def test_slots_that_have_passed_are_not_used(self) -> None:
        far = Pace(pace.cell, "upstream", pace.rate, max_wait=60)
        begin = time.time()
        answered_by_all(partial(tasks.app.control.cancel_consumer, "celery", reply=True))
        results = [far.send(fetch, [f"/{number}"]) for number in range(40)]
        time.sleep(40 / RATE + pace.late)  # all slots pass, and no worker runs
        answered_by_all(partial(tasks.app.control.add_consumer, "celery", reply=True))
        self.assert_complete(results)
        self.assert_rate(begin)

    def test_slots_that_are_booked_in_a_pause_come_after_it(self) -> None:
        other = Pace(pace.cell, "other", pace.rate, max_wait=600)
        fetch.push_request(args=["/"], kwargs={})
        self.addCleanup(fetch.pop_request)
        with self.assertRaises(Retry):
            other.pause(fetch, 300)
        self.assertGreater(other.book()[1], 240)

    def test_a_task_that_gives_up_is_an_error(self) -> None:
        self.addCleanup(setattr, fetch, "max_retries", None)
        fetch.max_retries = 3
        with self.assertRaisesRegex(TypeError, "tasks.fetch needs max_retries=None"):
            pace.wait_turn(fetch, None)

    def test_tasks_wait_for_the_server_of_the_limiter(self) -> None:
        begin = time.time()
        results = [fetch.delay(f"/{number}") for number in range(20)]
        limiter.execute_command("CLIENT", "PAUSE", 2000, "WRITE")  # longer than the timeout
        self.assert_complete(results)
        self.assert_rate(begin)


class RetryAfterTest(unittest.TestCase):
    def of(self, **headers: str) -> float:
        return tasks.retry_after(httpx.Response(429, headers={"Retry-After": headers["value"]} if headers else {}))

    def test_seconds_a_date_or_nothing(self) -> None:
        self.assertEqual(self.of(value="7"), 7)
        self.assertEqual(self.of(), 60)
        self.assertEqual(self.of(value="soon"), 60)
        self.assertEqual(self.of(value=formatdate(time.time() - 60, usegmt=True)), 0)
        wait = self.of(value=formatdate(time.time() + 3600, usegmt=True))
        self.assertTrue(0 < wait <= 3600)


if __name__ == "__main__":
    unittest.main()
