"""A store that an older program filled: it opens, is brought up to date, and everything in it goes on as it was."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.clock import START
from queue_core.store import Release, Store
from queue_core.stores import open_store
from queue_core.stores.sqlite import file as store_file
from queue_core.stores.sqlite.driver import best_driver
from queue_core.task import NewTask, QueueSpec, TaskState
from tests.support.moved_tasks import peek
from tests.support.task_builders import QUEUE, add, at, delete, lease, names, stats

SETTINGS_OF_BEFORE = {
    "lease_seconds": 60.0,
    "max_lease_seconds": 604_800.0,
    "max_leases": 2,
    "retry_min_seconds": 1.0,
    "retry_max_seconds": 8.0,
    "on_exhausted": "dead",
    "name_retention_seconds": 100.0,
}


def goes_on(store: Store) -> None:
    """A store that was left with a ready task `first`, and `second` under its first lease until 10 s."""
    spec = QueueSpec(QUEUE, **SETTINGS_OF_BEFORE)  # type: ignore[arg-type]
    assert store.check().problems == ()
    with store.read() as transaction:
        assert transaction.queue(QUEUE) == spec
    assert sorted((task.name, task.state, task.max_leases) for task in peek(store)) == [
        ("first", TaskState.READY, None),
        ("second", TaskState.LEASED, None),
    ]
    (first,) = lease(store, seconds=5)
    assert delete(store, first)[0] is not None
    (second,) = lease(store, seconds=5, now=at(10))
    assert (second.name, second.lease_number, second.payload) == ("second", 2, b"y" * 3000)
    add(store, NewTask(name="third", max_leases=1), NewTask(name="late", eta=at(90)), now=at(10))
    assert names(lease(store, 2, seconds=5, now=at(10))) == ["third"]
    assert stats(store, now=at(15)).dead == 2
    with store.begin() as transaction:
        assert transaction.postpone(QUEUE, "late", expected=at(90), eta=at(20), now=at(15))
        transaction.put_queue(QueueSpec(QUEUE, user_emails=("a@b",)), now=at(15))
        assert transaction.queue(QUEUE).user_emails == ("a@b",)
    (late,) = lease(store, now=at(20))
    with store.begin() as transaction:
        assert transaction.release(QUEUE, [Release(late.token, dead_reason="enough")], now=at(20))[0] is not None
    assert store.check().problems == ()


def test_a_sqlite_file_of_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = store_file.migrations()
    with monkeypatch.context() as before:
        before.setattr(store_file, "migrations", lambda: known[:2])
        open_store(f"sqlite:///{tmp_path / 'queue.db'}").close()
    with closing(best_driver().connect(str(tmp_path / "queue.db"), "")) as connection:
        for sql, cells in (
            ("INSERT INTO queues (name, settings) VALUES (?, ?)", (QUEUE, json.dumps(SETTINGS_OF_BEFORE))),
            ("INSERT INTO counts (id, queue, tag, ready, leased, added, leases) VALUES (1, 1, NULL, 1, 1, 2, 1)", ()),
            ("INSERT INTO counts (id, queue, tag, ready, leased, added, leases) VALUES (-1, 1, '', 1, 1, 2, 1)", ()),
            ("UPDATE counts SET added = 2 WHERE id = 0", ()),
            (
                "INSERT INTO tasks VALUES (1, 1, -1, 0, ?, ?, ?, 0, 0, '', '', 'first', NULL, x'78')",
                (START, START, START),
            ),
            (
                "INSERT INTO tasks VALUES (2, 1, -1, 2, ?, ?, ?, 1, ?, 'w', '', 'second', NULL, NULL)",
                (at(10), START, START, START),
            ),
            ("INSERT INTO payloads VALUES (2, ?)", (b"y" * 3000,)),
            ("INSERT INTO names VALUES (1, 'first', 1, NULL), (1, 'second', 2, NULL)", ()),
        ):
            connection.execute(sql, cells)
    with closing(open_store(f"sqlite:///{tmp_path / 'queue.db'}")) as store:
        goes_on(store)
