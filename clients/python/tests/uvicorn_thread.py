"""An application under uvicorn, in a thread of the tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

import servers


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """Serves an application on a free port, and yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, **{"log_level": "warning", "lifespan": "off", **options}))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            servers.wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
