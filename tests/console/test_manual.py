"""The manual at `/docs/`: types, caching and policy of its files, no way out of it, a sentence where there is none."""

import json
import tarfile
from collections.abc import Iterator
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queue_core.console.manual.addresses import GUARDS, OF_GUARD, PAGES
from queue_core.console.manual.archive import ARCHIVE, read_manual
from queue_core.console.manual.search import search_index
from queue_core.console.pages import PAGES as CONSOLE_PAGES
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.console.visits import Shown, Visitor
from tests.support.manual.serving import PREFIX, serving
from tests.support.servers import a_server

INDEX = b"<!doctype html><title>First</title>"
FILES = {
    "index.html": INDEX,
    "how-to/limits.html": b"<!doctype html><title>Limits</title>",
    "adr/index.html": b"<!doctype html><title>Decisions</title>",
    "assets/manual.css": b"body{}",
    "assets/search.js": b"1",
    "search.json": b"{}",  # made anew of the pages
    "images/pool.webp": b"RIFF",
    "notes.exe": b"MZ",
}


def an_archive(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    """Return a manual of these files."""
    path = folder / "site.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))
        link = tarfile.TarInfo("secret.html")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A listener with that manual."""
    with serving(an_archive(tmp_path_factory.mktemp("manual"))) as url:
        yield url


def ask(url: str, path: str, *, method: str = "GET", **headers: str) -> Shown:
    """Make one request with a path as it is."""
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port or 0, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Shown(answer.status, path, answer.read().decode("latin-1"), found)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/docs/", "text/html; charset=utf-8"),
        ("/docs/index.html", "text/html; charset=utf-8"),
        ("/docs/how-to/limits.html", "text/html; charset=utf-8"),
        ("/docs/how-to/limits", "text/html; charset=utf-8"),
        ("/docs/adr/", "text/html; charset=utf-8"),
        ("/docs/assets/manual.css", "text/css; charset=utf-8"),
        ("/docs/assets/search.js", "text/javascript; charset=utf-8"),
        ("/docs/search.json", "application/json"),
        ("/docs/images/pool.webp", "image/webp"),
        (f"{PREFIX}/docs/how-to/limits.html", "text/html; charset=utf-8"),
    ],
)
def test_a_file_has_its_type_and_a_strict_policy(url: str, path: str, media_type: str) -> None:
    shown = ask(url, path)
    assert (shown.status, shown.headers["content-type"]) == (200, media_type)
    assert shown.headers["x-content-type-options"] == "nosniff"
    policy = shown.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_browser_keeps_a_file_and_is_told_when_it_has_changed(url: str) -> None:
    first = ask(url, "/docs/")
    assert "max-age" in first.headers["cache-control"]
    again = ask(url, "/docs/", if_none_match=f'"other", W/{first.headers["etag"]}')
    assert (again.status, again.html) == (304, "")
    assert ask(url, "/docs/", if_none_match='"other"').status == 200
    assert ask(url, "/docs/how-to/limits").headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_a_folder_gets_its_slash_by_a_relative_address(url: str, prefix: str) -> None:
    for path, location in ((f"{prefix}/docs", "docs/"), (f"{prefix}/docs/adr", "adr/")):
        shown = ask(url, path)
        assert (shown.status, shown.headers["location"]) == (307, location)


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../etc/passwd",
        "/docs/%2e%2e/%2e%2e/etc/passwd",
        "/docs/..%2f..%2fetc%2fpasswd",
        "/docs//etc/passwd",
        "/docs/how-to/%00limits.html",
        "/docs/how-to\\limits.html",
        "/docs/secret.html",
        "/docs/notes.exe",
        "/docs/site.tar.xz",
        "/docs/%3Cscript%3Ealert(1)%3C/script%3E",
    ],
)
def test_there_is_nothing_but_the_manuals_own_files(url: str, path: str) -> None:
    shown = ask(url, path)
    assert shown.status == 404
    assert "passwd" not in shown.html
    assert "root:" not in shown.html
    assert "alert" not in shown.html


def test_a_page_that_is_not_there_leads_to_the_first_one_from_any_depth(url: str) -> None:
    for path, address in (("/docs/nothing", "../docs/"), ("/docs/how-to/nothing/else", "../../../docs/")):
        shown = ask(url, path)
        assert (shown.status, "The manual has no such page." in shown.html) == (404, True)
        assert f'href="{address}"' in shown.html


def test_only_reading_is_possible(url: str) -> None:
    assert ask(url, "/docs/", method="HEAD").status == 200
    for method in ("POST", "PUT", "DELETE"):
        shown = ask(url, "/docs/", method=method)
        assert (shown.status, shown.headers["allow"]) == (405, "GET, HEAD")


def test_a_foreign_name_is_refused_as_by_the_console(url: str) -> None:
    assert ask(url, "/docs/", host="evil.example").status == 421


def test_without_a_built_manual_a_sentence_says_how_to_build_it(tmp_path: Path) -> None:
    with serving(tmp_path / "none.tar.xz") as url:
        shown = ask(url, "/docs/how-to/limits")
        assert (shown.status, shown.headers["cache-control"]) == (404, "no-store")
        assert "<code>python3 run.py docs</code>" in shown.html


def test_it_is_read_without_a_token_where_the_server_has_some() -> None:
    token = AccessToken(Role.ADMIN, "admin-secret-0123456789")
    with a_server(options=ServeOptions(tokens=(token,))) as server:
        status = 200 if ARCHIVE.is_file() else 404
        assert ask(server.url, "/docs/").status == status
        shown = Visitor(server.port).get("")
        assert shown.path == "/console/login"
        assert 'href="../docs/how-to/console.html#who-may-do-what">Manual' in shown.html.replace("./../", "../")


def test_an_archive_yields_files_of_known_kinds_only(tmp_path: Path) -> None:
    found = read_manual(an_archive(tmp_path))
    assert found is not None
    assert set(found) == set(FILES) - {"notes.exe"}
    assert json.loads(found["search.json"].data)["items"] == []
    assert read_manual(tmp_path / "none.tar.xz") is None


def test_every_page_of_the_console_has_its_page_of_the_manual() -> None:
    assert {page.template for page in CONSOLE_PAGES} - set(PAGES) == set()
    assert all(".html" in page for page in (GUARDS, *PAGES.values(), *OF_GUARD.values()))


def test_a_search_is_made_of_the_sections_of_pages() -> None:
    page = b"""<nav><a href="../index.html" class="md-path__link"> <span class="md-ellipsis"> Home </span></a>
<a href="x.html" class="md-path__link"> <span class="md-ellipsis"> How-to </span></a></nav>
<article class="md-typeset"><h1 id="limits">Order &amp; <code>limits</code><a class="headerlink" href="#">#</a></h1>
<p>Which <strong>task</strong>
is next.</p><!-- no --><h2 id="rate">Rate<a class="headerlink" href="#rate">#</a></h2>
<div class="highlight"><pre><span></span><code><span class="k">rate</span>: 10/s
 burst: 2
</code></pre></div><table><tr><th>a</th><td>b &lt; c</td></tr></table></article>"""
    items = json.loads(search_index({"how-to/limits.html": page, "adr/queue/0001-x.html": page, "a.css": b""}))["items"]
    assert items == [
        {
            "location": "how-to/limits.html",
            "level": 1,
            "title": "Order & limits",
            "text": "<p>Which task is next.</p>",
            "path": ["How-to", "Order & limits"],
            "tags": [],
        },
        {
            "location": "how-to/limits.html#rate",
            "level": 2,
            "title": "Rate",
            "text": "<pre><code>rate: 10/s\n burst: 2\n</code></pre> a b &lt; c",
            "path": ["How-to", "Order & limits"],
            "tags": [],
        },
    ]
