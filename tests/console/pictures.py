"""The pictures of the manual: `python3 -m tests.console.pictures docs/console` tells the story, and keeps its pages.

Each page is taken in light, in dark and on a phone, as WebP, which a browser makes itself.
"""

import argparse
import base64
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import Page

from tests.console.browser import Scheme, a_browser, a_look
from tests.console.story import Camera, an_up, tell

FORMS: Final[tuple[tuple[str, Scheme, int, int], ...]] = (
    ("light", "light", 1120, 700),
    ("dark", "dark", 1120, 700),
    ("phone", "light", 390, 780),
)
"""The name, colours and window of each picture."""
MAX_BYTES: Final = 60_000
_QUALITIES: Final = (68, 50, 35, 25)


def a_camera(folder: Path) -> Camera:
    """Return a camera that writes into a folder."""

    def take(name: str, page: Page) -> None:
        for form, scheme, width, height in FORMS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": height})
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            (folder / f"{name}-{form}.webp").write_bytes(_taken(page))
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1280, "height": 800})

    return take


def _taken(page: Page) -> bytes:
    session = page.context.new_cdp_session(page)
    try:
        for quality in _QUALITIES:
            found = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
            data = base64.b64decode(found["data"])
            if len(data) <= MAX_BYTES:
                return data
    finally:
        session.detach()
    raise ValueError(f"a picture of {page.url} has {len(data):,} bytes, more than {MAX_BYTES:,}")


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where they go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory()))
        console = stack.enter_context(an_up(place))
        browser = stack.enter_context(a_browser())
        look = stack.enter_context(a_look(browser, url=console.removesuffix("console/")))
        tell(look.page, console, place, a_camera(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
