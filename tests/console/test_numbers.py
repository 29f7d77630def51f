"""No number in a form, an address or a call of the supervisor's API makes a server fail, at once or later."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

import pytest

from queue_core.console.pages import ACTIONS, PAGES
from tests.console.addresses import address_of, addresses
from tests.console.asking import ask
from tests.console.stage import POOL, QUEUE, SCHEDULE, WORKER, ConsoleStage, a_console
from tests.support.numbers import NUMBERS, NumberPlace, number_places
from tests.support.servers import Reply, RunningServer

NAMES = {"queue": QUEUE, "pool": POOL, "worker": WORKER, "schedule": SCHEDULE, "kind": "supervisors"}
FIELDS = ("workers", "minutes", "for", "postpone", "slo", "min", "max", "min_leases", "added_after", "window", "at")
QUERIES = ("after", "before", "at", "min_leases", "limit", "lines", "since", "scan", "full", "last")


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsoleStage]:
    with a_console() as running:
        yield running


def call(stage: ConsoleStage, method: str, path: str, body: bytes | None = None) -> Reply:
    return RunningServer(stage.thread, stage.store, stage.url).ask(method, path, body)


def assert_all_works(stage: ConsoleStage) -> None:
    """Ask for each page, and for what is read over the API."""
    for address in addresses():
        assert ask(stage, address).status in (200, 404), address
    for path in ("fleet", "queues", "stats", "schedules", "hosts", f"pools/{POOL}", "deaths", "decisions"):
        assert call(stage, "GET", f"/v1/{path}").status in (200, 404), path
    assert call(stage, "GET", "/metrics").status == 200


def test_no_number_of_the_supervisors_api_makes_a_call_fail(stage: ConsoleStage) -> None:
    document = json.loads(call(stage, "GET", "/openapi.json").body)
    others = ("/v1/queues", "/v1/mailboxes", "/v1/supervisor/reload")  # a reload waits by a clock that stands still
    own = {path: of for path, of in document["paths"].items() if not path.startswith(others)}
    places = tuple(number_places({**document, "paths": own}, NAMES))
    assert len(places) > 20
    for _, group in groupby(places, key=lambda place: place.path.partition("?")[0]):
        assert_no_number_fails(stage, list(group))
        assert_all_works(stage)


def assert_no_number_fails(stage: ConsoleStage, places: Sequence[NumberPlace]) -> None:
    for place in places:
        for number in NUMBERS:
            reply = call(stage, place.method, place.path_with(number), place.bytes_with(number))
            assert reply.status < 500, (place.name, number[:30], reply.body)


@pytest.mark.parametrize("at", ["1e305", "9223372036854775808", "-1"])
def test_an_instant_to_be_done_by_is_within_a_year(stage: ConsoleStage, at: str) -> None:
    answer = call(stage, "POST", f"/v1/pools/{POOL}/finish-by", b'{"at": %s}' % at.encode())
    assert (answer.status, answer.json()["type"]) == (422, "urn:towline:problem:time-refused")


@pytest.mark.parametrize(
    "action", [one for one in ACTIONS if one != "/reload"]
)  # it waits by a clock that stands still
def test_no_number_in_a_form_makes_a_page_fail(stage: ConsoleStage, action: str) -> None:
    for number in NUMBERS:
        for unit in ("", "d"):
            form = dict.fromkeys(FIELDS, f"{number}{unit}") | {"change": "postpone", "state": "dead"}
            answer = ask(stage, address_of(action), form)
            assert answer.status < 500, (number[:30], answer.text[:500])
    assert_all_works(stage)


@pytest.mark.parametrize("page", [page.path for page in PAGES])
def test_no_number_in_an_address_makes_a_page_fail(stage: ConsoleStage, page: str) -> None:
    for number in NUMBERS:
        query = "&".join(f"{name}={number}" for name in (*QUERIES, *FIELDS))
        answer = ask(stage, f"{address_of(page)}?{query[:60_000]}")
        assert answer.status < 500, (number[:30], answer.text[:500])
