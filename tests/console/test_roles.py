"""Roles are checked where a thing is done: by hand, a form of a lesser role is refused by the API."""

import re
from collections.abc import Iterator, Mapping
from html import unescape
from urllib.parse import urljoin

import pytest

from orchestrator.config.worker_requests import NO_WORKER_REQUESTS
from queue_core.console.pages import ACTIONS
from queue_core.verbs.roles import Role
from tests.console.addresses import address_of, addresses
from tests.console.asking import ask, logged_in
from tests.console.stage import DEAD_TASK, ODD_QUEUE, POOL, QUEUE, WORKER, ConsoleStage, a_console
from tests.console.texts import FOREIGN

OPERATE = Role.OPERATOR | Role.ADMIN
MAY: Mapping[str, Role] = {
    "/drain": OPERATE,
    "/reload": OPERATE,
    "/queues/{queue}/pause": OPERATE,
    "/queues/{queue}/resume": OPERATE,
    "/queues/{queue}/dead/redrive": OPERATE,
    "/queues/{queue}/matching": OPERATE,
    "/queues/{queue}/tasks/{task}/redrive": OPERATE,
    "/queues/{queue}/tasks/{task}/release": OPERATE,
    "/queues/{queue}/tasks/{task}/postpone": OPERATE,
    "/queues/{queue}/tasks/{task}/delete": Role.ADMIN,
    "/pools/{pool}/scale": OPERATE,
    "/pools/{pool}/unscale": OPERATE,
    "/pools/{pool}/pause": OPERATE,
    "/pools/{pool}/resume": OPERATE,
    "/pools/{pool}/replace": OPERATE,
    "/workers/{worker:path}/drain": OPERATE,
    "/workers/{worker:path}/kill": Role.ADMIN,
    "/schedules/{schedule:path}/run": OPERATE | Role.PRODUCER | Role.WORKER,
    "/schedules/{schedule:path}/pause": OPERATE,
    "/schedules/{schedule:path}/resume": OPERATE,
}
"""Who may do what: every action of the console has its line."""
COUNTED = {"as_of": "4000000000000000", "counted_at": "1"}
"""The fields of a form that shows a count."""
FORMS: Mapping[str, Mapping[str, str]] = {
    "/pools/{pool}/scale": {"workers": "2", "minutes": "5"},
    "/queues/{queue}/matching": {"change": "redrive", "state": "dead", **COUNTED},
    "/queues/{queue}/dead/redrive": COUNTED,
    "/queues/{queue}/tasks/{task}/postpone": {"for": "10m"},
}
QUERIES: Mapping[str, str] = {"/queues/{queue}/dead/redrive": "?error=ValueError"}
CHANGE_NOTHING = {"logout", f"pools/{POOL}/what-if"}
NOT_NOW = {
    "/queues/{queue}/resume",
    "/queues/{queue}/tasks/{task}/postpone",
    "/schedules/{schedule:path}/resume",
    "/pools/{pool}/unscale",
}
"""Actions of states that nothing of the stage is in."""
ROLES = {str(role.name).lower(): role for role in Role}


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsoleStage]:
    with a_console(roles=tuple(Role)) as running:
        yield running


def test_every_action_has_a_line_that_says_who_may() -> None:
    assert set(ACTIONS) == set(MAY)


@pytest.mark.parametrize("path", MAY)
def test_a_lesser_role_is_refused_by_the_api(stage: ConsoleStage, path: str) -> None:
    for role in Role:
        if role & MAY[path]:
            continue
        answer = ask(
            stage, address_of(path) + QUERIES.get(path, ""), FORMS.get(path, {}), cookie=logged_in(stage, role)
        )
        assert answer.status == 403, role
        assert "needs a token of one of these roles" in answer.text, role
    queue = stage.queues.queue(QUEUE)
    assert not queue.stats().paused
    assert [task.name for task in queue.peek(names=[DEAD_TASK]).tasks] == [DEAD_TASK]
    assert not stage.files.is_drained()
    assert stage.files.read_overrides() == {}
    assert stage.files.read_worker_requests() == NO_WORKER_REQUESTS


def test_all_that_match_are_deleted_by_administrators_only(stage: ConsoleStage) -> None:
    before = stage.queues.queue(QUEUE).stats()
    for role in set(Role) - {Role.ADMIN}:
        answer = ask(stage, f"queues/{QUEUE}/matching", {"change": "delete", **COUNTED}, cookie=logged_in(stage, role))
        assert answer.status == 403
    assert stage.queues.queue(QUEUE).stats().ready == before.ready


