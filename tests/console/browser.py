"""Debian's Chromium, driven by Playwright; pages that note whatever they should not have done."""

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, cast

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request, sync_playwright

AXE: Final = Path(__file__).parent / "axe" / "axe.min.js.gz"
"""axe-core 4.14.1, https://registry.npmjs.org/axe-core/-/axe-core-4.14.1.tgz; under the Mozilla Public License 2.0."""
AXE_SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
CHROMIUM: Final = shutil.which("chromium")
LONGEST_MILLISECONDS: Final = 30_000
_LISTEN: Final = """
window.noted = [];
addEventListener("securitypolicyviolation",
  (event) => noted.push(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""

Scheme = Literal["light", "dark"]


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Start Chromium; a page of it reaches no other host than this one."""
    assert CHROMIUM
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Look:
    """A page of a browser, with all that it complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def complained(self) -> list[str]:
        """Return what the page, its policy and its console have said so far."""
        noted = cast("list[str]", self.page.evaluate("window.noted || []"))
        return [*self.complaints, *noted]

    def violations(self, *rules: str) -> list[str]:
        """Return what axe-core finds: each of its rules, or of the given ones, with the elements that break it."""
        self.page.evaluate(gzip.decompress(AXE.read_bytes()).decode())
        only = f"{{runOnly: {json.dumps(rules)}}}" if rules else "{}"
        found = self.page.evaluate(f"axe.run(document, {only}).then((found) => found.violations)")
        return [
            f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in found
            for node in one["nodes"]
        ]

    def overflow(self) -> list[str]:
        """Return the elements that make the page wider than its window; none: it has no horizontal scroll."""
        return cast("list[str]", self.page.evaluate(_WIDE))


_WIDE: Final = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const found = [...document.body.querySelectorAll("*")].filter((one) =>
    one.getBoundingClientRect().right > wide + 1 && !one.closest(".scroll, pre, .cut"));
  return [`${document.documentElement.scrollWidth} > ${wide}`, ...found.map((one) => one.outerHTML.slice(0, 150))];
}"""


@contextmanager
def a_look(
    browser: Browser,
    *,
    scheme: Scheme = "light",
    width: int = 1280,
    height: int = 800,
    scripts: bool = True,
    cookie: str = "",
    url: str = "",
    zone: str | None = None,
) -> Iterator[Look]:
    """Open an empty page; `cookie`: a session, as `name=value`, for `url`; `zone`: the viewer's."""
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": height},
        java_script_enabled=scripts,
        reduced_motion="reduce",
        timezone_id=zone,
    )
    try:
        context.set_default_timeout(LONGEST_MILLISECONDS)
        if scripts:
            context.add_init_script(_LISTEN)
        if cookie:
            _keep(context, cookie, url)
        yield watched(context.new_page(), allowed=url)
    finally:
        context.close()


def _keep(context: BrowserContext, cookie: str, url: str) -> None:
    name, _, value = cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": url}])


def watched(page: Page, *, allowed: str) -> Look:
    """Note a page's errors, dialogs, and requests to any other place than `allowed`."""
    look = Look(page)
    note = look.complaints.append

    def refuse(dialog: Dialog) -> None:
        note(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check_place(asked: Request) -> None:
        if not asked.url.startswith((allowed, "data:")):
            note(f"asked: {asked.url}")

    page.on("console", lambda message: note(f"console: {message.text}") if message.type in _BAD else None)
    page.on("pageerror", lambda error: note(f"error: {error}"))
    page.on("dialog", refuse)
    page.on("request", check_place)
    page.on("popup", lambda other: note(f"popup: {other.url}"))
    return look


_BAD: Final = frozenset({"error", "warning"})
