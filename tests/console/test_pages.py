"""Every page in a browser: whole without JavaScript, free of complaints, readable by all, in any width and colour."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from queue_core.console.pages import PAGES
from queue_core.task import NewTask
from tests.console.addresses import MORE, address_of, addresses
from tests.console.asking import ask
from tests.console.browser import CHROMIUM, Look, a_browser, a_look
from tests.console.stage import OTHER_HOST, POOL, QUEUE, ConsoleStage, a_console
from tests.console.texts import FOREIGN, MARK

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is absent")

PHONE = 360
ZOOMED = 320
"""CSS pixels that a window of 1,280 has at 400 %."""


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsoleStage]:
    with a_console() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as running:
        yield running


@pytest.fixture(scope="module")
def light(browser: Browser, stage: ConsoleStage) -> Iterator[Look]:
    with a_look(browser, url=stage.url) as look:
        yield look


@pytest.fixture(scope="module")
def dark(browser: Browser, stage: ConsoleStage) -> Iterator[Look]:
    with a_look(browser, scheme="dark", url=stage.url) as look:
        yield look


@pytest.fixture(scope="module")
def plain(browser: Browser, stage: ConsoleStage) -> Iterator[Look]:
    """A browser without JavaScript."""
    with a_look(browser, scripts=False, url=stage.url) as look:
        yield look


def visit(look: Look, stage: ConsoleStage, address: str) -> Page:
    """Go to a page of the console, and wait until it is live if it is to be."""
    look.page.goto(stage.console + address, wait_until="load")
    return look.page


def live(page: Page) -> None:
    """Wait until the page has got its first event."""
    expect(page.locator("#live-state")).to_have_text("live")


LOST = ("no/such/page", "queues/no-such-queue")
_NOT_FOUND = "console: Failed to load resource: the server responded with a status of 404 (Not Found)"


@pytest.mark.parametrize("address", [*addresses(), "login", *LOST])
def test_a_page_is_whole_and_inert_and_readable(
    light: Look, dark: Look, plain: Look, stage: ConsoleStage, address: str
) -> None:
    page = visit(light, stage, address)
    check_that_nothing_foreign_ran(page, stage, address)
    if page.locator("main[data-live]").count():
        live(page)
        check_that_nothing_foreign_ran(page, stage, address)
    if facts(visit(plain, stage, address)) != facts(page):  # rates are shown from a second sample on
        assert facts(visit(plain, stage, address)) == facts(visit(light, stage, address))
    assert light.violations() == []
    visit(dark, stage, address)
    assert dark.violations("color-contrast") == []
    for width, height in ((PHONE, 740), (ZOOMED, 256), (1280, 800)):
        page.set_viewport_size({"width": width, "height": height})
        assert light.overflow() == []
    complaints = {*light.complained(), *dark.complained()}
    assert complaints - ({_NOT_FOUND} if address in LOST else set()) == set()
    light.complaints.clear()
    dark.complaints.clear()


def check_that_nothing_foreign_ran(page: Page, stage: ConsoleStage, address: str) -> None:
    """Check that no stranger's text has become an element, a script, or a command of a terminal."""
    assert page.locator(f"[{MARK}]").count() == 0
    assert page.evaluate(f"window.{MARK} === undefined")
    assert page.url == stage.console + address
    assert page.locator("main, header, footer").count() == 3
    assert (
        page.locator(
            "script:not([src*='static/']), iframe, object, embed, svg:not(.trend, .states), base, meta[http-equiv]"
        ).count()
        == 0
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f]", page.content())


def facts(page: Page) -> list[str]:
    """Return what a page says, line by line, without what changes with time; closed parts included."""
    text = page.locator("main").evaluate(
        "(main) => [...main.querySelectorAll('h1, h2, p, th, td, dt, dd, li, pre, button, a, summary, label')]"
        ".filter((one) => !one.closest('.uplot') && !one.matches('button.copy, button.sort'))"
        ".map((one) => one.textContent.trim())"
    )
    return [re.sub(r"\d+(\.\d+)? (s|min|h|d)\b|\d+:\d\d(:\d\d)?", "TIME", one) for one in text]


@pytest.mark.parametrize("address", [*addresses(), "login", *LOST])
def test_a_page_names_no_other_host(stage: ConsoleStage, address: str) -> None:
    page = f"{stage.console}{address}"
    text = ask(stage, address).text
    found = re.findall(r'<[^>]*?\b(?:href|src|srcset|action|formaction|data|poster|sse-connect|hx-get)="([^"]*)"', text)
    assert len(found) > 5
    linked = {OTHER_HOST} if address == "hosts" else set()  # whose console that page links to
    for reference in found:
        scheme, host = urlsplit(urljoin(page, reference))[:2]
        assert f"{scheme}://{host}" in {stage.url, *linked}, reference
    assert "url(" not in text.replace("&", "") or address in MORE


def test_strangers_texts_are_shown(light: Look, stage: ConsoleStage) -> None:
    for address in MORE:
        page = visit(light, stage, address)
        if address.endswith(("/dead", "/tags", "/mailers-dead01")):
            whole = page.locator("main").text_content() or ""
            for text in FOREIGN[:5]:
                assert text in whole, address
            assert "\\x1b[2J" in whole
            assert "\\u202e" in whole


