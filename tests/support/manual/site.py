"""Builds the site with zensical, and leaves in it only what a reader's browser uses. Nothing is fetched."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from queue_core.console.manual.search import INDEX, search_index
from tests.support.manual.navigation import as_toml, navigation, pages_in
from tests.support.manual.sources import DOCS, ROOT, Sources, read_sources

CONFIG: Final = ROOT / "zensical.toml"
ICON: Final = ROOT / "queue_core" / "console" / "static" / "towline.svg"
STYLES: Final = Path(__file__).parent / "manual.css"
UNUSED: Final = (
    "assets/stylesheets/classic",
    "assets/images/favicon.png",
    "sitemap.xml",
    "404.html",
    "objects.inv",
)
"""What zensical adds and no page of ours uses."""

_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_INLINE_STYLE: Final = re.compile(r'(\w+)\.appendChild\(\w+\("style",\{\},(\w+)\.toString\(\)\)\)')
"""How zensical's script styles its search: an element, which a strict policy forbids."""
_ADOPTED_STYLE: Final = r"\1.adoptedStyleSheets=[(sheet=>(sheet.replaceSync(\2.toString()),sheet))(new CSSStyleSheet)]"
_VERBATIM: Final = re.compile(r"(<pre\b.*?</pre>|<script\b.*?</script>|<textarea\b.*?</textarea>)", re.DOTALL)
_DARK: Final = re.compile(r"([^{}]*\[data-md-color-scheme=slate\][^{}]*)\{([^{}]*)\}")


class SiteError(Exception):
    """The site can't be built; the message is zensical's."""


def build_site(target: Path) -> Sources:
    """Build the site into a folder that is not there yet. Raises `SiteError`."""
    sources = read_sources()
    with TemporaryDirectory() as folder:
        stage = Path(folder)
        docs = stage / "docs"
        for path, text in sources.pages.items():
            page = docs / path
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text)
        for path, file in {**sources.files, "images/towline.svg": ICON}.items():
            (docs / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, docs / path)
        shutil.copyfile(STYLES, docs / "manual.css")
        order = navigation(sources.titles(), (DOCS / "README.md").read_text())
        assert sorted(pages_in(order)) == sorted(sources.pages)
        made = ["[project]", f"nav = {as_toml(order)}", 'extra_css = ["manual.css"]']
        config = CONFIG.read_text().replace("[project]", "\n".join(made), 1)
        (stage / "zensical.toml").write_text(config)
        _run_zensical(stage)
        shutil.copytree(stage / "build" / "pages", target)
    _prune(target)
    _darken(target)
    _obey_policy(target)
    for page in sorted(target.rglob("*.html")):
        page.write_text(_tight(_accessible(_without_inline_scripts(page, target))))
    pages = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*.html")}
    (target / INDEX).write_bytes(search_index(pages))
    (target / "assets" / "LICENSE-zensical.txt").write_text(_licence())
    return sources


def _run_zensical(stage: Path) -> None:
    """Run zensical apart: it keeps what it has read in its process."""
    command = [sys.executable, "-m", "zensical", "build", "--clean"]
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=stage, env=environment, capture_output=True, text=True, check=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    if done.returncode or "No issues found" not in said:
        raise SiteError(said)


def _prune(target: Path) -> None:
    for name in UNUSED:
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _darken(target: Path) -> None:
    """Add the rules of the dark scheme where the system is dark, after all others."""
    rules: list[str] = []
    for style in sorted((target / "assets" / "stylesheets").rglob("*.css")):
        for selector, body in _DARK.findall(style.read_text()):
            if ":not([data-md-color-scheme=slate])" not in selector:
                kept = selector.rpartition("}")[2].replace("color-scheme=slate", "color-scheme=default")
                rules.append(f"{kept}{{{body}}}")
    assert rules, "zensical's styles have a dark scheme"
    own = target / "manual.css"
    own.write_text(f"@media screen and (prefers-color-scheme:dark){{{''.join(rules)}}}\n{own.read_text()}")


def _obey_policy(target: Path) -> None:
    """Have zensical's script style its search by a sheet, not by an element."""
    (bundle,) = (target / "assets" / "javascripts").glob("bundle.*.js")
    text, count = _INLINE_STYLE.subn(_ADOPTED_STYLE, bundle.read_text())
    assert count == 1, "zensical's script makes one style element"
    bundle.write_text(text)


def _without_inline_scripts(page: Path, target: Path) -> str:
    """Return a page whose scripts are files, so that its policy can forbid all others."""

    def moved(found: re.Match[str]) -> str:
        name = f"assets/javascripts/{hashlib.sha256(found[1].encode()).hexdigest()[:12]}.js"
        (target / name).write_text(found[1])
        return f'<script src="{os.path.relpath(target / name, page.parent)}"></script>'

    return _SCRIPT.sub(moved, page.read_text())


def _accessible(html: str) -> str:
    """Return a page without what a screen reader stumbles over: a form of no use, two landmarks of one name."""
    html = re.sub(r'<form class="md-header__option" data-md-component="palette">.*?</form>', "", html, flags=re.DOTALL)
    html = html.replace('<nav class="md-path" aria-label="Navigation"', '<nav class="md-path" aria-label="Path"')
    return re.sub(r"<th[^>]*></th>", "<td></td>", html)


def _tight(html: str) -> str:
    """Return a page without the blank space that templates leave between lines; code is as it was."""
    parts = _VERBATIM.split(html)
    return "".join(part if place % 2 else re.sub(r"\s*\n\s*", "\n", part) for place, part in enumerate(parts))


def _licence() -> str:
    files = distribution("zensical").files or []
    return next(Path(str(one.locate())).read_text() for one in files if one.name == "LICENSE.md")
