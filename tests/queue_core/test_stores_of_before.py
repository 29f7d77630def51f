"""A PostgreSQL schema that an older program filled: it opens, is brought up to date, and goes on as it was."""

from contextlib import closing

import psycopg
import pytest

from queue_core.clock import START
from queue_core.store import Release, Store
from queue_core.stores import open_store
from queue_core.stores.postgres import schema
from queue_core.task import NewTask, QueueSpec, TaskState
from tests.support.moved_tasks import peek
from tests.support.stores import new_url
from tests.support.task_builders import QUEUE, SPEC, add, at, delete, lease, names, stats

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


def test_a_postgresql_schema_of_before_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_url("postgresql")
    known = schema.migrations()
    with monkeypatch.context() as before:
        before.setattr(schema, "migrations", lambda: known[:12])
        open_store(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO towline.queues (name, lease_seconds, max_lease_seconds, max_leases, retry_min_seconds,"
            " retry_max_seconds, deletes_exhausted, name_retention_seconds)"
            " VALUES (%s, 60, 604800, 2, 1, 8, false, 100)",
            (QUEUE,),
        )
        for name, payload in (("second", b"y" * 3000), ("first", b"x")):
            connection.execute(
                "SELECT towline.add(ARRAY[%s], %s, ARRAY[%s::bytea], '{}', '{}', ARRAY[%s])",
                (QUEUE, START, payload, name),
            )
            if name == "second":
                connection.execute(
                    "SELECT towline.exchange(%s, %s, NULL, NULL, 1, 10, 0::int2, '{}', 'w')", (QUEUE, START)
                )
    with closing(open_store(url)) as store:
        goes_on(store)


def test_a_program_of_before_that_still_runs_adds_to_the_new_schema() -> None:
    url = new_url("postgresql")
    with closing(open_store(url)) as store:
        with store.begin() as transaction:
            transaction.put_queue(SPEC, now=START)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT towline.add(ARRAY[%s], %s, ARRAY['x'::bytea], '{}', '{}', '{}')", (QUEUE, START))
        assert [(task.payload, task.max_leases) for task in peek(store)] == [(b"x", None)]
        assert store.check().problems == ()
