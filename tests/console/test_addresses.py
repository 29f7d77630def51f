"""Addresses on a page are relative, so that they hold behind any prefix of a proxy; a login leads to own pages only."""

from urllib.parse import urljoin

import pytest
from starlette.requests import Request

from queue_core.console.app import _live_address, _own_address, _root

PREFIXES = ["http://127.0.0.1:7878/console", "https://ops.example/towline/eu/console"]


def a_request(path: str, *, query: str = "", is_mounted: bool = True) -> Request:
    """Return a request as the server gives it to the console: with the whole path, below its mount."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/console{path}",
        "raw_path": f"/console{path}".encode(),
        "root_path": "/console" if is_mounted else "",
        "query_string": query.encode(),
        "headers": [],
    }
    return Request(scope)


PATHS = ["/", "/queues", "/queues/mail", "/queues/mail/tasks/a", "/workers/host%2Fw", "/live/queues/mail", "/live/"]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", PATHS)
def test_the_root_is_reached_from_every_page(prefix: str, path: str) -> None:
    page = f"{prefix}{path.removeprefix('/live') if path.startswith('/live') else path}"
    assert urljoin(page, _root(a_request(path))) == f"{prefix}/"


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith("/live")])
def test_a_stream_is_at_its_pages_address_below_live(prefix: str, path: str) -> None:
    address = _live_address(a_request(path, query="state=dead&tag=a%26b"))
    assert urljoin(f"{prefix}{path}", address) == f"{prefix}/live{path}?state=dead&tag=a%26b"


@pytest.mark.parametrize(
    "back",
    [
        "//elsewhere.example",
        "https://elsewhere.example",
        "https:elsewhere.example",
        "javascript:alert(1)",
        "data:text/html,x",
        "/\\elsewhere.example",
        "\\\\elsewhere.example",
        "/",
        "queues//elsewhere.example",
        "../../../elsewhere",
        "queues/%2e%2e/%2E./../elsewhere",
        "..\\..\\elsewhere",
        " https://elsewhere.example",
        "\thttps://elsewhere.example",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/login", "/queues/mail/pause"])
def test_a_form_leads_to_pages_of_this_console_only(back: str, path: str) -> None:
    page = f"https://ops.example/towline/console{path}"
    assert urljoin(page, _own_address(back, a_request(path))).startswith("https://ops.example/towline/console/")


@pytest.mark.parametrize("back", ["queues/mail", "queues?q=a:b", "queues/mail/tasks/a%3Ab"])
def test_a_form_leads_back_to_where_it_was(back: str) -> None:
    page = "https://ops.example/towline/console/queues/mail/pause"
    assert urljoin(page, _own_address(back, a_request("/queues/mail/pause"))) == (
        f"https://ops.example/towline/console/{back}"
    )
