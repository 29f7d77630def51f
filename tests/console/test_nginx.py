"""The console behind Debian's nginx, as the manual has it: with a prefix, TLS, and people whom nginx has logged in."""

import http.client
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import orchestrator
from queue_core.server.base.options import AccessToken, ProxyLogin, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.nginx import NAME, PrivateNginx, a_proxy
from tests.support.servers import QUEUE, a_server

MANUAL: Final = Path(orchestrator.__file__).parents[1] / "docs" / "how-to" / "console.md"
ADMIN: Final = AccessToken(Role.ADMIN, "admin-secret-0123456789")
PROXY: Final = ProxyLogin("x-forwarded-user", ("127.0.0.1",), Role.VIEWER, {"ann": Role.OPERATOR})
LOGIN: Final = {"authorization": "Basic " + b64encode(b"ann:secret").decode()}


@dataclass(frozen=True, slots=True)
class Proxied:
    """A console behind nginx."""

    proxy: PrivateNginx

    def connect(self) -> http.client.HTTPConnection:
        """Connect as a browser that has found the proxy's address by its name."""
        connection = http.client.HTTPConnection(self.proxy.host, timeout=10)
        plain = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=10)
        connection.sock = self.proxy.context.wrap_socket(plain, server_hostname=NAME)
        return connection

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = self.connect()
        try:
            connection.request(method, path, body, {**LOGIN, **headers})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    location = re.search(r"```nginx\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    assert location is not None
    options = ServeOptions(tokens=(ADMIN,), proxy=PROXY, console_writes=True, allowed_hosts=(NAME,))
    with a_server(options=options) as server:
        block = location[1].replace("http://127.0.0.1:7878", server.url)
        folder = tmp_path_factory.mktemp("nginx")
        with a_proxy(folder, server.port, location=block, people={"ann": "secret"}) as proxy:
            yield Proxied(proxy)


def test_pages_and_forms_work_behind_the_prefix(proxied: Proxied) -> None:
    status, headers, _ = proxied.ask("GET", "/ops/", accept="text/html")
    assert (status, headers["location"]) == (302, "console/")
    status, _, html = proxied.ask("GET", f"/ops/console/queues/{QUEUE}")
    assert (status, "operator" in html, 'href="/' in html) == (200, True, False)
    form = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    origin = proxied.proxy.origin
    path = f"/ops/console/queues/{QUEUE}/pause"
    status, headers, _ = proxied.ask("POST", path, f"back=queues/{QUEUE}", origin=origin, **form)
    assert (status, headers["location"]) == (303, f"../../queues/{QUEUE}")
    assert proxied.ask("POST", path, "", origin="https://evil.example", **form)[0] == 403
    status, _, script = proxied.ask("GET", "/ops/console/static/console.js")
    assert (status, "use strict" in script) == (200, True)


def test_a_browsers_own_header_names_nobody(proxied: Proxied) -> None:
    _, _, html = proxied.ask("GET", "/ops/console/queues", **{"x-forwarded-user": "boss"})
    assert "operator" in html
    assert proxied.ask("GET", "/ops/v1/queues", **{"x-forwarded-user": "boss"})[0] == 401


def test_a_page_follows_what_happens_through_the_proxy(proxied: Proxied) -> None:
    connection = proxied.connect()
    connection.request("GET", f"/ops/console/live/queues/{QUEUE}", headers=LOGIN)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    lines = iter(answer.readline, b"")
    assert next(line for line in lines if line.startswith(b"event:")) == b"event: page\n"
    answer.close()
    connection.close()
