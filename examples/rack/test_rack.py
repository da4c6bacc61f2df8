"""Tests of the application under puma, with two processes of five threads each. REDIS_URL is a Redis server with the
module, whose keys of rack-attack are deleted."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from contextlib import suppress
from pathlib import Path

import redis
from served import Served, free_port

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
NOBODY = "redis://127.0.0.1:1"  # nothing listens there
HERE = Path(__file__).parent
DAY = 86400


class RackTest(Served, unittest.TestCase):
    at_once = 10  # as many as puma has threads

    def setUp(self) -> None:
        self.redis = redis.Redis.from_url(URL, decode_responses=True)
        self.addCleanup(self.redis.close)
        for key in self.keys():
            self.redis.delete(key)
        if time.time() % DAY > DAY - 120:  # rack-attack's windows of a day end at midnight
            time.sleep(121)

    def keys(self) -> list[str]:
        return list(self.redis.scan_iter("rack::attack*"))

    def start(self, url: str = URL, fail_open: bool = True) -> None:
        """Starts the configuration as it is, but for a period of a day."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        shutil.copy(HERE / "cell_store.rb", folder)
        text = (HERE / "config.ru").read_text()
        changes = {"period: 60": f"period: {DAY}"}
        if not fail_open:
            changes["when_unavailable: :fail_open"] = "when_unavailable: :fail_closed"
        for old, new in changes.items():
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        Path(folder, "config.ru").write_text(text)
        port = free_port()
        command = ["puma", "--silent", "--workers", "2", "--threads", "5:5", "--bind", f"tcp://127.0.0.1:{port}"]
        puma = subprocess.Popen([*command, "config.ru"], cwd=folder, env=os.environ | {"REDIS_URL": url})
        self.serves(puma, port)

    def test_the_budget_is_exact(self) -> None:
        self.start()
        statuses = self.hammer()
        self.assertEqual((statuses.count(200), statuses.count(429)), (10, 30))
        (key,) = self.keys()
        self.assertEqual(self.redis.get(key), "40")
        rest = DAY - time.time() % DAY
        self.assertTrue(rest < self.redis.pttl(key) / 1000 + 1 and self.redis.ttl(key) <= DAY + 1)
        status, headers, _ = self.get()
        self.assertEqual(status, 429)
        self.assertTrue(rest - 60 < int(headers["Retry-After"]) <= rest + 1)

    def test_fail_open_lets_through(self) -> None:
        self.start(NOBODY)
        self.assertEqual(self.hammer(20), [200] * 20)

    def test_fail_closed_is_not_the_clients_fault(self) -> None:
        self.start(NOBODY, fail_open=False)
        self.assertEqual(self.hammer(20), [503] * 20)

    def test_a_server_that_does_not_reply_is_unavailable(self) -> None:
        frozen = self.enterContext(socket.create_server(("127.0.0.1", 0), backlog=128))
        self.start(f"redis://127.0.0.1:{frozen.getsockname()[1]}", fail_open=False)
        self.assertEqual(self.hammer(), [503] * 40)
        frozen.setblocking(False)
        asked = 0
        with suppress(BlockingIOError):
            while True:
                frozen.accept()[0].close()
                asked += 1
        self.assertIn(asked, range(1, 40))  # not each request has waited for it

    def test_a_server_that_cannot_write_is_unavailable(self) -> None:
        self.start(fail_open=False)
        self.assertEqual(self.get()[0], 200)
        self.addCleanup(self.redis.config_set, "maxmemory", self.redis.config_get("maxmemory")["maxmemory"])
        self.redis.config_set("maxmemory", 1)
        self.assertEqual(self.get()[0], 503)

    def test_an_error_of_the_configuration_is_shown(self) -> None:
        self.start(fail_open=False)
        self.get()
        (key,) = self.keys()
        self.redis.delete(key)
        self.redis.lpush(key, "of another type")
        self.assertEqual(self.get()[0], 500)
        self.redis.delete(key)
        self.assertEqual(self.get()[0], 200)

    def test_a_wrong_password_is_an_error_of_the_configuration(self) -> None:
        self.redis.ping()  # this connection stays allowed
        self.redis.config_set("requirepass", "secret")
        self.addCleanup(self.redis.config_set, "requirepass", "")
        for url in (URL, URL.replace("//", "//:wrong@")):
            self.start(url)
            self.assertEqual(self.get()[0], 500)

    def test_rack_attack_reads_writes_and_deletes_by_the_store(self) -> None:
        program = """
            $LOAD_PATH << Dir.pwd
            require 'connection_pool'
            require 'rack/attack'
            require 'cell_store'
            redis = ConnectionPool.new { Redis.new(url: ENV.fetch('REDIS_URL')) }
            Rack::Attack.cache.store = CellStore.new(redis, when_unavailable: :fail_closed)
            rule = { bantime: 60, findtime: 86400, maxretry: 3 }
            filter = -> { Rack::Attack::Allow2Ban.filter('203.0.113.9', rule) { true } }
            puts [filter.call, filter.call, filter.call, filter.call].inspect
            Rack::Attack::Allow2Ban.reset('203.0.113.9', rule)
            puts filter.call
            filter.call
            Rack::Attack.reset!
            puts redis.with { |r| r.keys('rack::attack*') }.inspect
            CellStore.new(redis, when_unavailable: :ignore) rescue puts $!.message
        """
        run = subprocess.run(
            ["ruby", "-e", program], cwd=HERE, env=os.environ | {"REDIS_URL": URL}, capture_output=True, text=True
        )
        self.assertEqual(run.stderr, "")
        self.assertEqual(
            run.stdout.splitlines(),
            ["[false, false, false, true]", "false", "[]", "when_unavailable must be :fail_open or :fail_closed"],
        )


if __name__ == "__main__":
    unittest.main()
