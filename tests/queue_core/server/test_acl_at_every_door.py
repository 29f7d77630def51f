"""The acl of a queue counts at the native API as at Google's: one rule, whichever way a task is asked for."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from queue_core.errors import PermissionDeniedError
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs.roles import Role
from tests.support.servers import QUEUE, RunningServer, a_server

ANN, BOB, NOBODY = "ann-token-0123456789", "bob-token-0123456789", "nobody-token-0123456789"
ADMIN, VIEWER, PRODUCER = "admin-token-0123456789", "viewer-token-0123456789", "producer-token-01234567"
TOKENS = (
    AccessToken(Role.WORKER, ANN, "ann@example.com"),
    AccessToken(Role.WORKER, BOB, "bob@example.com"),
    AccessToken(Role.WORKER, NOBODY),
    AccessToken(Role.VIEWER, VIEWER, "viewer@example.com"),
    AccessToken(Role.PRODUCER, PRODUCER, "bob@example.com"),
    AccessToken(Role.ADMIN, ADMIN),
)
SPEC = QueueSpec(QUEUE, user_emails=("Ann@example.com",), writer_emails=("bob@example.com",))
USES: list[tuple[str, dict[str, list[str]]]] = [
    ("lease", {}),
    ("exchange", {}),
    ("renew", {"tokens": []}),
    ("release", {"tokens": []}),
    ("delete", {}),
    ("peek", {}),
    ("search", {}),
    ("history", {}),
    ("observe", {}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=TOKENS), spec=SPEC) as running:
        yield running


def ask(server: RunningServer, method: str, path: str, body: object, secret: str) -> tuple[int, dict[str, object]]:
    headers = [("content-type", "application/json"), ("authorization", f"Bearer {secret}")]
    reply = server.ask(method, path, None if body is None else json.dumps(body).encode(), headers=headers)
    return reply.status, reply.json()


@pytest.mark.parametrize(("verb", "body"), USES)
def test_tasks_are_used_by_the_users_of_the_acl(server: RunningServer, verb: str, body: object) -> None:
    statuses = {
        secret: ask(server, "POST", f"/v1/queues/{QUEUE}/{verb}", body, secret)[0]
        for secret in (ANN, BOB, NOBODY, ADMIN)
    }
    assert statuses == {ANN: 200, BOB: 403, NOBODY: 403, ADMIN: 200}


def test_tasks_are_added_by_its_writers(server: RunningServer) -> None:
    body = {"tasks": [{"text": "x"}]}
    for secret, status in ((ANN, 403), (BOB, 200), (PRODUCER, 200), (NOBODY, 403), (ADMIN, 200)):
        assert ask(server, "POST", f"/v1/queues/{QUEUE}/add", body, secret)[0] == status


def test_a_follow_up_task_needs_a_writer(server: RunningServer) -> None:
    deletion = {"deletions": [{"token": "1.1", "then": [{"text": "x"}]}]}
    for verb in ("delete", "exchange"):
        assert ask(server, "POST", f"/v1/queues/{QUEUE}/{verb}", deletion, ANN)[0] == 403


def test_counts_are_for_both_and_lists_leave_the_queue_out_for_others(server: RunningServer) -> None:
    for secret, is_shown in ((ANN, True), (BOB, True), (NOBODY, False), (VIEWER, False), (ADMIN, True)):
        assert (ask(server, "GET", f"/v1/queues/{QUEUE}/stats", None, secret)[0] == 200) == is_shown
        assert bool(ask(server, "GET", "/v1/queues", None, secret)[1]["queues"]) == is_shown
        assert bool(ask(server, "GET", "/v1/stats", None, secret)[1]["queues"]) == is_shown
        metrics = server.ask("GET", "/metrics", headers=[("authorization", f"Bearer {secret}")])
        assert (f'queue="{QUEUE}"'.encode() in metrics.body) == is_shown


def test_events_are_for_those_who_may_list_the_tasks(server: RunningServer) -> None:
    ask(server, "POST", f"/v1/queues/{QUEUE}/add", {"tasks": [{"text": "x"}]}, ADMIN)
    for secret, is_shown in ((ANN, True), (BOB, False), (VIEWER, False), (ADMIN, True)):
        assert bool(ask(server, "GET", "/v1/events", None, secret)[1]["events"]) == is_shown


def test_a_new_acl_counts_from_the_next_call_on() -> None:
    with (
        a_server(options=ServeOptions(tokens=TOKENS)) as server,
        closing(server.queue(token=NOBODY)) as queue,
        closing(server.queues(token=ADMIN)) as admin,
    ):
        queue.add(b"x")
        admin.put_queue(SPEC)
        for refused in (lambda: queue.add(b"y"), queue.lease, queue.peek, queue.stats):
            with pytest.raises(PermissionDeniedError):
                refused()
        admin.put_queue(QueueSpec(QUEUE))
        assert [lease.payload for lease in queue.lease()] == [b"x"]


def test_a_worker_makes_queues_and_changes_none(server: RunningServer) -> None:
    with closing(server.queues(token=NOBODY)) as queues, closing(server.queues(token=ADMIN)) as admin:
        spec = QueueSpec("made", max_leases=3)
        assert (queues.put_queue(spec), queues.put_queue(spec)) == (True, False)
        with pytest.raises(PermissionDeniedError):
            queues.put_queue(replace(spec, max_leases=4))
        with pytest.raises(PermissionDeniedError):
            queues.put_queue(QueueSpec(QUEUE))
        assert admin.queue("made").stats().queue == "made"
        assert {one.name: one for one in admin.queues()}["made"] == spec


def test_a_worker_makes_queues_in_its_scope_and_namespace_only() -> None:
    tokens = (AccessToken(Role.WORKER, ANN, queues=("shop--x*",)), AccessToken(Role.ADMIN, ADMIN))
    with a_server(options=ServeOptions(tokens=tokens)) as server, closing(server.queues(token=ANN)) as queues:
        queues.put_queue(QueueSpec("shop--xorders"))
        queues.queue("shop--xorders").add(NewTask(b"x"))
        for name in ("orders", "bank--xorders", "shop--", QUEUE):
            with pytest.raises(PermissionDeniedError):
                queues.put_queue(QueueSpec(name))
        for namespace, status in (("shop", 200), ("bank", 403), ("", 403), ("sho", 403), ("shop--xa", 403)):
            body = {"verb": "declare", "namespace": namespace, "queue": "q"}
            assert ask(server, "POST", "/v1/mailboxes", body, ANN)[0] == status, namespace
