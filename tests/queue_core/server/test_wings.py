"""Wings register what they serve at the server; importing the server imports none of them (ADR 130)."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route

from queue_core.server import wings
from queue_core.server.app import served_endpoints
from queue_core.server.state import ServerState
from queue_core.server.v1.endpoints import ENDPOINTS
from queue_core.server.wings import WINGS, Wing
from tests.support.servers import a_server


class NameWing(Wing):
    """A wing that answers with the run of its server, and counts its stops."""

    ended: list[str] = []  # noqa: RUF012 - of the one server of the test

    def __init__(self, core: ServerState) -> None:
        self.run = core.run

    def routes(self) -> Sequence[BaseRoute]:
        async def view(_request: Request) -> PlainTextResponse:
            return PlainTextResponse(self.run)

        return [Route("/run", view, methods=["GET"])]

    def stop(self) -> None:
        self.ended.append("stop")

    def close(self) -> None:
        self.ended.append("close")


def test_importing_the_server_imports_no_wing() -> None:
    program = "import sys, queue_core.server.server; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = set(printed.split())
    assert "queue_core.server.wings" in loaded
    assert [name for name in loaded if name.startswith(("queue_core.celery", "queue_core.google"))] == []


def test_a_wing_of_the_table_serves_its_paths_until_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wings, "WINGS", (*WINGS, f"{__name__}:NameWing"))
    with a_server() as server:
        reply = server.ask("GET", "/run")
        assert (reply.status, reply.body.decode()) == (200, server.thread.core.run)
        assert NameWing.ended == []
    assert NameWing.ended == ["stop", "close"]


def test_the_endpoints_of_wings_are_served_beside_the_servers_own() -> None:
    assert [endpoint.path for endpoint in served_endpoints()[len(ENDPOINTS) :]] == ["/v1/mailboxes"]
