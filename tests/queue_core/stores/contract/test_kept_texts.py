"""Texts that supervisors keep in a store: on every store each stays until it is replaced, and their size is bounded."""

from threading import Thread

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import START, ManualClock
from queue_core.errors import InvalidRequestError, StoreUnavailableError
from queue_core.store import Store
from queue_core.unit.service import QueueService
from queue_core.verbs.kept import MAX_KEPT_BYTES
from tests.support.stores.restored_tasks import opened_again

NAME = "supervisor"
YEAR_SECONDS = 365 * 86_400


def queues_of(store: Store, clock: ManualClock | None = None) -> LocalQueues:
    return LocalQueues(QueueService(store, clock=clock or ManualClock(START)))


def test_a_text_is_kept_until_it_is_replaced_however_long_that_is(store: Store) -> None:
    clock = ManualClock(START)
    queues = queues_of(store, clock)
    assert queues.kept(NAME) is None
    queues.keep(NAME, "first, ä")
    clock.advance(YEAR_SECONDS)
    assert queues.kept(NAME) == "first, ä"
    queues.keep(NAME, "")
    assert queues.kept(NAME) == ""


def test_a_kept_text_survives_a_restart(store: Store) -> None:
    queues_of(store).keep(NAME, "kept")
    again = opened_again(store)
    assert queues_of(again).kept(NAME) == (None if store.url == "memory:" else "kept")
    again.close()


def test_of_two_that_keep_a_text_at_once_one_is_last(store: Store) -> None:
    def keep(text: str) -> None:
        for _ in range(10):
            while True:
                try:
                    queues_of(store).keep(NAME, text)
                except StoreUnavailableError:  # the other was quicker five times
                    continue
                break

    threads = [Thread(target=keep, args=(text,)) for text in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queues_of(store).kept(NAME) in {"a", "b"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("another", "", id="name"),
        pytest.param("", "", id="no-name"),
        pytest.param(NAME, "\ud800", id="surrogate"),
        pytest.param(NAME, "ä" * (MAX_KEPT_BYTES // 2) + "a", id="too-long"),
    ],
)
def test_another_name_or_too_long_a_text_is_refused(store: Store, name: str, text: str) -> None:
    queues = queues_of(store)
    with pytest.raises(InvalidRequestError):
        queues.keep(name, text)
    assert queues.kept(NAME) is None


def test_a_text_of_the_longest_length_is_kept(store: Store) -> None:
    queues = queues_of(store)
    queues.keep(NAME, "ä" * (MAX_KEPT_BYTES // 2))
    assert queues.kept(NAME) == "ä" * (MAX_KEPT_BYTES // 2)
