"""Push queues of a queue.yaml are remembered by their names, so that pull calls on them are refused as Google's are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.google.appengine import messages
from queue_core.google.appengine.codes import TaskQueueErrorCode
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.google.queue_files.plan import plan_of
from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.stores import open_store
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.commands import Commands
from tests.support.google.appengine_calls import (
    a_lease,
    a_modification,
    an_add,
    bulk_add,
    call,
    code_of,
    response_to,
    results,
)
from tests.support.servers import QUEUE, RunningServer, a_server, a_timed_server
from tests.support.stores.stores import STORES, opened

FILE = """\
queue:
- {name: mail, rate: 5/s}
- {name: thumbs, mode: pull}
"""
TASK = ProtoRecord(task_name=b"t", eta_usec=1)

CALLS = [
    pytest.param(lambda s, q: call(s, "QueryAndOwnTasks", a_lease(queue_name=q)), id="a lease"),
    pytest.param(lambda s, q: call(s, "QueryAndOwnTasks", a_lease(queue_name=q, max_tasks=0)), id="a wrong lease"),
    pytest.param(lambda s, q: call(s, "ModifyTaskLease", a_modification(TASK, 5.0, queue_name=q)), id="a modification"),
    pytest.param(lambda s, q: call(s, "Add", an_add(queue_name=q)), id="an add"),
    pytest.param(lambda s, q: bulk_add(s, [an_add(queue_name=q)] * 2), id="adds"),
    pytest.param(lambda s, q: bulk_add(s, [an_add(), an_add(queue_name=q)]), id="an add among others"),
    pytest.param(lambda s, q: bulk_add(s, [an_add(queue_name=q, mode=messages.PUSH)]), id="a push task"),
]


def apply(queues: LocalQueues, text: str) -> None:
    """What `towline queues apply` does."""
    plan = plan_of(read_queue_yaml(text), queues.queues())
    for change in plan.changes:
        if change.spec is not None:
            queues.put_queue(change.spec)
        if change.pausing == "pause":
            queues.queue(change.queue).pause()
        elif change.pausing == "resume":
            queues.queue(change.queue).resume()


def modes(queues: LocalQueues) -> dict[str, tuple[str, bool]]:
    return {spec.name: (spec.mode, spec.paused) for spec in queues.queues()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("queue", [b"mail", b"default"])
def test_a_pull_call_on_a_push_queue_is_refused_for_its_mode(
    server: RunningServer, queue: bytes, call: Callable[[RunningServer, bytes], ProtoRecord]
) -> None:
    apply(LocalQueues(QueueService(server.store)), FILE + f"- {{name: {QUEUE}, mode: pull}}\n")
    assert code_of(call(server, queue)) == TaskQueueErrorCode.INVALID_QUEUE_MODE
    assert results(server, an_add()) == [TaskQueueErrorCode.OK]


def test_default_is_a_pull_queue_once_it_is_made_one(server: RunningServer) -> None:
    apply(LocalQueues(QueueService(server.store)), FILE + "- {name: default, mode: pull}\n")
    assert code_of(call(server, "QueryAndOwnTasks", a_lease(queue_name=b"default"))) == TaskQueueErrorCode.OK
    assert results(server, an_add(queue_name=b"default")) == [TaskQueueErrorCode.OK]


def test_default_is_a_push_queue_when_the_file_says_so(server: RunningServer) -> None:
    queues = LocalQueues(QueueService(server.store))
    apply(queues, "queue:\n- {name: default, mode: pull}\n")
    apply(queues, "queue:\n- {name: default, rate: 1/s}\n")
    assert (
        code_of(call(server, "QueryAndOwnTasks", a_lease(queue_name=b"default")))
        == TaskQueueErrorCode.INVALID_QUEUE_MODE
    )


def test_a_queue_that_changes_its_mode_is_refused_and_let_in_within_a_second() -> None:
    with a_timed_server() as (server, clock):
        queues = LocalQueues(QueueService(server.store))
        assert results(server, an_add()) == [TaskQueueErrorCode.OK]
        apply(queues, f"queue:\n- {{name: {QUEUE}, rate: 1/s}}\n")
        clock.advance(1.0)
        assert code_of(bulk_add(server, [an_add()])) == TaskQueueErrorCode.INVALID_QUEUE_MODE
        apply(queues, f"queue:\n- {{name: {QUEUE}, mode: pull}}\n")
        clock.advance(1.0)
        assert results(server, an_add()) == [TaskQueueErrorCode.OK]
        assert len(response_to(server, "QueryAndOwnTasks", a_lease()).all_records("task")) == 2


def test_statistics_and_lists_tell_of_a_push_queue(server: RunningServer) -> None:
    apply(LocalQueues(QueueService(server.store)), FILE)
    stats = response_to(server, "FetchQueueStats", ProtoRecord(queue_name=[b"mail"])).all_records("queuestats")
    assert [one.integer("num_tasks") for one in stats] == [0]
    listed = response_to(server, "FetchQueues", ProtoRecord(app_id=b"", max_rows=10)).all_records("queue")
    assert {one.octets("queue_name"): one.integer("mode") for one in listed} == {
        b"mail": messages.PUSH,
        b"thumbs": messages.PULL,
        QUEUE.encode(): messages.PULL,
    }


@pytest.mark.parametrize("kind", STORES)
def test_every_store_remembers_the_mode_and_a_second_look_finds_nothing_to_do(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        queues = LocalQueues(QueueService(store))
        apply(queues, FILE)
        assert modes(queues) == {"mail": ("push", True), "thumbs": ("pull", False)}
        assert plan_of(read_queue_yaml(FILE), queues.queues()).is_empty
        apply(queues, "queue:\n- {name: mail, mode: pull}\n")
        assert modes(queues) == {"mail": ("pull", False), "thumbs": ("pull", True)}


def test_the_mode_is_remembered_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    first = LocalQueues(QueueService(open_store(url)))
    apply(first, FILE)
    first.close()
    with a_server(open_store(url), spec=QueueSpec("other")) as server:
        assert (
            code_of(call(server, "QueryAndOwnTasks", a_lease(queue_name=b"mail")))
            == TaskQueueErrorCode.INVALID_QUEUE_MODE
        )


def test_a_client_over_http_sets_and_sees_the_mode(server: RunningServer) -> None:
    queues = server.queues()
    queues.put_queue(QueueSpec("mail", mode="push"))
    assert {spec.name: spec.mode for spec in queues.queues()}["mail"] == "push"
    queues.close()


def test_queues_lists_a_push_queue_as_one(towline: Commands) -> None:
    (towline.folder / "queue.yaml").write_text(FILE)
    store = ("--store", "sqlite:///queue.db")
    shown = towline("queues", "apply", "queue.yaml", "--yes", *store)
    assert shown.code == 0
    assert ["mail", "create", "mode", "-", "push"] in [line.split() for line in shown.out.splitlines()]
    listed = {line.split()[0]: line.split()[-1] for line in towline("queues", *store).out.splitlines()[1:]}
    assert listed["mail"] == "push"
