"""A disk that is really full: adds are refused, probes say so, and the tasks that are there are worked off."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue
from queue_core.errors import StoreFullError
from queue_core.stores import open_store
from queue_core.stores.sqlite.store import SqliteStore
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


def test_a_store_that_filled_its_disk_and_was_worked_off_takes_adds_again(disk: Path) -> None:
    queues = open_queues(url_of(disk))
    queues.put_queue(SPEC)
    queue = queues.queue(QUEUE)
    add_until_refused(queue)
    fill(disk)  # the file keeps its size, and nobody frees anything else
    added = work_off(queue)
    for _ in range(3):
        for _ in range(added // 2 // 100):
            queue.add([NewTask(PAYLOAD) for _ in range(100)])
        assert work_off(queue) == added // 2 // 100 * 100
    add_until_refused(queue)
    assert work_off(queue) > added // 2  # and what is finished still has its room
    queues.close()
    store = open_store(url_of(disk))
    assert store.check().problems == ()
    store.close()


def test_a_vacuum_gives_the_room_of_finished_tasks_back_to_a_full_disk(disk: Path) -> None:
    queues = open_queues(url_of(disk))
    queues.put_queue(SPEC)
    queue = queues.queue(QUEUE)
    add_until_refused(queue)
    fill(disk)
    work_off(queue)
    queue.add([NewTask(PAYLOAD) for _ in range(TASKS)])
    store = SqliteStore(disk / "queue.db")
    free = shutil.disk_usage(disk).free
    before, after = store.vacuum()
    assert after < before // 4
    assert shutil.disk_usage(disk).free - free > before // 2
    assert store.unused_bytes() == 0
    assert (store.check().tasks, store.check().problems) == (TASKS, ())
    store.close()
    eventually(lambda: is_added(queue))
    assert work_off(queue) == TASKS + 1
    queues.close()


def test_a_store_that_opens_anew_after_a_vacuum_has_all_its_tasks_and_goes_on_with_their_ids(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "queue.db")
    queues = open_queues(f"sqlite:///{tmp_path}/queue.db")
    queues.put_queue(SPEC)
    queue = queues.queue(QUEUE)
    queue.add([NewTask(PAYLOAD, name=f"n{number}") for number in range(TASKS)])
    held = queue.lease(TASKS // 2)
    for each in held[10:]:
        queue.delete(each)
    store.vacuum()
    queue.renew(held[0], seconds=90)
    queue.add(NewTask(b"next", name="next"))
    assert queue.peek(names=["next"]).tasks[0].id == TASKS + 1
    queues.close()
    store.close()
    with contextlib.closing(open_queues(f"sqlite:///{tmp_path}/queue.db")) as again:
        assert again.queue(QUEUE).stats().in_flight == 10
        again.queue(QUEUE).delete(held[0])
        assert again.queue(QUEUE).add([NewTask(b"", name="n999")])[0].status == "exists"


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
