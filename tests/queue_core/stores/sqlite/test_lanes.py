"""Limits, priorities and rotation in the file: old files move forward, processes agree, plain queues keep no lanes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.admission import Rate, TagLimits
from queue_core.store import Store
from queue_core.stores.sqlite import file as store_file
from queue_core.stores.sqlite.driver import SqliteConnection, best_driver
from queue_core.stores.sqlite.session import bring_forward, settings_of
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.stores.restored_tasks import peek
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, names, stats

FILE = "queue.db"
DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        yield store
        assert store.check().problems == ()


@pytest.fixture
def other(store: Store, tmp_path: Path) -> Iterator[SqliteStore]:
    """The same file, as another process has it open."""
    with closing(SqliteStore(tmp_path / FILE)) as other:
        yield other


def rows(folder: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(best_driver().connect(str(folder / FILE), "")) as connection:
        return list(connection.execute(sql).fetchall())


def tagged(*tags: str | None, priority: int = 0) -> list[NewTask]:
    return [NewTask(b"x", tag=tag, priority=priority) for tag in tags]


# -- files of an older program ---------------------------------------------------------------------------------------


def _fill_as_before(connection: SqliteConnection) -> None:
    """Write as the program before this change did: a task of each state, and one that is staged."""
    connection.execute(
        "INSERT INTO queues (id, name, settings) VALUES (1, ?, ?)", (QUEUE, settings_of(QueueSpec(QUEUE)))
    )
    connection.execute(
        "INSERT INTO counts (id, queue, tag, ready, delayed, leased, dead, added)"
        " VALUES (1, 1, NULL, 2, 1, 1, 1, 5), (2, 1, 'a', 2, 1, 1, 1, 5)"
    )
    for task_id, state, eta in ((1, 0, 0), (2, 0, 1), (3, 1, 50), (4, 2, 60), (5, 3, 0)):
        leases = int(state in (2, 3))
        connection.execute(
            "INSERT INTO tasks (id, queue, tag, state, eta, ready_at, added_at, leases, leased_at, worker, reason,"
            " payload) VALUES (?, 1, 2, ?, ?, ?, ?, ?, ?, '', '', x'78')",
            (task_id, state, at(eta), at(eta), at(0), leases, at(0) * leases),
        )
    connection.execute("INSERT INTO staged_adds VALUES (6, 1, 2, ?, NULL, NULL, x'78')", (at(2),))
    connection.execute("UPDATE counts SET added = 5 WHERE id = 0")


def test_a_file_of_an_older_program_moves_forward_with_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = store_file.migrations()
    monkeypatch.setattr(store_file, "migrations", lambda: known[:2])
    with closing(store_file.prepare(best_driver(), tmp_path / FILE, "")) as connection:
        _fill_as_before(connection)
    monkeypatch.setattr(store_file, "migrations", lambda: known)
    with closing(SqliteStore(tmp_path / FILE)) as store:
        assert store.check().problems == ()
        seen = stats(store, now=at(3))
        assert (seen.ready, seen.delayed, seen.in_flight, seen.dead, seen.held) == (3, 1, 1, 1, 0)
        add(store, *tagged("a", priority=4), now=at(3))
        assert names(lease(store, 2, now=at(4))) == ["_7", "_1"]
        a_queue(store, per_tag=TagLimits(max_in_flight=4))
        assert (stats(store, now=at(5)).ready, stats(store, now=at(5)).held) == (1, 1)
        assert names(lease(store, 9, now=at(5))) == ["_2"]
        assert store.check().problems == ()


# -- several processes, several verbs --------------------------------------------------------------------------------


def test_limits_and_priorities_that_another_process_brought_are_obeyed(store: Store, other: Store) -> None:
    add(store, *tagged("a", "a", "a"))
    (held,) = lease(store)
    a_queue(other, per_tag=TagLimits(max_in_flight=2))
    add(store, *tagged("a"))
    assert names(lease(store, 9)) == ["_2"]
    delete(other, held, now=at(1))
    add(other, *tagged("a", priority=1), now=at(2))
    assert names(lease(store, 9, now=at(3))) == ["_5"]
    a_queue(other)
    assert names(lease(store, 9, now=at(4))) == ["_3", "_4"]


def test_verbs_of_one_transaction_see_each_others_limits(store: Store) -> None:
    with store.begin() as transaction:
        transaction.add(QUEUE, tagged("a", "a", "a", "b"), now=at(0))
        transaction.put_queue(QueueSpec(QUEUE, per_tag=TagLimits(max_in_flight=1, fair=True)), now=at(0))
        first = transaction.lease(QUEUE, LeaseRequest(9, 60.0, ANY, "w"), now=at(0)).leases
        assert names(first) == ["_1", "_4"]
        transaction.release(QUEUE, [Release(first[0].token, 0.0)], now=at(1))
        transaction.delete(QUEUE, [Deletion(first[1].token)], now=at(1))
        (again,) = transaction.lease(QUEUE, LeaseRequest(9, 60.0, ANY, "w"), now=at(2)).leases
        assert again.name == "_2"
        _, granted = transaction.exchange(
            QUEUE, [Deletion(again.token)], LeaseRequest(1, 60.0, TagFilter.of("a"), "w"), now=at(3)
        )
        assert names(granted.leases) == ["_3"]
        seen = transaction.stats(QUEUE, ANY, now=at(3))
    assert (seen.ready, seen.held, seen.in_flight) == (0, 1, 1)


def test_a_transaction_that_is_rolled_back_leaves_the_limits_as_they_were(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *tagged("a", "a"))
    with pytest.raises(RuntimeError), store.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=at(1))
        raise RuntimeError
    assert len(lease(store, 9, now=at(2))) == 1


def test_a_task_that_was_staged_is_held_once_its_queue_has_limits(store: Store, other: Store) -> None:
    add(store, *tagged("a"))
    add(store, *tagged("a"))
    add(store, *tagged("a"))
    a_queue(other, per_tag=TagLimits(max_in_flight=1))
    assert (stats(store).ready, stats(store).held) == (1, 2)


def test_a_task_brought_forward_is_held_as_others_are(store: Store) -> None:
    a_queue(store, per_tag=TagLimits(max_in_flight=1))
    add(store, *[NewTask(b"x", tag="a", delay_seconds=5.0) for _ in range(3)])
    session = store.enter()  # type: ignore[attr-defined]
    bring_forward(session, until=at(6), now=at(1))
    store.leave(session, None)  # type: ignore[attr-defined]
    assert len(lease(store, 9, now=at(1))) == 1
    assert [task.state for task in peek(store, now=at(1))] == [TaskState.LEASED, TaskState.HELD, TaskState.HELD]


# -- rows of lanes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        pytest.param(TagLimits(), 0, id="plain"),
        pytest.param(TagLimits(max_in_flight=1), 0, id="max_in_flight"),
        pytest.param(TagLimits(rate=Rate(1.0)), 2, id="rate"),
        pytest.param(TagLimits(fair=True), 4, id="fair: the untagged, too, and the whole queue"),
    ],
)
def test_only_a_rate_and_a_rotation_keep_rows(store: Store, tmp_path: Path, limits: TagLimits, kept: int) -> None:
    a_queue(store, per_tag=limits)
    add(store, *tagged("a", "a", "b", None))
    lease(store, 9)
    assert rows(tmp_path, "SELECT count(*) FROM lanes") == [(kept,)]


def test_a_lane_goes_with_its_tag_once_its_bucket_is_full(store: Store, tmp_path: Path) -> None:
    a_queue(store, per_tag=TagLimits(rate=Rate(1 / DAY, burst=3), fair=True))
    add(store, *tagged("soon", "late", "late"))
    for held in lease(store, 9):
        delete(store, held, now=at(0))
    for number in range(4):
        add(store, *tagged(f"new-{number}"), now=at((1.5 + number / 10) * DAY))
    left = rows(tmp_path, "SELECT tag FROM counts WHERE tag IN ('soon', 'late')")
    assert left == [("late",)]
    assert rows(tmp_path, "SELECT count(*) FROM lanes WHERE id NOT IN (SELECT id FROM counts)") == [(0,)]


def test_a_queue_that_is_deleted_takes_its_lanes_along(store: Store, tmp_path: Path) -> None:
    a_queue(store, per_tag=TagLimits(1, Rate(1.0), fair=True))
    add(store, *tagged("a", "a", "b"), *tagged("c", priority=3))
    lease(store)
    with store.begin() as transaction:
        assert transaction.delete_queue(QUEUE) == 4
    assert rows(tmp_path, "SELECT (SELECT count(*) FROM lanes), (SELECT count(*) FROM tasks)") == [(0, 0)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param("UPDATE tasks SET state = 0 WHERE state = 4", "counters", id="admitted by nobody"),
        pytest.param("UPDATE lanes SET head = NULL, place = NULL", "rotation", id="out of the rotation"),
        pytest.param("UPDATE lanes SET head = -9 WHERE head IS NOT NULL", "first task", id="a wrong head"),
        pytest.param("UPDATE tasks SET priority = 2 WHERE state = 0", "place of its priority", id="a wrong place"),
        pytest.param("INSERT INTO lanes (id, queue) VALUES (99, 1)", "no tag", id="nobody's lane"),
        pytest.param("UPDATE lanes SET opens_at = NULL", "does not open", id="never opens"),
    ],
)
def test_the_check_finds_damage_of_lanes(tmp_path: Path, damage: str, said: str) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store, per_tag=TagLimits(rate=Rate(1.0), fair=True))
        add(store, *tagged("a", "a", "b"))
        assert store.check().problems == ()
        lease(store, 1)
        rows(tmp_path, damage)
        assert any(said in problem for problem in store.check().problems), store.check().problems
