"""A disk that is really full: adds are refused, probes say so, and the tasks that are there are worked off."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from queue_core.api import Queue
from queue_core.connect import open_queues
from queue_core.errors import StoreFullError
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs import Deletion
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, a_server
from tests.support.stores.small_disk import a_small_disk, fill

TASKS = 1000
PAYLOAD = b"x" * 500
MAX_ADDS = 1000
SPEC = QueueSpec(QUEUE, retry_min_seconds=0.0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with a_small_disk(tmp_path, size="48m") as small:
        yield small


def url_of(disk: Path) -> str:
    return f"sqlite:///{disk}/queue.db"


def add_until_refused(queue: Queue) -> None:
    with pytest.raises(StoreFullError):
        for _ in range(MAX_ADDS):
            queue.add([NewTask(PAYLOAD) for _ in range(100)])


def is_added(queue: Queue) -> bool:
    try:
        queue.add(b"room again")
    except StoreFullError:
        return False
    return True


def work_off(queue: Queue) -> int:
    """Lease and delete tasks one by one; how many there were."""
    deleted = 0
    while held := queue.lease(500):
        for each in held:
            queue.delete(each)
        deleted += len(held)
    return deleted


@pytest.mark.parametrize("durability", ["strict", "relaxed"])
def test_on_a_full_disk_tasks_are_leased_renewed_released_and_deleted_and_none_is_added(
    disk: Path, durability: Literal["strict", "relaxed"]
) -> None:
    queues = open_queues(url_of(disk), durability=durability)
    queues.put_queue(SPEC)
    queue = queues.queue(QUEUE)
    queue.add([NewTask(PAYLOAD) for _ in range(TASKS)])
    filler = fill(disk)
    add_until_refused(queue)
    fill(disk)  # others take all that the store has not taken by then
    ready = queue.stats().ready
    for _ in range(5):
        for each in queue.lease(1000):
            queue.renew(each, seconds=90)
            queue.release(each, delay_seconds=0, charge="uncounted")
    assert not is_added(queue)
    assert work_off(queue) == ready >= TASKS
    filler.unlink()
    eventually(lambda: is_added(queue))
    queues.close()
    store = open_store(url_of(disk))
    assert store.check().problems == ()
    store.close()


def test_a_store_that_is_opened_anew_on_a_full_disk_is_worked_off(disk: Path) -> None:
    queues = open_queues(url_of(disk))
    queues.put_queue(SPEC)
    queue = queues.queue(QUEUE)
    queue.add([NewTask(PAYLOAD) for _ in range(TASKS)])
    fill(disk)
    add_until_refused(queue)
    ready = queue.stats().ready
    queues.close()
    fill(disk)
    queues = open_queues(url_of(disk))
    queue = queues.queue(QUEUE)
    assert not is_added(queue)
    assert work_off(queue) == ready
    queues.close()


def test_a_server_on_a_full_disk_is_not_ready_and_its_workers_finish_their_tasks(disk: Path) -> None:
    with a_server(open_store(url_of(disk)), spec=SPEC) as server, contextlib.closing(server.queue()) as queue:
        queue.add([NewTask(PAYLOAD) for _ in range(TASKS)])
        assert server.ask("GET", "/readyz").status == 200
        filler = fill(disk)
        add_until_refused(queue)
        fill(disk)
        told = server.ask("GET", "/readyz")
        assert (told.status, b"disk" in told.body) == (503, True)
        assert server.ask("GET", "/livez").status == 200
        held = queue.lease(100)
        queue.release(held[:50])
        queue.delete(held[50:])
        assert not is_added(queue)
        filler.unlink()
        eventually(lambda: server.ask("GET", "/readyz").status == 200)
        assert is_added(queue)


def test_adds_of_other_callers_in_one_turn_are_refused_and_deletes_are_not(disk: Path) -> None:
    queues = open_queues(url_of(disk))
    queues.put_queue(SPEC)
    queue = queues.queue(QUEUE)
    queue.add([NewTask(PAYLOAD) for _ in range(TASKS)])
    fill(disk)
    add_until_refused(queue)
    service = queues._service  # type: ignore[attr-defined]
    (held,) = queue.lease(1)
    batch = service.commit(
        [
            lambda turn: turn.add(QUEUE, [NewTask(b"x")]),
            lambda turn: turn.delete(QUEUE, [Deletion(held.token)]),
        ]
    )
    service.sync(batch)
    assert isinstance(batch.outcomes[0], StoreFullError)
    assert queue.stats().in_flight == 0
    queues.close()


def test_a_disk_that_is_too_small_for_the_reserve_is_used_all_the_same(tmp_path: Path) -> None:
    with a_small_disk(tmp_path, size="4m") as disk:
        queues = open_queues(url_of(disk))
        queues.put_queue(SPEC)
        queue = queues.queue(QUEUE)
        queue.add([NewTask(PAYLOAD) for _ in range(100)])
        assert not (disk / "queue.db-reserve").exists()
        add_until_refused(queue)
        queues.close()
