"""Headers, attempts, progress, checkpoints and history over HTTP: the same as in process, once however often sent."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from queue_core.attempts.attempt import Failure
from queue_core.client.http_calls import HttpQueue
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.client.queue import Queues
from queue_core.errors import InvalidRequestError, LeaseLostError
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, Progress, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, Renewal, wire
from tests.support.cutting_proxy import CuttingProxy, a_proxy
from tests.support.servers import IMPATIENT, QUEUE, RunningServer, a_timed_server

HEADERS = {"trace-id": 'ü"\n', "empty": ""}
FAILURE = Failure("timed_out", "Timeout", "took: 31 s", "tasks.py:14", "host-1")
SPEC = QueueSpec(QUEUE, retry_min_seconds=0.0, retry_max_seconds=0.0, history_keep=3, history_seconds=60.0)


@pytest.fixture
def both() -> Iterator[tuple[Queues, Queues]]:
    """The same queue behind a server, and in process; one clock."""
    with a_timed_server(SPEC) as (server, clock):
        remote = server.queues()
        local = LocalQueues(QueueService(MemoryStore(), clock=clock, jitter=lambda: 0.0))
        local.put_queue(SPEC)
        yield remote, local
        remote.close()
        local.close()


def _same(both: tuple[Queues, Queues], story: Callable[[Queues], object]) -> Any:
    outcomes = [story(queues) for queues in both]
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def test_headers_come_back_in_leases_and_pages(both: tuple[Queues, Queues]) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue(QUEUE)
        queue.add([NewTask(b"1", headers=HEADERS), NewTask(b"2"), NewTask(b"3", headers={})])
        leases = queue.lease(3)
        queue.delete(leases[1], then=[NewTask(b"4", headers={"next": "1"})])
        (handed_over,), _ = queue.exchange([Deletion(leases[2].token)])
        tasks = [replace(task, spent=()) for task in queue.peek().tasks]
        return [lease.headers for lease in (*leases, handed_over)], [task.headers for task in tasks], tasks

    headers, shown, _ = _same(both, story)
    assert headers == [HEADERS, None, None, {"next": "1"}]
    assert shown == [HEADERS, {"next": "1"}]


def test_what_handlers_report_goes_to_the_page_and_to_the_next_lease(both: tuple[Queues, Queues]) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue(QUEUE)
        queue.add([NewTask(b"1"), NewTask(b"2"), NewTask(b"3")])
        one, two, three = queue.lease(3, worker="w")
        renewed = queue.renew(
            [
                one,
                Renewal(two.token, 5.0, Progress(0.4, "page 12"), b"\x00\xff"),
                Renewal(three.token, checkpoint=b""),
            ],
            seconds=90.0,
        )
        told = queue.release(two, error=FAILURE)
        silent = queue.release([one, three])
        tasks = [replace(task, spent=()) for task in queue.peek().tasks]
        return renewed, told, silent, tasks, [(lease.payload, lease.checkpoint) for lease in queue.lease(3)]

    _, told, silent, tasks, leases = _same(both, story)
    assert [one.reason for one in (*told, *silent)] == ["Timeout: took: 31 s (tasks.py:14)", "", ""]
    assert [(task.progress, task.checkpoint) for task in tasks] == [
        (None, None),
        (Progress(0.4, "page 12"), b"\x00\xff"),
        (None, b""),
    ]
    assert sorted(leases) == sorted([(b"1", None), (b"2", b"\x00\xff"), (b"3", b"")])


def test_an_error_is_an_exception_a_text_or_a_failure(both: tuple[Queues, Queues]) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue(QUEUE)
        queue.add(b"x")
        for error in (ValueError("bad width"), "no such cat", FAILURE):
            queue.release(queue.lease(worker="w"), error=error)
        queue.lease(worker="w")
        queues.release_worker("w")
        queue.lease(worker="v")
        queues.release_worker("v", failure=Failure("worker_died", "SIGKILL", "out of memory"))
        (task,) = queue.peek().tasks
        return [(one.outcome, one.worker, one.text) for one in task.attempts], task.attempts

    attempts, _ = _same(both, story)
    assert attempts == [
        ("raised", "w", "ValueError: bad width"),
        ("raised", "w", "no such cat"),
        ("timed_out", "w", "Timeout: took: 31 s (tasks.py:14)"),
        ("worker_died", "w", "its worker died"),
        ("worker_died", "v", "SIGKILL: out of memory"),
    ]


def test_history_by_page_and_by_name(both: tuple[Queues, Queues]) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue(QUEUE)
        queue.add([NewTask(b"%d" % number, name=f"task-{number}", tag="t") for number in range(5)])
        queue.delete(queue.lease(4, worker="w"))
        queue.release(queue.lease(worker="w"), error="no such cat")
        first = queue.history(limit=2)
        second = queue.history(limit=2, before=first.next_before)
        return first, second, queue.history(names="task-4"), queue.history(names=["task-0", "nobody"])

    first, second, by_name, gone = _same(both, story)
    assert [lease.name for lease in (*first.leases, *second.leases)] == ["task-4", "task-3", "task-2"]
    assert second.next_before is None
    assert [(lease.outcome, lease.reason) for lease in by_name.leases] == [("released", "no such cat")]
    assert gone.leases == ()  # it ended before the last three


def test_settings_of_history_come_back_as_they_were_put(both: tuple[Queues, Queues]) -> None:
    def story(queues: Queues) -> object:
        queues.put_queue(replace(SPEC, history_keep=0, history_seconds=1.5))
        return queues.queues()

    (spec,) = _same(both, story)
    assert (spec.history_keep, spec.history_seconds) == (0, 1.5)


def test_mistakes_raise_the_same(both: tuple[Queues, Queues]) -> None:
    def story(queues: Queues) -> object:
        queue = queues.queue(QUEUE)
        queue.add(b"x")
        (lease,) = queue.lease()
        outcomes: list[object] = []
        for call in (
            lambda: queue.add(NewTask(headers={"a b": ""})),
            lambda: queue.add(NewTask(headers={"a": "x" * 4096})),
            lambda: queue.add(NewTask(headers={"a": 1})),  # type: ignore[dict-item]
            lambda: queue.add(NewTask(headers=["a"])),  # type: ignore[arg-type]
            lambda: queue.renew(Renewal(lease.token, progress=Progress(1.5))),
            lambda: queue.renew(Renewal(lease.token, progress=Progress(1.0, "x" * 201))),
            lambda: queue.renew(Renewal(lease.token, checkpoint=b"x" * 16385)),
            lambda: queue.renew(Renewal(lease.token, checkpoint="x")),  # type: ignore[arg-type]
            lambda: queue.release(lease, error=Failure(message="m" * 501)),
            lambda: queue.release(lease, error=Failure("expired")),  # type: ignore[arg-type]
            lambda: queues.release_worker("w", failure=Failure(place="p" * 201)),
            lambda: queue.history(limit=0),
            lambda: queue.renew([Renewal("1.1", checkpoint=b"x"), lease]),
        ):
            with pytest.raises((LeaseLostError, InvalidRequestError)) as raised:
                call()
            outcomes.append((type(raised.value), str(raised.value)))
        (task,) = queue.peek().tasks
        return outcomes, task.attempts, task.checkpoint

    _, attempts, checkpoint = _same(both, story)
    assert (attempts, checkpoint) == ((), None)


# -- once, however often sent -----------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: RunningServer) -> Iterator[CuttingProxy]:
    with a_proxy(server) as running:
        yield running


@pytest.fixture
def queue(proxy: CuttingProxy) -> Iterator[HttpQueue]:
    queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
    yield queue
    queue.close()


def test_a_lease_told_again_has_its_headers_and_checkpoint(queue: HttpQueue, proxy: CuttingProxy) -> None:
    queue.add(NewTask(b"a", headers=HEADERS))
    (first,) = queue.lease()
    queue.renew(Renewal(first.token, checkpoint=b"page 1"))
    queue.release(first, delay_seconds=0.0)
    proxy.fates.append("lose answer")
    (again,) = queue.lease()
    assert (again.headers, again.checkpoint, again.lease_number) == (HEADERS, b"page 1", 2)
    assert queue.stats().leased_total == 2


def test_a_release_with_an_error_that_is_sent_again_is_one_attempt(queue: HttpQueue, proxy: CuttingProxy) -> None:
    queue.add(b"a")
    (lease,) = queue.lease()
    proxy.fates.extend(["lose answer", "lose answer"])
    (finished,) = queue.release(lease, delay_seconds=0.0, error=FAILURE)
    assert finished.reason == FAILURE.text
    (task,) = queue.peek().tasks
    assert [attempt.text for attempt in task.attempts] == [FAILURE.text]
    assert proxy.seen[-4:-1] == ["lose answer", "lose answer", "pass"]


def test_a_renewal_that_is_sent_again_does_not_undo_a_later_checkpoint(server: RunningServer) -> None:
    queue = server.queue()
    queue.add(b"a")
    (lease,) = queue.lease()
    early = b'{"renewals":[{"token":"%s","checkpoint":"MQ=="}]}' % lease.token.encode()
    first = _renew(server, early, key="session-a/1/0")
    queue.renew(Renewal(lease.token, checkpoint=b"2"))
    assert _renew(server, early, key="session-a/1/5") == first
    assert queue.peek().tasks[0].checkpoint == b"2"
    queue.close()


def _renew(server: RunningServer, body: bytes, *, key: str) -> object:
    headers = [("content-type", "application/json"), ("idempotency-key", key)]
    reply = server.ask("POST", f"/v1/queues/{QUEUE}/renew", body, headers=headers)
    assert reply.status == 200
    return reply.json()


def test_plain_renewals_are_sent_in_the_form_that_older_servers_know() -> None:
    assert wire.renewals_json([Renewal("1.1", 5.0), Renewal("2.2", 5.0)], 5.0) == {
        "tokens": ["1.1", "2.2"],
        "seconds": 5.0,
    }
    assert wire.renewals_json([Renewal("1.1", 5.0)], None) == {"renewals": [{"token": "1.1", "seconds": 5.0}]}


def test_default_settings_are_sent_as_older_servers_know_them() -> None:
    assert not {"history_keep", "history_seconds"} & set(wire.settings_json(QueueSpec(QUEUE)))
    sent = wire.settings_json(QueueSpec(QUEUE, history_keep=0))
    assert (sent["history_keep"], "history_seconds" in sent) == (0, False)


def test_a_queue_in_process_and_one_over_http_have_the_same_verbs() -> None:
    verbs = {name for name in vars(LocalQueue) if not name.startswith("_")}
    assert {name for name in vars(HttpQueue) if not name.startswith("_")} == verbs
