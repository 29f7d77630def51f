"""A person at the console of a real fleet: an error is seen, mended and redriven, and a death is explained."""

from pathlib import Path

import pytest

from tests.console.browser import CHROMIUM, a_browser, a_look
from tests.console.story import an_up, tell

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is absent")


def test_an_error_is_seen_mended_and_redriven_and_a_death_is_one_click_from_its_task(tmp_path: Path) -> None:
    with an_up(tmp_path) as console, a_browser() as browser:
        address = console.removesuffix("console/")
        with a_look(browser, url=address) as look:
            seen: list[str] = []
            tell(look.page, console, tmp_path, lambda name, _page: seen.append(name))
            assert look.complained() == []
            assert len(seen) == len(set(seen)) > 10