def test_an_event_of_a_stream_cannot_be_made_by_a_text(stage: ConsoleStage) -> None:
    path = "/console/live/queues/celery--3Cb-3E/dead"
    with ExitStack() as stack:
        connection = socket.create_connection(("127.0.0.1", urlsplit(stage.url).port or 0), timeout=30)
        stack.enter_context(connection)
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        stream = stack.enter_context(connection.makefile("rb"))
        while stream.readline().strip():
            continue
        read = b""
        while b"event: page" not in read or not read.endswith(b"\n\n"):
            size = int(stream.readline(), 16)
            read += stream.read(size)
            stream.readline()
    lines = read.split(b"\n")
    assert lines.count(b"event: page") == 1
    assert {line.partition(b":")[0] for line in lines if line} <= {b"", b"data", b"event", b"id", b"retry"}
    page = b"\n".join(line.removeprefix(b"data: ") for line in lines[lines.index(b"event: page") + 1 :])
    assert b"&lt;script foreign&gt;" in page
    assert b"\r" not in read


def test_every_control_is_reached_by_the_keyboard(light: Look, stage: ConsoleStage) -> None:
    for address in ("", f"queues/{QUEUE}", f"queues/{QUEUE}/tasks/letter-1", f"pools/{POOL}", "schedules", "events"):
        page = visit(light, stage, address)
        wanted = page.evaluate(_CONTROLS)
        seen: list[int] = []
        for _ in range(wanted + 30):
            page.keyboard.press("Tab")
            at = page.evaluate(_FOCUSED)
            if at is None or (seen and at == seen[0]):
                break
            seen.append(at)
        assert sorted(set(seen)) == list(range(wanted)), address
        assert seen == sorted(seen), address  # in the order of the page


_CONTROLS = """() => {
  const controls = "a[href], button, input:not([type=hidden]), select, summary, pre[tabindex]";
  const all = [...document.querySelectorAll(controls)]
    .filter((one) => one.checkVisibility());
  window.places = new Map(all.map((one, place) => [one, place]));
  return all.length;
}"""
_FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const outline = getComputedStyle(one);
  if (outline.outlineStyle === "none") throw new Error(`no focus is seen on ${one.outerHTML.slice(0, 200)}`);
  return window.places.get(one) ?? null;
}"""


def test_the_first_control_skips_to_the_content(light: Look, stage: ConsoleStage) -> None:
    page = visit(light, stage, "queues")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_what_is_typed_chosen_and_opened_stays_over_a_live_swap(light: Look, stage: ConsoleStage) -> None:
    page = visit(light, stage, f"queues/{QUEUE}")
    live(page)
    page.locator("input[name=tag]").fill("half a wo")
    page.locator("input[name=tag]").press("ArrowLeft")
    ready = stage.queues.queue(QUEUE).stats().ready
    stage.queues.queue(QUEUE).add(b"one more")
    expect(page.locator("dd").first).to_have_text(str(ready + 1))
    assert page.evaluate("document.activeElement.name") == "tag"
    assert page.locator("input[name=tag]").input_value() == "half a wo"
    assert page.evaluate("document.activeElement.selectionStart") == 8


def test_a_focused_link_and_an_opened_part_stay_over_a_live_swap(light: Look, stage: ConsoleStage) -> None:
    page = visit(light, stage, f"queues/{QUEUE}/tasks/letter-2")
    live(page)
    page.locator("details.same summary").click()
    page.locator(".crumbs a").nth(1).focus()
    stage.queues.queue(QUEUE).redrive(["letter-2"])
    page.locator(".state.ready").wait_for()
    assert page.evaluate("document.activeElement.textContent") == QUEUE
    assert page.locator("details.same").evaluate("(one) => one.open")


def test_a_page_lives_on_after_a_restart_of_the_server(browser: Browser) -> None:
    with ExitStack() as first, ExitStack() as then:
        before = first.enter_context(a_console())
        page = visit(then.enter_context(a_look(browser, url=before.url)), before, f"queues/{QUEUE}")
        live(page)
        first.close()
        expect(page.locator("#live-state")).to_have_text("not connected: retrying")
        after = then.enter_context(a_console(port=urlsplit(before.url).port or 0))
        queue = after.queues.queue(QUEUE)
        queue.add([NewTask(b"new") for _ in range(5)])
        expect(page.locator("dd").first).to_have_text(str(queue.stats().ready), timeout=60_000)
        expect(page.locator("#live-state")).to_have_text("live")


def test_a_chart_has_its_table_and_a_click_asks_why(light: Look, stage: ConsoleStage) -> None:
    page = visit(light, stage, f"pools/{POOL}")
    page.locator("figure canvas").wait_for()
    assert page.locator("figure[data-chart=points] canvas").count() == 1
    page.locator("summary", has_text="Show as table").click()
    assert page.locator("#points tbody tr").count() == 14
    box = page.locator("figure .u-over").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url("**/pools/mailers?at=*")
    assert "as it was at" in (page.locator(".heading").text_content() or "")


def test_nothing_moves_for_those_who_want_no_motion(light: Look, stage: ConsoleStage) -> None:
    page = visit(light, stage, "queues")
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => { const style = getComputedStyle(one);"
        " return parseFloat(style.transitionDuration) > 0.001 || style.animationName !== 'none'; })"
        ".map((one) => one.outerHTML.slice(0, 100))"
    )
    assert moving == []


def test_counters_are_the_only_live_region(stage: ConsoleStage) -> None:
    for page in PAGES:
        text = ask(stage, address_of(page.path)).text
        assert not re.findall(r'aria-live="(?!polite)|role="(?:log|timer|marquee)"', text)
