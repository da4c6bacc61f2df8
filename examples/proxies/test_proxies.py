"""Tests of the configurations with real proxies and an application. REDIS_URL is a Redis server with the module."""

import http.server
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from urllib.parse import urlsplit

import redis
from served import Served, free_port

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
HERE = Path(__file__).parent
KEY = "http:127.0.0.1"


class Application(http.server.BaseHTTPRequestHandler):
    requests = 0

    def do_GET(self) -> None:
        Application.requests += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, *_) -> None:
        pass


class Suite(Served):
    """For each proxy."""

    command: list[str]
    files: list[str]  # the first one is the configuration
    ports: list[str]  # of the proxy, of the application, and of the Redis server, in the configuration
    open: str
    closed: str
    tls: tuple[str, str]  # the begin and the end of the lines that are switched on for TLS

    def setUp(self) -> None:
        self.redis = redis.Redis.from_url(URL)
        self.addCleanup(self.redis.close)
        self.redis.delete(KEY)
        Application.requests = 0

    def start(
        self,
        redis_port: int = urlsplit(URL).port or 6379,
        fail_open: bool = True,
        files: dict[str, bytes] | None = None,
        changes: dict[str, str] | None = None,
        **environment: str,
    ) -> None:
        """Starts the configuration as it is, but for its ports."""
        application = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Application)
        thread = threading.Thread(target=application.serve_forever)
        thread.start()
        self.addCleanup(application.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(application.shutdown)

        folder = self.enterContext(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)  # the workers of nginx are another user
        for file in self.files:
            shutil.copy(HERE / file, folder)
        port = free_port()
        for name, content in (files or {}).items():
            Path(folder, name).write_bytes(content)
        configuration = Path(folder, self.files[0])
        text = configuration.read_text()
        ports = (port, application.server_port, redis_port)
        changes = dict(changes or {})
        changes |= {old: old.replace(old[-4:], str(new)) for old, new in zip(self.ports, ports, strict=True)}
        if not fail_open:
            changes[self.open] = self.closed
        for old, new in changes.items():
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        configuration.write_text(text)
        proxy = subprocess.Popen(self.command, cwd=folder, env=os.environ | environment)
        self.serves(proxy, port)

    def test_a_refused_request_does_not_reach_the_application(self) -> None:
        self.start()
        self.redis.execute_command("CL.THROTTLE", KEY, 9, 60, 60, 8)
        status, headers, _ = self.get()
        self.assertEqual(status, 200)
        self.assertEqual(headers["X-RateLimit-Limit"], "10")
        self.assertNotIn("Retry-After", headers)
        self.redis.execute_command("CL.PAUSE", KEY, 9, 60, 60, 30)
        before = Application.requests
        status, headers, _ = self.get()
        self.assertEqual((status, Application.requests), (429, before))
        self.assertEqual(headers["X-RateLimit-Remaining"], "0")
        self.assertIn(int(headers["Retry-After"]), range(1, 31))

    def test_the_limit_is_that_of_the_configuration(self) -> None:
        self.start()
        begin = time.monotonic()
        statuses = [self.get()[0] for _ in range(30)]
        self.assertGreaterEqual(statuses.count(200), 10)
        self.assertLessEqual(statuses.count(200), 10 + time.monotonic() - begin)
        self.assertEqual(statuses.count(200), Application.requests)
        self.assertEqual(statuses[:10], [200] * 10)

    def test_fail_open_lets_through(self) -> None:
        self.start(redis_port=1)
        status, headers, _ = self.get()
        self.assertEqual((status, Application.requests), (200, 1))
        self.assertNotIn("X-RateLimit-Limit", headers)

    def test_fail_closed_is_not_the_clients_fault(self) -> None:
        self.start(redis_port=1, fail_open=False)
        self.assertEqual((self.get()[0], Application.requests), (503, 0))

    def test_a_server_with_a_password(self) -> None:
        self.redis.ping()  # this connection stays allowed
        self.redis.config_set("requirepass", "p@ss word")
        self.addCleanup(self.redis.config_set, "requirepass", "")
        self.start(fail_open=False, REDIS_PASSWORD="p@ss word")
        for _ in range(3):
            status, headers, _ = self.get()
            self.assertEqual((status, headers["X-RateLimit-Limit"]), (200, "10"))

    def test_a_wrong_password_is_an_error_in_both_choices(self) -> None:
        self.redis.ping()
        self.redis.config_set("requirepass", "p@ss word")
        self.addCleanup(self.redis.config_set, "requirepass", "")
        for fail_open in (True, False):
            self.start(fail_open=fail_open, REDIS_PASSWORD="wrong")
            self.assertEqual((self.get()[0], Application.requests), (500, 0))

    def test_tls(self) -> None:
        """With the authority of the certificate, and with another one."""
        with tempfile.TemporaryDirectory() as folder:
            certificates = [certificate(Path(folder, name)) for name in ("server", "stranger")]
            os.chmod(folder, 0o755)
            port, files = free_port(), {"cert": "server.pem", "key": "server.key", "ca-cert": "server.pem"}
            words = [word for name, file in files.items() for word in (f"tls-{name}-file", str(Path(folder, file)))]
            self.redis.config_set("tls-auth-clients", "no", "tls-port", port, *words)
            self.addCleanup(self.redis.config_set, "tls-port", 0)
            for content, status in zip(certificates, (200, 503), strict=True):
                with self.subTest(status=status):
                    text = Path(HERE, self.files[0]).read_text()
                    begin = text.index(self.tls[0])
                    lines = text[begin : text.index(self.tls[1] + "\n", begin) + len(self.tls[1])]
                    inner = free_port()
                    on = lines.replace("\n# ", "\n").removeprefix("# ").replace("6380", str(port))
                    changes = {lines: on.replace("6378", str(inner))}
                    self.start(inner, fail_open=False, files={"ca.pem": content}, changes=changes)
                    self.assertEqual(self.get()[0], status)

    def test_a_server_that_does_not_reply_costs_its_timeout(self) -> None:
        frozen = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        self.start(redis_port=frozen.getsockname()[1])
        self.assertEqual((self.get()[0], Application.requests), (200, 1))

    def test_an_error_of_the_call_is_an_error_in_both_choices(self) -> None:
        for fail_open in (True, False):
            self.start(fail_open=fail_open)
            self.redis.set(KEY, "foreign")
            before = Application.requests
            self.assertEqual((self.get()[0], Application.requests), (500, before))
            self.redis.delete(KEY)
            self.assertEqual(self.get()[0], 200)

    def test_a_server_that_cannot_write_does_not_decide(self) -> None:
        self.addCleanup(self.redis.config_set, "maxmemory", 0)
        self.redis.config_set("maxmemory", 1)
        for fail_open, status in ((True, 200), (False, 503)):
            self.start(fail_open=fail_open)
            self.assertEqual(self.get()[0], status)


class Nginx(Suite, unittest.TestCase):
    command = ["nginx", "-p", ".", "-c", "nginx.conf"]
    files = ["nginx.conf", "ratelimit-nginx.lua"]
    ports = ["127.0.0.1:8000", "127.0.0.1:9000", "port = 6379"]
    open, closed = "fail_open = true", "fail_open = false"
    tls = "# load_module", "\n# }"

    def test_connections_are_kept(self) -> None:
        self.start()
        self.get()
        before = self.redis.info("stats")["total_connections_received"]
        for _ in range(50):
            self.get()
        opened = self.redis.info("stats")["total_connections_received"] - before
        self.assertLess(opened, 50)  # one for each worker


class HAProxy(Suite, unittest.TestCase):
    command = ["haproxy", "-f", "haproxy.cfg"]
    files = ["haproxy.cfg", "ratelimit-haproxy.lua"]
    ports = ["127.0.0.1:8000", "127.0.0.1:9000", "127.0.0.1 6379"]
    open, closed = "# http-request return status 503", "http-request return status 503"
    tls = "# listen redis", "str(localhost)"


def certificate(path: Path) -> bytes:
    """Makes a certificate for localhost, which is its own authority, and its key."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    key, file = str(path.with_suffix(".key")), path.with_suffix(".pem")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", str(file), *names]
    subprocess.run(words, check=True, capture_output=True)
    os.chmod(key, 0o644)
    return file.read_bytes()


if __name__ == "__main__":
    unittest.main()
