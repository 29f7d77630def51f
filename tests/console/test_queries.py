"""Whatever an address or a form says, the answer is a page: what is wrong in it is told, and nothing of it runs."""

from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from queue_core.console.pages import PAGES
from tests.console.addresses import address_of
from tests.console.asking import ask
from tests.console.stage import ODD_QUEUE, POOL, QUEUE, ConsoleStage, a_console
from tests.console.texts import FOREIGN, MARK

PARAMETERS = ("q", "state", "tag", "after", "error", "before", "pool", "at", "event", "queue", "task", "worker", "back")
WRONG = (*FOREIGN[:4], "-1", "1e999", "1e300", "nan", "9" * 400, "ü", "²", "\x00", " ")


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsoleStage]:
    with a_console() as running:
        yield running


class _Marked(HTMLParser):
    """Notes elements that a stranger's text has made."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if MARK in dict(attrs) or any(name.startswith("on") for name, _ in attrs):
            self.found.append(tag)


def foreign_elements(text: str) -> list[str]:
    page = _Marked()
    page.feed(text)
    return page.found


@pytest.mark.parametrize("page", [*(page.path for page in PAGES), "/login"])
def test_a_wrong_address_is_answered_by_a_page(stage: ConsoleStage, page: str) -> None:
    for value in WRONG:
        query = urlencode([(name, value) for name in PARAMETERS])
        answer = ask(stage, f"{address_of(page)}?{query}")
        assert answer.status in (200, 400, 404, 422), (value, answer.text[:500])
        assert "content-security-policy" in answer.headers
        assert foreign_elements(answer.text) == []


@pytest.mark.parametrize("form", [{"workers": value} for value in WRONG[:-1]] + [{"workers": "2", "minutes": "soon"}])
def test_a_wrong_size_is_refused_with_a_sentence(stage: ConsoleStage, form: dict[str, str]) -> None:
    answer = ask(stage, f"pools/{POOL}/scale", form)
    assert answer.status in (400, 422)
    assert "whole number" in answer.text or "workers" in answer.text
    assert foreign_elements(answer.text) == []
    assert stage.files.read_overrides() == {}


def test_a_form_that_is_too_long_is_cut_and_does_nothing(stage: ConsoleStage) -> None:
    answer = ask(stage, f"pools/{POOL}/scale", {"filler": "x" * 200_000, "workers": "2"})
    assert answer.status in (303, 400, 413, 422)
    assert stage.files.read_overrides() == {}


def test_a_queue_is_called_as_people_call_it(stage: ConsoleStage) -> None:
    for address in ("queues", f"queues/{ODD_QUEUE}"):
        text = ask(stage, address).text
        assert "&lt;script foreign&gt;window.foreign=1&lt;/script&gt;" in text
        assert foreign_elements(text) == []


def test_a_server_without_a_supervisor_has_queues_only() -> None:
    with a_console(with_supervisor=False) as alone:
        overview = ask(alone, "")
        assert overview.status == 200
        assert "This server hosts the queues only. No supervisor is running" in overview.text
        said = "No supervisor runs for this store: `towline up` or `towline supervise` starts one."
        for page, status in (("workers", 200), ("hosts", 200), ("deaths", 404), ("settings", 404)):
            answer = ask(alone, page)
            assert (answer.status, "content-security-policy" in answer.headers) == (status, True)
            assert page == "hosts" or said in answer.text
            assert "/v1/" not in answer.text
        task = ask(alone, f"queues/{QUEUE}/tasks/letter-1")
        assert task.status == 200
