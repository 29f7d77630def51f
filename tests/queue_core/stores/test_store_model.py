"""Any sequence of verbs, on a store and on the reference side by side: every outcome, count and sample is the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.sqlite.driver import stdlib_driver
from queue_core.stores.sqlite.store import SqliteStore
from tests.support.stores.floored_store import FlooredStore
from tests.support.stores.grouped_store import GroupedStore
from tests.support.stores.redis_stores import a_redis_store, with_repeated_calls
from tests.support.stores.store_model import QUEUES, LimitedStoreModel, StoreModel
from tests.support.stores.stores import new_store_url


def sqlite_stores(folder: Path, number: int = 1) -> list[Store]:
    """One file, as so many processes have it open."""
    return [SqliteStore(folder / "queue.db", durability="relaxed") for _ in range(number)]


def stdlib_stores(folder: Path) -> list[Store]:
    """A file as the standard library's SQLite has it; `sqlite/test_drivers.py` holds the rest of what it must do."""
    return [SqliteStore(folder / "queue.db", durability="relaxed", driver=stdlib_driver())]


def floored_stores(_folder: Path) -> list[Store]:
    """A PostgreSQL store whose floors are raised before each write."""
    store = FlooredStore(new_store_url("postgresql"), durability="relaxed")
    store.queues = QUEUES
    return [store]


OPENED: dict[str, Callable[[Path], list[Store]]] = {
    "sqlite": sqlite_stores,
    "sqlite, two processes": lambda folder: sqlite_stores(folder, 2),
    "sqlite, the standard library's": stdlib_stores,
    "postgresql": lambda _: [open_store(new_store_url("postgresql"), durability="relaxed")],
    "postgresql, floors": floored_stores,
    "redis": lambda _: [open_store(new_store_url("redis"), durability="relaxed")],
    "redis, every call sent twice": lambda _: [with_repeated_calls(a_redis_store())],
}


EXAMPLES = {
    "sqlite": 60,
    "sqlite, two processes": 50,
    "sqlite, the standard library's": 20,
    "postgresql": 35,
    "postgresql, floors": 10,
    "redis": 45,
    "redis, every call sent twice": 20,
}
"""More where they are quick. Each run draws others, of 60 verbs each: a day of runs is thousands."""


OF_SEVERAL_VERBS = "sqlite, several verbs a transaction"
LIMITED_OPENED: dict[str, Callable[[Path], list[Store]]] = {
    **OPENED,
    OF_SEVERAL_VERBS: lambda folder: [GroupedStore(folder / "queue.db", durability="relaxed")],
}


@pytest.mark.parametrize("name", OPENED)
def test_any_sequence_of_verbs_has_the_same_outcomes_as_on_the_reference(name: str) -> None:
    run_model(lambda: StoreModel(OPENED[name]), examples=EXAMPLES[name])


@pytest.mark.parametrize("name", LIMITED_OPENED)
def test_any_sequence_of_verbs_obeys_limits_as_the_reference_does(name: str) -> None:
    examples = EXAMPLES[name] // 2 if name in EXAMPLES else 20
    run_model(lambda: LimitedStoreModel(LIMITED_OPENED[name]), examples=examples)


def run_model(model: Callable[[], StoreModel], *, examples: int) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
