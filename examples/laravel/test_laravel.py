"""Tests of the middleware in PHP's own server, with four processes. REDIS_URL is a Redis server with the module on this
machine, whose key http:127.0.0.1 is deleted."""

import os
import shutil
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path
from urllib.parse import urlsplit

import redis
from served import Served, free_port

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
HERE = Path(__file__).parent
KEY = "http:127.0.0.1"


class LaravelTest(Served, unittest.TestCase):
    def setUp(self) -> None:
        self.redis = redis.Redis.from_url(URL)
        self.addCleanup(self.redis.close)
        self.redis.delete(KEY)

    def start(self, redis_port: int = urlsplit(URL).port or 6379, choice: str = "open") -> None:
        """Starts the server as it is, but for ten requests a day, and the choice."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        shutil.copy(HERE / "Throttle.php", folder)
        text = (HERE / "server.php").read_text()
        self.assertEqual(text.count(":9,60,60,open"), 1)
        Path(folder, "server.php").write_text(text.replace(":9,60,60,open", f":9,10,86400,{choice}"))
        port = free_port()
        self.log = Path(folder, "log")
        with self.log.open("wb") as log:
            php = subprocess.Popen(
                ["php", "-S", f"127.0.0.1:{port}", "server.php"],
                cwd=folder,
                env=os.environ | {"REDIS_PORT": str(redis_port), "PHP_CLI_SERVER_WORKERS": "4"},
                stderr=log,
            )
        self.serves(php, port)

    def test_fields(self) -> None:
        self.start()
        status, headers, _ = self.get()
        self.assertEqual((status, headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]), (200, "10", "9"))
        self.assertEqual(headers["X-RateLimit-Reset"], "8640")
        self.assertNotIn("Retry-After", headers)
        self.redis.execute_command("CL.CHARGE", KEY, 9, 10, 86400, 9)
        status, headers, _ = self.get()
        self.assertEqual((status, headers["X-RateLimit-Remaining"]), (429, "0"))
        self.assertIn(int(headers["Retry-After"]), range(8000, 8641))

    def test_fail_open_lets_through(self) -> None:
        self.start(redis_port=1)
        status, headers, _ = self.get()
        self.assertEqual(status, 200)
        self.assertNotIn("X-RateLimit-Limit", headers)
        self.assertIn("no rate limit: Connection refused", self.log.read_text())

    def test_fail_closed_is_not_the_clients_fault(self) -> None:
        self.start(redis_port=1, choice="closed")
        self.assertEqual(self.hammer(20), [503] * 20)

    def test_a_server_that_does_not_reply_costs_its_timeout(self) -> None:
        frozen = self.enterContext(socket.create_server(("127.0.0.1", 0), backlog=128))
        self.start(redis_port=frozen.getsockname()[1], choice="closed")
        self.assertEqual(self.get()[0], 503)

    def test_an_error_of_the_call_is_an_error_in_both_choices(self) -> None:
        self.redis.lpush(KEY, "of another type")
        for choice in ("open", "closed"):
            self.start(choice=choice)
            self.assertEqual(self.get()[0], 500)
            self.assertIn("WRONGTYPE", self.log.read_text())
        self.redis.delete(KEY)
        self.assertEqual(self.get()[0], 200)

    def test_a_server_that_cannot_write_is_unavailable(self) -> None:
        self.addCleanup(self.redis.config_set, "maxmemory", 0)
        self.redis.config_set("maxmemory", 1)
        for choice, status in (("open", 200), ("closed", 503)):
            self.start(choice=choice)
            self.assertEqual(self.get()[0], status)
            self.assertIn("no rate limit: OOM", self.log.read_text())

    def test_there_is_no_third_choice(self) -> None:
        self.start(choice="ignore")
        self.assertEqual(self.get()[0], 500)
        self.assertIn("the choice must be open or closed, not ignore", self.log.read_text())


if __name__ == "__main__":
    unittest.main()
