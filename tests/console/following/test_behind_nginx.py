"""The console behind nginx, with TLS and below a prefix: pages, links, login, streams, and forms."""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from queue_core.console.sessions import SECURE_COOKIE
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.console.following.readers import OWN_FORM, StreamReader, form
from tests.support.nginx import NAME, PREFIX, PrivateNginx, a_proxy
from tests.support.servers import QUEUE, RunningServer, a_server

TOKEN = "operator-token-0123456789"
CONSOLE = f"{PREFIX}/console/"


@dataclass(frozen=True, slots=True)
class ProxiedAnswer:
    """An answer through the proxy."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True)
class ProxiedSite:
    """A server, and the proxy before it."""

    server: RunningServer
    proxy: PrivateNginx

    def connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=20)
        return self.proxy.context.wrap_socket(plain, server_hostname=NAME)

    def ask(
        self, path: str, fields: Mapping[str, str] | None = None, *, cookie: str = "", **more: str
    ) -> ProxiedAnswer:
        """Ask as a browser does; `more` are further headers."""
        connection = HTTPConnection(self.proxy.host)
        connection.sock = self.connect()
        headers = {"accept": "text/html", "host": self.proxy.host, **more}
        if cookie:
            headers["cookie"] = cookie
        if fields is not None:
            own = {"origin": self.proxy.origin, "content-type": "application/x-www-form-urlencoded"}
            headers = {**own, **dict([OWN_FORM]), **headers}
        connection.request("GET" if fields is None else "POST", path, None if fields is None else form(fields), headers)
        answer: HTTPResponse = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return ProxiedAnswer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)

    def log_in(self) -> str:
        """Return the cookie of a session, as `name=value`."""
        answer = self.ask(f"{CONSOLE}login", {"token": TOKEN})
        assert answer.status == 303
        return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedSite]:
    tokens = (AccessToken(Role.ADMIN, TOKEN),)
    folder: Path = tmp_path_factory.mktemp("nginx")
    options = ServeOptions(tokens=tokens, console_writes=True, allowed_hosts=(NAME,))
    with a_server(options=options) as server, a_proxy(folder, server.port) as proxy:
        yield ProxiedSite(server, proxy)


def test_a_stranger_is_led_to_the_login_below_the_prefix(site: ProxiedSite) -> None:
    answer = site.ask(f"{CONSOLE}queues/{QUEUE}")
    assert answer.status == 303
    there = urljoin(f"{CONSOLE}queues/{QUEUE}", answer.headers["location"])
    assert urlsplit(there).path == f"{CONSOLE}login"
    assert site.ask(there).status == 200
    root = site.ask(f"{PREFIX}/")
    assert (root.status, urljoin(f"{PREFIX}/", root.headers["location"])) == (302, CONSOLE)


def test_a_session_is_for_tls_only(site: ProxiedSite) -> None:
    answer = site.ask(f"{CONSOLE}login", {"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"secure", "httponly", "samesite=strict", "path=/"} <= attributes
    assert site.ask(CONSOLE, cookie=site.log_in()).status == 200


@pytest.mark.parametrize("page", ["", "queues", f"queues/{QUEUE}", f"queues/{QUEUE}/dead", "schedules", "events"])
def test_all_links_of_a_page_lead_below_the_prefix(site: ProxiedSite, page: str) -> None:
    cookie = site.log_in()
    answer = site.ask(f"{CONSOLE}{page}", cookie=cookie)
    assert answer.status == 200
    links = {unescape(link) for link in re.findall(r'(?:href|src|action|sse-connect)="([^"#]+)"', answer.text)}
    there = {urlsplit(urljoin(f"{site.proxy.origin}{CONSOLE}{page}", link)) for link in links}
    assert {found.netloc for found in there} == {site.proxy.host}, "no other host is named"
    assert all(found.path.startswith((CONSOLE, f"{PREFIX}/docs/")) for found in there)
    static = [found.path for found in there if "/static/" in found.path]
    assert static
    assert {site.ask(path).status for path in static} == {200}


def test_a_page_is_followed_and_a_form_changes_it(site: ProxiedSite) -> None:
    cookie, path = site.log_in(), f"{CONSOLE}live/queues/{QUEUE}"
    headers = {"host": site.proxy.host, "cookie": cookie}
    with StreamReader(site.connect(), path, headers) as reader:
        assert reader.status == 200
        assert "paused" not in reader.next("page").data
        answer = site.ask(f"{CONSOLE}queues/{QUEUE}/pause", {"back": f"queues/{QUEUE}"}, cookie=cookie)
        assert answer.status == 303
        back = urljoin(f"{CONSOLE}queues/{QUEUE}/pause", answer.headers["location"])
        assert back == f"{CONSOLE}queues/{QUEUE}"
        assert "paused" in reader.next("page").data
    assert "paused" in site.ask(back, cookie=cookie).text


def test_a_form_of_another_site_is_refused_and_a_host_that_is_not_ours(site: ProxiedSite) -> None:
    cookie, path = site.log_in(), f"{CONSOLE}queues/{QUEUE}/resume"
    foreign = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
    assert site.ask(path, {}, cookie=cookie, **foreign).status == 403
    assert site.ask(CONSOLE, cookie=cookie, host="elsewhere.example").status == 421
