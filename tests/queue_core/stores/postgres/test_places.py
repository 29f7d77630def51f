"""Leases on PostgreSQL of tasks that go to another place in the queue between a call's look and its lock."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.task import ANY, UNTAGGED, NewTask, TagFilter
from tests.support.eventually import eventually
from tests.support.stores.postgres_connections import is_lock_awaited
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import a_queue, add, at, lease

GATE = 7
"""The advisory lock at which a statement that locks rows stops, when it has read its first row and not locked it."""
GATES = f"""
CREATE SCHEMA gates;
CREATE FUNCTION gates.wait() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM pg_locks AS l
    WHERE l.pid = pg_backend_pid() AND l.relation = 'towline.tasks'::regclass AND l.mode = 'RowShareLock';
    IF FOUND THEN
        PERFORM pg_advisory_lock_shared({GATE});
        PERFORM pg_advisory_unlock_shared({GATE});
    END IF;
END $$;
CREATE FUNCTION gates.plus(one int2, other int4) RETURNS int4 LANGUAGE plpgsql AS $$
BEGIN
    PERFORM gates.wait();
    RETURN one OPERATOR(pg_catalog.+) other;
END $$;
CREATE FUNCTION gates.equals(one int2, other int4) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM gates.wait();
    RETURN one OPERATOR(pg_catalog.=) other;
END $$;
CREATE OPERATOR gates.+ (FUNCTION = gates.plus, LEFTARG = int2, RIGHTARG = int4);
CREATE OPERATOR gates.= (FUNCTION = gates.equals, LEFTARG = int2, RIGHTARG = int4);
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET search_path = gates, pg_catalog', current_database());
END $$;
"""
"""Functions that look at the state of a task, as `state = 0` or `state + 0`, are stopped in that look."""


@pytest.fixture
def url() -> str:
    """Of a store with a queue, whose calls pass the gate."""
    url = new_store_url("postgresql")
    with closing(open_store(url)) as store:
        a_queue(store)
    with psycopg.connect(url) as connection:
        connection.execute(GATES)  # type: ignore[call-overload]
    return url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        yield opened
        assert opened.check().problems == ()


@pytest.mark.parametrize(
    ("count", "worker"),
    [
        pytest.param(1, "", id="the short way"),  # `exchange_one`, which knows nobody or those it has met
        pytest.param(1, "known", id="the short way of a known worker"),
        pytest.param(1, "new", id="one"),
        pytest.param(2, "", id="two"),
    ],
)
@pytest.mark.parametrize(
    ("first", "others", "tags"),
    [
        (None, None, ANY),
        ("a", "a", ANY),
        ("a", "a", TagFilter.of("a")),
        (None, None, UNTAGGED),
        ("a", "b", TagFilter.oldest()),
    ],
)
def test_a_task_that_goes_to_the_end_between_look_and_lock_is_not_leased_first(
    store: Store, url: str, first: str | None, others: str | None, tags: TagFilter, count: int, worker: str
) -> None:
    lease(store, worker="known")
    add(store, NewTask(tag=first), NewTask(tag=others), NewTask(tag=others), now=at(1))
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as another:
        another.execute("SELECT pg_advisory_lock(%s)", (GATE,))
        leasing = pool.submit(lease, store, count, tags=tags, worker=worker, now=at(3))
        eventually(lambda: is_lock_awaited(url, locktype="advisory"))
        another.execute(  # leased, expired, ready again
            "UPDATE towline.tasks SET eta = %s, ready_at = %s, leases = 1, leased_at = %s WHERE id = 1",
            (at(2), at(2), at(1)),
        )
        another.commit()
        another.execute("SELECT pg_advisory_unlock(%s)", (GATE,))
        assert [each.name for each in leasing.result()] == ["_2", "_3"][:count]


@pytest.mark.parametrize("tags", [TagFilter.of("a", "b"), TagFilter.oldest("a", "b")])
def test_a_task_that_went_to_the_end_between_look_and_lock_is_not_leased_first(
    store: Store, url: str, tags: TagFilter
) -> None:
    add(store, NewTask(tag="a"), NewTask(tag="b"), NewTask(tag="b"), now=at(1))
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as another:
        another.execute("LOCK TABLE towline.tasks IN EXCLUSIVE MODE")  # whoever looks may, whoever locks a row waits
        leasing = pool.submit(lease, store, 2, tags=tags, now=at(3))
        eventually(lambda: is_lock_awaited(url))
        another.execute("UPDATE towline.tasks SET eta = %s WHERE id = 1", (at(2),))  # leased, expired, ready again
        another.commit()
        assert [each.name for each in leasing.result()] == ["_2", "_3"]
