"""A listener with the console of an empty store, and a manual of the test's own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from queue_core.console.api import OtherServer
from queue_core.console.app import Console, ConsoleOptions
from queue_core.server.base.options import ServeOptions
from queue_core.server.callers.auth import Authorizer
from queue_core.server.console.mount import ConsoleMount
from tests.support.eventually import eventually
from tests.support.servers import a_server

PREFIX = "/ops"
"""Where the same is a second time, as behind a proxy."""


@contextmanager
def serving(archive: Path) -> Iterator[str]:
    """Serve the manual of an archive; yield the listener's URL."""
    with a_server() as server:
        console = Console(OtherServer(server.url), ConsoleOptions())
        mount = ConsoleMount(Authorizer(ServeOptions()), lambda: console, manual=archive)
        app = Starlette(routes=[Mount(PREFIX, Starlette(routes=mount.routes())), *mount.routes()])
        listener = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(listener.serve()))
        thread.start()
        try:
            eventually(lambda: listener.started)
            port = listener.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            mount.stop()
            listener.should_exit = True
            thread.join()
