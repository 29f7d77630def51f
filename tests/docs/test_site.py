"""The manual as a site: built offline, whole, small, and read without scripts, without a network, and on a phone."""

import json
import lzma
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser

from queue_core.console.manual.addresses import GUARDS, OF_GUARD, PAGES
from tests.console.browser import CHROMIUM, Look, Scheme, a_browser, a_look
from tests.support.manual.archive import packed, tar_of
from tests.support.manual.navigation import OTHER, navigation, pages_in
from tests.support.manual.serving import PREFIX, serving
from tests.support.manual.site import build_site
from tests.support.manual.sources import DOCS, LEFT_OUT, ROOT, Sources

MAX_BYTES: Final = 512 * 1024
"""Of the file in the wheel, which has 2.7 MB for everything."""
SHOWN: Final = (
    "",
    "how-to/handlers.html",
    "from/celery.html",
    "reference/settings.html",
    "reference/metrics.html",
    "adr/index.html",
)
"""Pages that are looked at in a browser: of each kind one, and those with wide tables."""
ACCEPTED: Final = re.compile(r"scrollable-region-focusable|landmark-unique: <nav class=\"md-code__nav\"")
"""Findings that are zensical's: browsers as they are now reach what scrolls by the keyboard, and its script sets a
landmark around each button that copies a block."""
AUDITED: Final = frozenset({"", "how-to/handlers.html", "adr/index.html"})
"""Pages that axe looks at: long tables take it seconds, and are as those of others."""
LOADED: Final = {("script", "src"), ("link", "href"), ("img", "src"), ("source", "srcset"), ("iframe", "src")}
ON_SCREENS: Final[tuple[tuple[Scheme, int], ...]] = (("light", 1280), ("dark", 1280), ("light", 360))


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its paragraphs."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self._script: dict[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        self._script = attributes if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is not None and self._script.get("type") != "application/json" and data.strip():
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def ids(self) -> set[str]:
        """The places that an anchor may lead to."""
        return {attributes[name] for _, attributes in self.tags for name in ("id", "name") if name in attributes}


class Site:
    """A built site."""

    def __init__(self, folder: Path, sources: Sources) -> None:
        self.folder = folder
        self.sources = sources
        self.pages: Mapping[str, Tags] = {
            path.relative_to(folder).as_posix(): Tags(path.read_text()) for path in sorted(folder.rglob("*.html"))
        }
        self.files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    def problem_of(self, page: str, link: str) -> str:
        """Return why a link of a page is dead; "" if it is not."""
        parts = urlsplit(urljoin(f"/{page}", link))
        path, anchor = unquote(parts.path).removeprefix("/"), unquote(parts.fragment)
        path = f"{path}index.html" if not path or path.endswith("/") else path
        if path not in self.files:
            return f"{page}: {link}: there is no {path}"
        if anchor and path in self.pages and anchor not in self.pages[path].ids():
            return f"{page}: {link}: {path} has no #{anchor}"
        return ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("manual") / "site"
    return Site(folder, build_site(folder))


