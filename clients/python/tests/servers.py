"""Real servers with the module, on free ports, in temporary folders. They end with the test that started them."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import redis

SERVER = os.environ["REDIS_CELL_SERVER"]
MODULE = os.environ["REDIS_CELL_MODULE"]
SLOTS = 16384
REPOSITORY = Path(__file__).resolve().parents[3]


def wait_until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Waits for a condition, and returns its value. Fails with the last value seen."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} seconds, last value: {value!r}")
        time.sleep(0.02)


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Waits for a condition or a coroutine without blocking the event loop."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
        assert time.monotonic() < end, f"waited {seconds} seconds"
        await asyncio.sleep(0.01)


def in_child(work: Callable[[], Any], seconds: float = 30) -> bool:
    """Runs work in a forked process, which is killed if it does not end. Returns whether the work returned a truth."""
    child = os.fork()
    if child == 0:
        done = False
        with suppress(BaseException):
            done = bool(work())
        os._exit(not done)

    def ended() -> list[int]:
        process, status = os.waitpid(child, os.WNOHANG)
        return [status] if process else []

    try:
        return bool(wait_until(ended, seconds) == [0])
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def transcript(name: str) -> Iterator[list[str]]:
    """Returns the calls with their results that core/examples/transcripts.rs prints."""
    command = ["cargo", "run", "--quiet", "--locked", "--package", "redis-cell-core", "--example", "transcripts", name]
    printed = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True).stdout
    return (line.split("\t") for line in printed.splitlines())


@cache
def functions() -> str:
    """Returns the function library."""
    build = REPOSITORY / "scripts" / "functions.sh"
    return Path(subprocess.run([build], check=True, capture_output=True, text=True).stdout.strip()).read_text()


class Server:
    """One server."""

    def __init__(self, folder: Path, options: tuple[str, ...], module: bool, port: int) -> None:
        self.port = port
        self.folder = folder
        self.options = options
        self.module = module
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def admin(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

    def start(self) -> bool:
        """Starts the server, or returns False if the port is taken."""
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *self.options]
        if self.module:
            words += ["--loadmodule", MODULE]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", SERVER, *words], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until(self._answers)
        except ChildProcessError:
            if b"in use" in (self.folder / "log").read_bytes():
                return False
            raise
        return True

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise ChildProcessError((self.folder / "log").read_text())
        with self.admin as admin:
            return _is(self.process, admin)

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def empty(self) -> None:
        """Deletes all keys, and lets the counts begin again. A test that failed may have frozen the server."""
        self.thaw()
        with self.admin as admin:
            admin.flushall()
            admin.config_resetstat()

    def load_functions(self, text: str | None = None) -> None:
        with self.admin as admin:
            admin.execute_command("FUNCTION", "LOAD", "REPLACE", text or functions())

    def calls(self, command: str) -> int:
        """How often the server has run a command, from INFO commandstats."""
        with self.admin as admin:
            row = admin.info("commandstats").get("cmdstat_" + command, {})
        return int(row.get("calls", 0))

    def counted(self, name: str) -> int:
        """A number of the module's section of INFO."""
        with self.admin as admin:
            return int(admin.info("redis-cell")["redis-cell_" + name])


NOBODY = 1
"""A port on which no server listens. One that is free now may be that of a server that starts the next moment."""


def free_port() -> int:
    # The bus of a cluster needs the port that is 10000 higher.
    return random.randrange(12000, 32000)


@contextmanager
def running(*options: str, module: bool = True) -> Iterator[Server]:
    """A server, with the module unless the test wants it without."""
    folder = Path(tempfile.mkdtemp())
    while True:
        server = Server(folder, ("--save", "", "--repl-diskless-sync-delay", "0", *options), module, free_port())
        try:
            if server.start():
                break
        except BaseException:
            server.stop()
            raise
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Lossy:
    """A proxy in front of a server that loses replies to calls: it closes the connection in place of every such one, or
    sends nothing if it is silent. It may delay the other replies."""

    delay = 0.0

    def __init__(self, port: int, share: float, silent: bool = False) -> None:
        self.to, self.share, self.silent = port, share, silent
        self.random = random.Random(22)
        self.lost = self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                self.connections += 1
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self.to)) as server:
            is_call = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    if ready is client:
                        is_call = b"CL." in data or b"cl_" in data
                        server.sendall(data)
                    elif is_call and self.random.random() < self.share:
                        self.lost += 1
                        if not self.silent:
                            return
                    else:
                        time.sleep(self.delay)
                        client.sendall(data)


