"""Times on pages are those of the viewer's clock, and name its zone; without JavaScript the server's, named too."""

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser

from queue_core.task import NewTask
from tests.console.browser import CHROMIUM, a_browser, a_look
from tests.support.servers import QUEUE, RunningServer, a_server

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium (Debian: chromium)")
ZONE = "Australia/Adelaide"  # half an hour off any zone that a server is likely to have


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as found:
        yield found


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server() as running, contextlib.closing(running.queue()) as queue:
        queue.add(NewTask(b"x", name="one"))
        yield running


def local(iso: str, zone: ZoneInfo | None) -> str:
    return datetime.fromisoformat(iso).astimezone(zone).strftime("%H:%M:%S")


def test_a_viewer_sees_the_times_of_its_own_zone_also_after_the_page_has_changed(
    browser: Browser, server: RunningServer
) -> None:
    with a_look(browser, url=server.url, zone=ZONE) as look:
        look.page.goto(f"{server.url}/console/queues/{QUEUE}")
        assert look.page.text_content("#zone") == ZONE
        added = look.page.locator("main time").first
        assert (added.text_content() or "").endswith(local(added.get_attribute("datetime") or "", ZoneInfo(ZONE)))
        with contextlib.closing(server.queue()) as queue:
            queue.add(NewTask(b"x", name="two"))
        look.page.wait_for_selector("main a:text-is('two')")
        times = look.page.locator("main time").all()
        assert len(times) >= 2
        for one in times:
            assert (one.text_content() or "").endswith(local(one.get_attribute("datetime") or "", ZoneInfo(ZONE)))
        assert look.complained() == []


def test_without_javascript_times_are_the_servers_and_its_zone_is_named(
    browser: Browser, server: RunningServer
) -> None:
    with a_look(browser, url=server.url, zone=ZONE, scripts=False) as look:
        look.page.goto(f"{server.url}/console/queues/{QUEUE}")
        assert look.page.text_content("#zone") == datetime.now().astimezone().tzname()  # noqa: TID251
        added = look.page.locator("main time").first
        assert added.text_content() == local(added.get_attribute("datetime") or "", None)


def test_every_time_on_a_page_is_marked_as_one(server: RunningServer) -> None:
    page = server.ask("GET", f"/console/queues/{QUEUE}", headers=[("accept", "text/html")]).body.decode()
    assert re.findall(r"\d\d:\d\d:\d\d", re.sub(r"<time[^>]*>[^<]*</time>", "", page)) == []
