"""Tasks found by what they went through, changed after they were counted, one by one or all that match."""

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest

from queue_core.attempts.attempt import Failure
from queue_core.client.http_calls import HttpQueue
from queue_core.console.command_examples import curl, filter_examples, python, task_examples
from queue_core.console.errors_by_class import error_groups
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from queue_core.verbs.wire import Json
from tests.console.visits import Visitor
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server

SECRETS = {role: f"{str(role.name).lower()}-secret-0123456789" for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)}
HERE = f"queues/{QUEUE}"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    tokens = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
    with a_server(options=ServeOptions(tokens=tokens, console_writes=True)) as running:
        yield running


@pytest.fixture
def queue(running: RunningServer) -> Iterator[HttpQueue]:
    """The queue, emptied."""
    with closing(running.queue(token=SECRETS[Role.ADMIN])) as queue:
        queue.purge()
        queue.purge(dead="only")
        yield queue


def visitor(running: RunningServer, role: Role) -> Visitor:
    found = Visitor(running.port)
    found.post("login", {"token": SECRETS[role]})
    return found


def died(queue: HttpQueue, count: int, error: str, *, tag: str = "") -> None:
    """Let tasks die of an error that their worker reports."""
    queue.add([NewTask(b"a cat", tag=tag or None) for _ in range(count)])
    leased = queue.lease(count, worker="resize-1")
    queue.release(leased, dead_reason=f"{error}: no image", error=Failure("raised", error, "no image", "tasks.py:14"))


def test_a_search_finds_by_worker_error_and_payload_and_says_how_far_it_came(
    running: RunningServer, queue: HttpQueue
) -> None:
    died(queue, 2, "ValueError")
    died(queue, 1, "KeyError")
    queue.add([NewTask(b"a dog", name="dog")])
    looking = visitor(running, Role.VIEWER)
    shown = looking.get(f"{HERE}?error=ValueError&worker=resize-1&leases=1&younger=1h")
    assert ("Searched 4 of 4 tasks" in shown.text, shown.html.count("no image")) == (True, 2)
    assert "sse-connect" not in shown.html
    assert "dog" in visitor(running, Role.OPERATOR).get(f"{HERE}?contains=dog").text
    assert "No matching tasks" in looking.get(f"{HERE}?older=1h").text
    assert "sse-connect" in looking.get(f"{HERE}?state=dead").html


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("leases=many", "leases: write a whole number, not 'many'"),
        ("older=yesterday", "older: "),
        ("state=lost", "state: there is none called 'lost'"),
    ],
)
def test_a_filter_that_is_none_is_told(running: RunningServer, query: str, said: str) -> None:
    shown = visitor(running, Role.VIEWER).get(f"{HERE}?{query}")
    assert (shown.status, said in shown.text) == (200, True)


def test_all_that_match_are_counted_and_then_changed(running: RunningServer, queue: HttpQueue) -> None:
    died(queue, 3, "ValueError")
    died(queue, 1, "KeyError")
    operator = visitor(running, Role.OPERATOR)
    page = operator.get(f"{HERE}/matching?error=ValueError&change=redrive")
    assert "3 tasks would be ready again" in page.text
    counted = page.form("matching")
    without = {name: value for name, value in counted.items() if name != "as_of"}
    refused = operator.post(f"{HERE}/matching", without)
    assert (refused.status, "the instant of the count is missing" in refused.text) == (422, True)
    assert queue.stats().dead == 4
    died(queue, 2, "ValueError")
    shown = operator.post(f"{HERE}/matching", counted)
    assert f"3 tasks of {QUEUE} are ready again" in shown.text
    assert (queue.stats().dead, queue.stats().ready) == (3, 3)


def test_an_age_in_a_filter_is_of_the_instant_of_the_count(running: RunningServer, queue: HttpQueue) -> None:
    queue.add([NewTask(b"", name="old")])
    added_at = queue.peek().tasks[0].added_at
    admin = visitor(running, Role.ADMIN)
    eventually(lambda: "1 task would be deleted" in admin.get(f"{HERE}/matching?change=delete&older=1s").text)
    fields = {"change": "delete", "older": "1s", "as_of": str(added_at + 60_000_000), "back": HERE}
    too_young = admin.post(f"{HERE}/matching", {**fields, "counted_at": str(added_at + 900_000)})
    assert "0 tasks of" in too_young.text
    assert "1 task of" in admin.post(f"{HERE}/matching", {**fields, "counted_at": str(added_at + 1_100_000)}).text


def test_a_lesser_role_is_refused_by_the_api_whatever_it_sends(running: RunningServer, queue: HttpQueue) -> None:
    died(queue, 1, "ValueError")
    queue.add([NewTask(b"", name="kept")])
    watching, operator = visitor(running, Role.VIEWER), visitor(running, Role.OPERATOR)
    counted = operator.get(f"{HERE}/matching?change=delete")
    assert (counted.status, "delete-matching needs a token" in counted.text) == (403, True)
    for who, change in ((watching, "redrive"), (operator, "delete")):
        refused = who.post(f"{HERE}/matching", {"change": change, "as_of": "1", "counted_at": "1"})
        assert (refused.status, "needs a token of one of these roles" in refused.text) == (403, True)
    for verb in ("redrive", "release", "postpone", "delete"):
        assert watching.post(f"{HERE}/tasks/kept/{verb}", {"for": "10m"}).status == 403
    assert operator.post(f"{HERE}/tasks/kept/delete").status == 403
    assert (queue.stats().dead, queue.stats().ready) == (1, 1)


