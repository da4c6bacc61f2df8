"""A program under test that serves HTTP: for the tests of the other folders."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from typing import NamedTuple


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Response(NamedTuple):
    status: int
    headers: Message
    body: bytes


class Served:
    """For test cases."""

    at_once = 8

    def serves(self, program: subprocess.Popen, port: int) -> None:
        """Waits until the program listens on its port, and ends it with the test."""
        self.addCleanup(program.wait)
        self.addCleanup(program.terminate)
        self.url = f"http://127.0.0.1:{port}/"
        deadline = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                self.assertIsNone(program.poll(), f"{program.args[0]} has ended")
                self.assertLess(time.monotonic(), deadline, f"{program.args[0]} does not listen")
                time.sleep(0.05)

    def get(self) -> Response:
        try:
            response = urllib.request.urlopen(self.url, timeout=60)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return Response(response.status, response.headers, response.read())

    def hammer(self, requests: int = 40) -> list[int]:
        """Sends requests, `at_once` at a time, and returns their statuses."""
        with ThreadPoolExecutor(self.at_once) as pool:
            return [response.status for response in pool.map(lambda _: self.get(), range(requests))]
