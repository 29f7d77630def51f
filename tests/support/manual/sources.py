"""The Markdown of the site: the pages of `docs/` and of the examples, with links that hold on the site alone."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
DOCS: Final = ROOT / "docs"

OUTSIDE: Final = {
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository that are the site's too."""
LEFT_OUT: Final = frozenset({"README.md", "console/README.md"})
"""Pages of `docs/` that the site has not: the list for readers of the repository, and pictures of the console, in which
the site is itself."""
PICTURES: Final = (".svg", ".webp", ".png")

_FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
_LINK: Final = re.compile(r"(?P<picture>!?)\[(?P<text>(?:\[[^\]]*\]|[^\[\]])*)\]\((?P<target>[^()\s]+)\)")
_SOURCE: Final = re.compile(r"(?P<name>\b(?:src|srcset|href))=\"(?P<target>[^\"]+)\"")
_STEERING: Final = re.compile(r"^ *<!-- run: .*?-->\n", re.MULTILINE | re.DOTALL)
_TITLE: Final = re.compile(r"^# +(.+)$", re.MULTILINE)


@dataclass
class Sources:
    """The pages of a site by their paths there, and what they show."""

    pages: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    unlinked: list[str] = field(default_factory=list)
    """Links to files that are not on the site, each with its page: they are text there."""

    def titles(self) -> dict[str, str]:
        """Return the title of each page, without marks."""
        return {path: title_of(text) for path, text in self.pages.items()}


def title_of(text: str) -> str:
    """Return the first heading of a page, without marks."""
    found = _TITLE.search(text)
    assert found, f"a page begins with a heading: {text[:80]!r}"
    return re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", found[1]).strip()


def read_sources() -> Sources:
    """Return the site's pages as they are built."""
    places = dict(_places())
    made = Sources()
    for source, path in places.items():
        text = source.read_text()
        made.pages[path] = _staged(text, source, path, places, made)
    return made


def _places() -> Iterator[tuple[Path, str]]:
    """Yield each page with its path on the site."""
    for page in sorted(DOCS.rglob("*.md")):
        path = page.relative_to(DOCS).as_posix()
        if path not in LEFT_OUT:
            yield page, re.sub(r"(^|/)README\.md$", r"\1index.md", path)
    for name, path in OUTSIDE.items():
        yield ROOT / name, path
    for page in sorted((ROOT / "examples").glob("*/README.md")):
        yield page, f"examples/{page.parent.name}.md"
    yield ROOT / "examples" / "README.md", "examples/index.md"


def _staged(text: str, source: Path, path: str, places: dict[Path, str], made: Sources) -> str:
    text = _STEERING.sub("", text)
    fence, done, prose = "", [], list[str]()

    def finish() -> None:
        linked = _linked("\n".join([*prose, ""]), source, path, places, made) if prose else ""
        done.append(_SOURCE.sub(_at_site(source, path, places, made), linked))
        prose.clear()

    for line in text.splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            finish()
            fence = found[2]
            done.append(f"{found[1]}{found[2]}{_heading(found[3])}\n")
        elif fence:
            fence = "" if found and found[2].startswith(fence) and not found[3].strip() else fence
            done.append(f"{line}\n")
        else:
            prose.append(line)
    finish()
    return "".join(done)


def _heading(info: str) -> str:
    """Return what a block's first line says, without words that are for the tests."""
    return re.sub(r"\s+append\b", "", info)


def _linked(text: str, source: Path, path: str, places: dict[Path, str], made: Sources) -> str:
    """Return prose with its links as they are on the site; what is in backticks stays."""

    def changed(found: re.Match[str]) -> str:
        if text[text.rfind("\n\n", 0, found.start()) + 1 : found.start()].count("`") % 2:
            return found[0]
        target = _target(found["target"], source, path, places, made)
        if target is None:
            made.unlinked.append(f"{source.relative_to(ROOT)}: {found['target']}")
            return "" if found["picture"] else found["text"]
        return f"{found['picture']}[{found['text']}]({target})"

    return _LINK.sub(changed, text)


def _at_site(source: Path, path: str, places: dict[Path, str], made: Sources) -> Callable[[re.Match[str]], str]:
    def changed(found: re.Match[str]) -> str:
        target = _target(found["target"], source, path, places, made)
        return f'{found["name"]}="{target or found["target"]}"'

    return changed


def _target(link: str, source: Path, path: str, places: dict[Path, str], made: Sources) -> str | None:
    """Return where a link leads on the site; None: to nothing that the site has."""
    if "://" in link or link.startswith(("#", "mailto:", "data:")):
        return link
    name, mark, anchor = link.partition("#")
    found = (source.parent / name).resolve()
    if found == DOCS / "README.md":
        found = DOCS / "index.md"
    if found.is_dir():
        found = found / "README.md"
    if found in places:
        return f"{os.path.relpath(places[found], Path(path).parent)}{mark}{anchor}"
    if found.suffix in PICTURES and found.is_relative_to(DOCS):
        at = found.relative_to(DOCS).as_posix()
        made.files[at] = found
        return os.path.relpath(at, Path(path).parent)
    return None