@pytest.fixture(scope="module")
def archive(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "site.tar.xz"
    path.write_bytes(packed(site.folder))
    return path


@pytest.fixture(scope="module")
def url(archive: Path) -> Iterator[str]:
    with serving(archive) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with a_browser() as browser:
        yield browser


def test_every_page_of_the_manual_is_on_the_site(site: Site) -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - LEFT_OUT
    assert {re.sub(r"README\.md$", "index.md", path) for path in written} <= set(site.sources.pages)
    examples = {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    assert {f"examples/{name}.md" for name in examples} <= set(site.sources.pages)
    assert {re.sub(r"\.md$", ".html", path) for path in site.sources.pages} == set(site.pages)


def test_every_page_has_its_place_in_the_navigation(site: Site) -> None:
    found = navigation(site.sources.titles(), (DOCS / "README.md").read_text())
    assert sorted(pages_in(found)) == sorted(site.sources.pages)
    assert [name for one in found for name in one if name in SECTIONS] == [*SECTIONS]
    (groups,) = [one["How-to"] for one in found if "How-to" in one]
    others = [one[OTHER] for one in groups if isinstance(one, dict) and OTHER in one]
    assert others == [], "name a group for these in HOW_TO of tests/support/manual/navigation.py"


SECTIONS: Final = ("How-to", "Reference", "Explanation", "From other systems", "Decisions", "Glossary")


def test_every_link_leads_to_a_page_and_to_a_place_on_it(site: Site) -> None:
    dead = [
        site.problem_of(page, attributes[name])
        for page, tags in site.pages.items()
        for tag, attributes in tags.tags
        for name in ("href", "src", "srcset")
        if name in attributes and not attributes[name].startswith(("http:", "https:", "mailto:", "data:"))
    ]
    assert sorted(filter(None, set(dead))) == []


def test_a_link_that_leads_out_of_the_manual_is_text(site: Site) -> None:
    assert site.sources.unlinked == sorted(site.sources.unlinked, key=site.sources.unlinked.index)
    inside = [link for link in site.sources.unlinked if (DOCS / link.partition(": ")[2]).exists()]
    assert inside == []


def test_the_console_leads_to_pages_that_are_there(site: Site) -> None:
    links = {GUARDS, *PAGES.values(), *OF_GUARD.values()}
    assert sorted(filter(None, (site.problem_of("", link) for link in links))) == []


def test_nothing_is_loaded_from_elsewhere_and_every_address_is_relative(site: Site) -> None:
    for page, tags in site.pages.items():
        for tag, attributes in tags.tags:
            for name, value in attributes.items():
                if (tag, name) in LOADED:
                    assert not re.match(r"[a-z]+:|/", value), f"{page}: {value}"
                assert not (name == "href" and value.startswith("/")), f"{page}: {value}"
    for style in site.folder.rglob("*.css"):
        assert not re.findall(r"@import|url\((?!data:)[\"']?(?:https?:)?//", style.read_text()), style


def test_scripts_and_styles_are_files(site: Site) -> None:
    for page, tags in site.pages.items():
        assert tags.scripts == [], page
        for tag, attributes in tags.tags:
            assert tag != "style", page
            assert not [name for name in attributes if name == "style" or name.startswith("on")], f"{page}: {tag}"


def test_lists_and_tables_of_a_page_are_lists_and_tables(site: Site) -> None:
    for page in site.pages:
        html = re.sub(r"(?s)<(pre|script)\b.*?</\1>", "", (site.folder / page).read_text())
        for paragraph in re.findall(r"(?s)<p>(.*?)</p>", html):
            assert not re.search(r"^\s*(?:[-*] |\|.*\||\d+\. |```)", paragraph, re.MULTILINE), f"{page}: {paragraph}"


def test_the_file_in_the_wheel_is_small_and_the_same_each_time(site: Site, archive: Path) -> None:
    assert archive.stat().st_size < MAX_BYTES
    assert lzma.decompress(archive.read_bytes()) == tar_of(site.folder)


def test_each_page_can_be_searched(site: Site) -> None:
    items = json.loads((site.folder / "search.json").read_text())["items"]
    found = {one["location"].partition("#")[0] for one in items}
    decisions = {page for page in site.pages if page.startswith(("adr/queue/", "adr/fleet/"))}
    assert set(site.pages) - found - {"index.html"} == decisions


def test_licences_of_what_the_site_is_made_with_come_with_it(site: Site) -> None:
    assert "Permission is hereby granted" in (site.folder / "assets" / "LICENSE-zensical.txt").read_text()


@pytest.mark.parametrize(("scheme", "width"), ON_SCREENS)
def test_pages_fit_their_window_and_nothing_complains(browser: Browser, url: str, scheme: Scheme, width: int) -> None:
    with a_look(browser, scheme=scheme, width=width, url=url) as look:
        for path in SHOWN:
            open_page(look, f"{url}/docs/{path}")
            assert look.overflow() == [], path
            wide = look.page.evaluate(_CUT)
            assert wide == [], path
            assert is_dark(look) == (scheme == "dark"), path
            found = look.violations() if path in AUDITED else []
            assert [one for one in found if not ACCEPTED.match(one)] == [], path
        assert look.complained() == []


_CUT: Final = """() => [...document.querySelectorAll("article pre > code, article table")]
  .filter((one) => {
    const holder = one.closest(".md-typeset__scrollwrap") || one;
    return one.scrollWidth > holder.clientWidth + 1 && !["auto", "scroll"].includes(getComputedStyle(holder).overflowX);
  }).map((one) => one.outerHTML.slice(0, 120))"""
"""Code and tables that are wider than their place, and can't be scrolled."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_readable_without_scripts(browser: Browser, url: str, scheme: Scheme) -> None:
    with a_look(browser, scheme=scheme, width=360, scripts=False, url=url) as look:
        for path in ("", "reference/metrics.html"):
            assert look.page.goto(f"{url}/docs/{path}")
            text = look.page.inner_text("article")
            assert ("kill -9" if not path else "towline_queue_ready") in text
        assert look.page.locator("article table").first.is_visible()


def test_a_search_finds_pages_offline_and_opens_one(browser: Browser, url: str) -> None:
    with a_look(browser, url=url) as look:
        open_page(look, f"{url}{PREFIX}/docs/how-to/limits.html")
        look.page.keyboard.press("Control+k")
        look.page.keyboard.type("max_in_flight")
        first = look.page.locator("dialog ol a").first
        first.wait_for()
        address = first.evaluate("(link) => link.href")
        assert address.startswith(f"{url}{PREFIX}/docs/")
        first.click()
        look.page.wait_for_url(re.compile("h=max_in_flight"))
        assert "max_in_flight" in look.page.inner_text("article")
        assert look.complained() == []


def open_page(look: Look, address: str) -> None:
    """Open a page, and wait until its scripts have begun."""
    answer = look.page.goto(address)
    assert answer
    assert answer.status == 200, address
    look.page.wait_for_function("!document.documentElement.classList.contains('no-js')")


def is_dark(look: Look) -> bool:
    """Return whether the page's background is dark."""
    colour = str(look.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    return sum(float(one) for one in re.findall(r"[\d.]+", colour)[:3]) < 3 * 128