@contextmanager
def lossy(server: Server, share: float, silent: bool = False) -> Iterator[Lossy]:
    """A way to a server on which a share of the replies is lost. The calls themselves arrive."""
    proxy = Lossy(server.port, share, silent)
    try:
        yield proxy
    finally:
        proxy.listener.close()


@contextmanager
def cluster(primaries: int = 2, replicas: int = 0, module: bool = True) -> Iterator[list[Server]]:
    """A cluster: the primaries, and then the replicas, each of them of the first primary."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(running("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", module=module))
            for _ in range(primaries + replicas)
        ]
        first = nodes[0]
        for index, node in enumerate(nodes):
            with node.admin as admin:
                if index < primaries:
                    share = range(SLOTS * index // primaries, SLOTS * (index + 1) // primaries)
                    admin.execute_command("CLUSTER", "ADDSLOTS", *share)
                admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
                admin.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port)
        for node in nodes:
            wait_until(lambda node=node: f"cluster_known_nodes:{len(nodes)}" in _info(node))
        if replicas:
            with first.admin as admin:
                primary = admin.execute_command("CLUSTER", "MYID")
            for node in nodes[primaries:]:
                with node.admin as admin:
                    wait_until(lambda admin=admin: _done(admin, "CLUSTER", "REPLICATE", primary))
                    wait_until(lambda admin=admin: admin.info("replication").get("master_link_status") == "up")
        for node in nodes:
            wait_until(lambda node=node: "cluster_state:ok" in _info(node))
        if replicas:
            # Clients learn of the replicas from the primary, which lists those that have received something.
            with first.admin as admin:
                admin.set("something", 1, px=1)
            wait_until(lambda: len(_slots(first)[0]) == 3 + replicas)
        yield nodes


def _done(admin: redis.Redis, *words: str) -> bool:
    """Sends a command that fails until the nodes have met."""
    try:
        admin.execute_command(*words)
    except redis.ResponseError:
        return False
    return True


def _slots(node: Server) -> list[list[Any]]:
    """The rows of CLUSTER SLOTS: two slots, the primary, and the replicas."""
    client = redis.Redis(port=node.port)
    client.response_callbacks.clear()
    with client:
        return client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-any-return]


def _info(node: Server) -> str:
    with node.admin as admin:
        info = admin.execute_command("CLUSTER", "INFO")
    return info if isinstance(info, str) else "\r\n".join(f"{name}:{value}" for name, value in info.items())


@contextmanager
def sentinel(server: Server, *lines: str, watched: int | None = None) -> Iterator[int]:
    """A Sentinel, with these lines in its configuration, that knows a server as `mymaster`. Returns its port."""
    folder = Path(tempfile.mkdtemp())
    file = folder / "sentinel.conf"
    process = None
    try:
        while process is None:
            port = free_port()
            file.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\n" + "\n".join(lines) + "\n")
            words = ["setpriv", "--pdeathsig", "TERM", SERVER, str(file), "--sentinel"]
            started = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with redis.Redis(port=port) as admin:
                # It ends by itself if the port is taken, by a server that answers meanwhile.
                wait_until(lambda admin=admin, started=started: started.poll() is not None or _is(started, admin))
                if started.poll() is None:
                    process = started
                    admin.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", watched or server.port, 1)
        yield port
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _is(process: subprocess.Popen[bytes], admin: redis.Redis) -> bool:
    """Whether this process answers, and not another one that has the same port."""
    try:
        return bool(admin.info("server")["process_id"] == process.pid)
    except (redis.ConnectionError, redis.ResponseError):
        return False
