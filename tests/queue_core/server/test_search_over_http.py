"""Searches and changes of all that match, over HTTP: the same as on a store, and the log says who changed how many."""

import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError, PermissionDeniedError, UnknownQueueError
from queue_core.server.base import events
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask, TaskState
from queue_core.verbs.criteria import Search
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server

SECRETS = {role: f"{role.name}-secret-0123456789" for role in Role}
DEAD = frozenset({TaskState.DEAD})


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    tokens = [AccessToken(role, secret) for role, secret in SECRETS.items()]
    tokens.append(AccessToken(Role.OPERATOR, "ops-secret-0123456789", "ops@example.com"))
    with a_server(options=ServeOptions(tokens=tuple(tokens))) as running:
        yield running


def queues_of(running: RunningServer, secret: str) -> HttpQueues:
    return HttpQueues(running.url, token=secret, retries=Retries(tries=1), timeout_seconds=10)


def test_what_matches_is_found_counted_and_changed_by_an_operator(running: RunningServer) -> None:
    admin, operator = queues_of(running, SECRETS[Role.ADMIN]), queues_of(running, "ops-secret-0123456789")
    queue = admin.queue(QUEUE)
    queue.add([NewTask(b"a cat", name=f"cat-{number}", tag="t") for number in range(3)])
    queue.release(queue.lease(3, worker="w"), dead_reason="no")
    queue.add([NewTask(b"a cat", name="late", delay_seconds=600)])
    page = operator.queue(QUEUE).search(Search(contains="cat", worker="w", states=DEAD), limit=2, payload_bytes=100)
    assert [(task.shown_name, task.payload) for task in page.tasks] == [("cat-0", b"a cat"), ("cat-1", b"a cat")]
    assert (page.total, page.next_after is not None) == (3, True)
    batch = operator.queue(QUEUE).change_matching("redrive", Search(worker="w"), dry_run=True)
    assert (batch.matched, batch.changed) == (3, 0)
    with capture_logs() as logged:
        batch = operator.queue(QUEUE).change_matching("redrive", Search(worker="w"), dry_run=False)
    assert (batch.matched, batch.changed, batch.next_after) == (3, 3, None)
    (entry,) = [one for one in logged if one["event"] == events.TASKS_CHANGED]
    assert (entry["by"], entry["action"], entry["tasks"], entry["queue"]) == ("ops@example.com", "redrive", 3, QUEUE)
    moved = operator.queue(QUEUE).change_matching(
        "postpone", Search(), dry_run=False, eta=Instant(admin.queue(QUEUE).peek(names=["late"]).tasks[0].eta + 1)
    )
    assert moved.changed == 1
    retagged = operator.queue(QUEUE).change_matching("retag", Search(worker="w"), dry_run=False, tag="other")
    assert retagged.changed == 3
    assert {task.tag for task in admin.queue(QUEUE).search(Search(worker="w")).tasks} == {"other"}
    with pytest.raises(PermissionDeniedError):
        operator.queue(QUEUE).change_matching("delete", Search(), dry_run=True)
    assert admin.queue(QUEUE).change_matching("delete", Search(contains="cat"), dry_run=False).changed == 4
    admin.close()
    operator.close()


def test_a_change_that_does_not_say_otherwise_only_counts(running: RunningServer) -> None:
    admin = queues_of(running, SECRETS[Role.ADMIN])
    admin.queue(QUEUE).add([NewTask(name="stays")])
    headers = [("authorization", f"Bearer {SECRETS[Role.ADMIN]}"), ("content-type", "application/json")]
    told = running.ask("POST", f"/v1/queues/{QUEUE}/delete-matching", b"{}", headers=headers)
    assert told.status == 200
    assert json.loads(told.body)["matched"] == 1
    assert admin.queue(QUEUE).stats().pending == 1
    admin.close()


def test_a_search_that_is_none_is_refused(running: RunningServer) -> None:
    viewer = queues_of(running, SECRETS[Role.VIEWER])
    with pytest.raises(UnknownQueueError):
        viewer.queue("nowhere").search(Search())
    with pytest.raises(InvalidRequestError):
        viewer.queue(QUEUE).search(Search(), scan=0)
    viewer.close()