def test_all_that_match_get_another_tag_after_they_were_counted(running: RunningServer, queue: HttpQueue) -> None:
    queue.add([NewTask(b"x", tag="slwo"), NewTask(b"x", tag="slwo")])
    operator = visitor(running, Role.OPERATOR)
    counted = operator.get(f"{HERE}/matching?change=retag&tag=slwo&new_tag=slow")
    assert "2 tasks would be given another tag" in counted.text
    queue.add([NewTask(b"x", tag="slwo", name="since")])
    assert "2 tasks of" in operator.post(f"{HERE}/matching", counted.form("matching")).text
    assert {task.shown_name: task.tag for task in queue.peek().tasks}.pop("since") == "slwo"
    assert [task.tag for task in queue.peek().tasks].count("slow") == 2


def test_a_task_is_changed_as_its_state_allows(running: RunningServer, queue: HttpQueue) -> None:
    admin = visitor(running, Role.ADMIN)
    queue.add([NewTask(b"x", name="one"), NewTask(b"x", name="two", delay_seconds=60)])
    queue.lease(1, worker="w")
    here = f"{HERE}/tasks/one"
    assert "Release" in admin.get(here).text
    assert "was released" in admin.post(f"{here}/release", {"back": here}).text
    assert queue.stats().ready == 1
    late = admin.post(f"{here}/release")
    assert (late.status, "is no longer in flight" in late.text) == (409, True)
    before = queue.peek(names=["two"]).tasks[0].eta
    assert "postponed for 2 h" in admin.post(f"{HERE}/tasks/two/postpone", {"for": "2h", "back": HERE}).text
    assert queue.peek(names=["two"]).tasks[0].eta > before + 3_600_000_000
    assert "for: " in admin.post(f"{HERE}/tasks/two/postpone", {"for": "soon"}).text
    assert "deleted." in admin.post(f"{here}/delete", {"back": HERE}).text
    assert [task.shown_name for task in queue.peek().tasks] == ["two"]


def test_a_group_of_dead_tasks_is_redriven_by_its_error_or_by_name_where_none_was_reported(
    running: RunningServer, queue: HttpQueue
) -> None:
    died(queue, 2, "ValueError")
    queue.add([NewTask(b"") for _ in range(2)])
    queue.release(queue.lease(2, worker="w"), dead_reason="OSError: full")
    operator = visitor(running, Role.OPERATOR)
    shown = {error: operator.get(f"{HERE}/dead?error={error}") for error in ("ValueError", "OSError")}
    assert all("Redrive all 2" in page.text for page in shown.values())
    died(queue, 3, "ValueError")
    queue.add([NewTask(b"")])
    queue.release(queue.lease(1, worker="w"), dead_reason="OSError: full")
    for error, page in shown.items():
        answer = operator.post(f"{HERE}/dead/redrive?error={error}", page.form("dead/redrive"))
        assert f"2 of 2 dead tasks of {error}" in answer.text
    assert (queue.stats().ready, queue.stats().dead) == (4, 4)
    again = operator.post(f"{HERE}/dead/redrive?error=OSError", shown["OSError"].form("dead/redrive"))
    assert again.status == 422, "who was counted is ready again"
    assert operator.post(f"{HERE}/dead/redrive?error=OSError").status == 422


def test_a_group_is_matched_only_if_each_task_says_its_error() -> None:
    def dead(*errors: str) -> Json:
        attempts = [{"error": one} for one in errors]
        return {"name": "a", "reason": "ValueError: x", "tag": None, "eta": 1, "attempts": attempts}

    assert error_groups([dead("KeyError", "ValueError")])[0].is_matched
    assert not error_groups([dead("ValueError"), dead()])[0].is_matched


def test_a_task_whose_worker_died_is_of_the_signal_that_ended_it() -> None:
    dead: Json = {"name": "a", "reason": "its worker died 2 times while it ran", "tag": None, "eta": 1}
    assert [group.error for group in error_groups([{**dead, "attempts": [{"error": "SIGKILL"}]}])] == ["SIGKILL"]
    assert [group.error for group in error_groups([dead])] == ["its worker died 2 times while"]


def test_a_payload_is_kept_as_a_file_and_never_opened(running: RunningServer, queue: HttpQueue) -> None:
    queue.add([NewTask(b"<script>\x00" * 9_000, name="page")])
    looking = visitor(running, Role.OPERATOR)
    connection = looking.once("GET", f"/console/{HERE}/tasks/page/payload")
    assert connection.html == "<script>\x00" * 9_000
    assert connection.headers["content-disposition"] == "attachment; filename*=UTF-8''page.bin"
    assert connection.headers["content-type"] == "application/octet-stream"
    assert connection.headers["x-content-type-options"] == "nosniff"
    assert looking.get(f"{HERE}/tasks/none/payload").status == 404


def test_commands_quote_what_strangers_named() -> None:
    evil = "$(rm -rf ~); 'x"
    assert curl("POST", f"/v1/queues/{quote(evil, safe='')}/peek", {"tags": [evil]}).count("'\"'\"'") == 1
    assert filter_examples("q", {"tag": evil}, {})[0][1] == "towline search q --tag '$(rm -rf ~); '\"'\"'x'"
    assert repr(evil) in python("q", f"queue.peek(names=[{evil!r}])")
    assert [what for what, _ in task_examples("q", "t", "dead")][-1] == "redrive in Python"
    assert len(task_examples("q", "t", "ready")) == 3
