"""Tests of the project under gunicorn, with two processes of four threads each, by requests of many clients.

REDIS_URL is a Redis server with the module, redis://127.0.0.1:6379 if it is not set.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from ratelimit import seconds
from served import Served, free_port

HERE = Path(__file__).parent
NOBODY = "redis://127.0.0.1:1"  # nothing listens there
FIELDS = ("RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
SETTINGS = """
from settings import *
from redis_cell import FailClosed, FailOpen

RATE_LIMIT |= {{"rate": Rate.per_hour(10), "name": "{name}"}}
{change}
"""


class ProjectTest(Served, unittest.TestCase):
    def start(self, change: str = "", url: str | None = None, serves: bool = True) -> None:
        """Starts gunicorn with the settings of the project, but for the rate, a name of its own, and this change."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.name = f"test-{secrets.token_hex(4)}"
        Path(folder, "changed.py").write_text(SETTINGS.format(name=self.name, change=change))
        path = os.pathsep.join([folder, str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "changed", "PYTHONPATH": path}
        if url:
            environment["REDIS_URL"] = url
        port = free_port()
        command = [sys.executable, "-m", "gunicorn", "--workers", "2", "--threads", "4", "--log-level", "error"]
        command = ["setpriv", "--pdeathsig", "TERM", *command, "--bind", f"127.0.0.1:{port}", "wsgi"]
        self.errors = Path(folder, "errors")
        with self.errors.open("wb") as errors:
            self.server = subprocess.Popen(command, cwd=HERE, env=environment, stderr=errors)
        if serves:
            self.serves(self.server, port)

    def test_fields(self) -> None:
        self.start()
        begin = time.monotonic()
        responses = [self.get() for _ in range(11)]
        slack = int(time.monotonic() - begin) + 1

        def assert_fields(number: int, remaining: int, reset: int) -> None:
            headers = responses[number].headers
            self.assertEqual(headers["RateLimit-Policy"], f'"{self.name}";q=10;w=3600')
            left, _, wait = headers["RateLimit"].partition(";t=")
            self.assertEqual(left, f'"{self.name}";r={remaining}')
            self.assertIn(int(wait), range(360 - slack, 361))
            self.assertEqual(headers["X-RateLimit-Limit"], "10")
            self.assertEqual(headers["X-RateLimit-Remaining"], str(remaining))
            self.assertIn(int(headers["X-RateLimit-Reset"]), range(reset - slack, reset + 1))

        assert_fields(0, remaining=9, reset=360)
        assert_fields(1, remaining=8, reset=720)
        assert_fields(9, remaining=0, reset=3600)
        assert_fields(10, remaining=0, reset=3600)
        self.assertEqual([response.status for response in responses], [200] * 10 + [429])
        self.assertEqual(responses[0].body, b"hello\n")
        self.assertNotIn("Retry-After", responses[9].headers)
        refusal = responses[10]
        self.assertIn(int(refusal.headers["Retry-After"]), range(360 - slack, 361))
        self.assertEqual(refusal.headers["Content-Type"], "application/problem+json")
        self.assertEqual(json.loads(refusal.body)["status"], 429)

    def test_fail_open_says_nothing_of_the_limit(self) -> None:
        self.start('RATE_LIMIT["when_unavailable"] = FailOpen()', NOBODY)
        self.assertEqual(self.hammer(20), [200] * 20)
        self.assertEqual(set(FIELDS) & set(self.get().headers), set())

    def test_fail_closed_is_not_the_clients_fault(self) -> None:
        self.start('RATE_LIMIT["when_unavailable"] = FailClosed(ask_again=60)', NOBODY)
        self.assertEqual(self.hammer(20), [503] * 20)
        response = self.get()
        self.assertIn(int(response.headers["Retry-After"]), range(1, 61))
        self.assertEqual(set(FIELDS) & set(response.headers), set())

    def test_local_gives_each_process_its_share(self) -> None:
        self.start('RATE_LIMIT["when_unavailable"] = Local(share=2)', NOBODY)
        statuses = self.hammer()
        self.assertIn(statuses.count(200), range(5, 11))  # 5 in each process, of those that were asked
        self.assertEqual(statuses.count(200) + statuses.count(429), 40)
        self.assertEqual(self.get().headers["RateLimit-Policy"], f'"{self.name}";q=5;w=3600')

    def test_a_server_that_does_not_reply_is_unavailable(self) -> None:
        frozen = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.start('RATE_LIMIT["when_unavailable"] = FailOpen()', f"redis://127.0.0.1:{frozen.getsockname()[1]}")
        self.assertEqual(self.hammer(20), [200] * 20)

    def test_the_choice_is_required(self) -> None:
        self.start('del RATE_LIMIT["when_unavailable"]', serves=False)
        self.assertNotEqual(self.server.wait(timeout=60), 0)
        self.assertIn("RATE_LIMIT must have ['key', 'name', 'rate', 'url', 'when_unavailable']", self.errors.read_text())

    def test_a_name_with_a_colon_is_an_error(self) -> None:
        self.start('RATE_LIMIT["name"] = "api:v1"', serves=False)
        self.assertNotEqual(self.server.wait(timeout=60), 0)
        self.assertIn("no colon", self.errors.read_text())


class SecondsTest(unittest.TestCase):
    def test_waits_are_rounded_up_but_not_by_the_noise_of_a_float(self) -> None:
        for time_, whole in ((0.000001, 1), (1.999999, 2), (2.0, 2), (2.0000000001, 2), (3 * 0.1 * 10, 3)):
            self.assertEqual(seconds(time_), whole, time_)


if __name__ == "__main__":
    unittest.main()
