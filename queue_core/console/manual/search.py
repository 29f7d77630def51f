"""The index that a reader's browser searches: the sections of all pages. Made of them, so no release carries it. Pure.

Its form is that of zensical's `search.json`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import Final

INDEX: Final = "search.json"
UNSEARCHED: Final = ("adr/queue/", "adr/fleet/")
"""Pages that are left out: a reader who looks for a setting wants its guide, not its history."""

_CONFIG: Final = {"lang": ["en"], "separator": r'[\s\-_,:!=\[\]()\\"`/]+|\.(?!\d)'}
_ARTICLE: Final = re.compile(r"<article\b[^>]*>(.*)</article>", re.DOTALL)
_HEADING: Final = re.compile(r'<h([1-6]) id="([^"]+)"[^>]*>(.*?)(?:<a class="headerlink".*?</a>)?</h\1>', re.DOTALL)
_PATH: Final = re.compile(r'class="md-path__link">\s*<span class="md-ellipsis">(.*?)</span>', re.DOTALL)
_KEPT: Final = frozenset({"p", "ul", "ol", "li", "code", "pre"})
"""Tags that a result shows; text of all others is kept without them."""
_TAG: Final = re.compile(r"<!--.*?-->|<(/?)(\w+)[^>]*>", re.DOTALL)
_CELLS: Final = frozenset({"td", "th", "tr", "br"})
_CODE: Final = re.compile(r"(<pre>.*?</pre>)", re.DOTALL)


def search_index(pages: Mapping[str, bytes]) -> bytes:
    """Return the index of pages, by their paths."""
    items = [
        item
        for path in sorted(pages)
        if path.endswith(".html") and not path.startswith(UNSEARCHED)
        for item in _sections(path, pages[path].decode())
    ]
    return json.dumps({"config": _CONFIG, "items": items}, ensure_ascii=False, separators=(",", ":")).encode()


def _sections(path: str, html: str) -> Iterator[Mapping[str, object]]:
    found = _ARTICLE.search(html)
    headings = list(_HEADING.finditer(found[1])) if found else []
    if not found or not headings:
        return
    above = [_words(one) for one in _PATH.findall(html)[1:]]
    first = _words(headings[0][3])
    for place, heading in enumerate(headings):
        end = headings[place + 1].start() if place + 1 < len(headings) else len(found[1])
        yield {
            "location": path if place == 0 else f"{path}#{heading[2]}",
            "level": int(heading[1]),
            "title": _words(heading[3]),
            "text": _text(found[1][heading.end() : end]),
            "path": [*above, first],
            "tags": [],
        }


def _words(html: str) -> str:
    return " ".join(unescape(_TAG.sub("", html)).split())


def _text(html: str) -> str:
    """Return a section with the tags that results show, its lines as one outside of code."""
    kept = _TAG.sub(_shown, html)
    parts = _CODE.split(kept)
    return " ".join(part if place % 2 else " ".join(part.split()) for place, part in enumerate(parts)).strip()


def _shown(tag: re.Match[str]) -> str:
    name = (tag[2] or "").lower()
    if name in _KEPT:
        return f"<{tag[1]}{name}>"
    return " " if name in _CELLS else ""