def test_without_writes_nobody_changes_anything_and_no_page_has_a_button() -> None:
    with a_console(roles=tuple(Role), writes=False) as stage:
        for session in [logged_in(stage, role) for role in Role]:
            for path in MAY:
                answer = ask(stage, address_of(path) + QUERIES.get(path, ""), FORMS.get(path, {}), cookie=session)
                assert (answer.status, "read-only" in answer.text) == (403, True)
        drawn = {action for address in addresses() for action in actions_on(stage, address, session)}
        assert drawn == CHANGE_NOTHING


@pytest.mark.parametrize("role", Role, ids=ROLES)
def test_a_button_is_drawn_for_those_who_may(stage: ConsoleStage, role: Role) -> None:
    session = logged_in(stage, role)
    drawn = {action for address in addresses() for action in actions_on(stage, address, session)} - CHANGE_NOTHING
    refused = {action for action in drawn if not any(_is(action, path) and role & may for path, may in MAY.items())}
    assert refused == set()
    if role is Role.ADMIN:
        absent = {path for path in MAY if not any(_is(action, path) for action in drawn)}
        assert absent <= NOT_NOW


def _is(action: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", path.lstrip("/")), action) is not None


def actions_on(stage: ConsoleStage, address: str, session: str) -> list[str]:
    """Return where the forms of a page are sent to, below the console."""
    answer = ask(stage, address, cookie=session)
    assert answer.status in (200, 403), (address, answer.text[-500:])
    found = re.findall(r'<form method="post" action="(?:\.\./|\./)*([^"]*)"', answer.text)
    return [unescape(one).partition("?")[0] for one in found]


def test_dead_tasks_of_any_reason_are_redriven_by_their_page_s_own_form() -> None:
    with a_console() as stage:
        queue = stage.queues.queue(ODD_QUEUE)
        before = queue.stats().dead
        groups = re.findall(r'href="[^"]*/dead\?error=([^"#]*)"', ask(stage, f"queues/{ODD_QUEUE}/dead").text)
        assert len(groups) > len(FOREIGN) // 2
        for error in groups:
            page = ask(stage, f"queues/{ODD_QUEUE}/dead?error={unescape(error)}").text
            (action,) = re.findall(r'action="([^"]*/redrive[^"]*)"', page)
            fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page[page.index(action) :]))
            sent = {name: unescape(value) for name, value in fields.items()}
            address = urljoin(f"queues/{ODD_QUEUE}/dead", unescape(action)).lstrip("./")
            assert ask(stage, address, sent).status == 303
        assert (before, queue.stats().dead) == (len(FOREIGN), 0)


def test_orders_are_done_and_told_on_the_page(stage: ConsoleStage) -> None:
    session = logged_in(stage, Role.OPERATOR)
    counted = {"back": "queues", "as_of": str(stage.queues.queue(QUEUE).stats().as_of)}
    answer = ask(stage, f"queues/{QUEUE}/dead/redrive?error=ValueError", counted, cookie=session)
    assert (answer.status, answer.headers["location"].endswith("/queues")) == (303, True)
    page = ask(stage, "queues", cookie=f"{session}; {answer.cookie}")
    assert "7 of 7 dead tasks of ValueError in mail are ready again." in page.text
    assert stage.queues.queue(QUEUE).stats().dead == 0


def test_an_order_about_a_worker_is_confirmed_with_what_it_holds(stage: ConsoleStage) -> None:
    session, here = logged_in(stage, Role.ADMIN), f"workers/{WORKER}"
    page = ask(stage, here, cookie=session).text
    drain, kill = (page.index(f"{verb}…") for verb in ("Drain", "Kill"))
    for at in (drain, kill):
        assert "It is running 1 task" in page[at : at + 300]
    assert "restarts at once" in page[kill : kill + 400]
    answer = ask(stage, f"{here}/kill", {"back": here}, cookie=session)
    assert answer.status == 303
    page = ask(stage, here, cookie=f"{session}; {answer.cookie}").text
    assert f"Worker {WORKER}: it is killed; its task runs again at once, and the lease does not count." in page
    order = stage.files.read_worker_requests().workers[WORKER]
    assert (order.verb, order.by) == ("kill", "a caller of role admin")
    answer = ask(stage, f"pools/{POOL}/replace", {"back": f"pools/{POOL}"}, cookie=session)
    page = ask(stage, f"pools/{POOL}", cookie=f"{session}; {answer.cookie}").text
    assert "2 workers are replaced, new before old; none is cut." in page
    assert POOL in stage.files.read_worker_requests().pools
