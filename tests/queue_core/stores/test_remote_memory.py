"""The store behind a network that tests break on purpose does what it says."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.eventually import eventually
from tests.support.stores.remote_memory import RemoteMemory

QUEUE = "q"


@pytest.fixture
def store() -> RemoteMemory:
    store = RemoteMemory()
    QueueService(store).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    return store


def _ready(store: RemoteMemory) -> int:
    return QueueService(store.memory).read(lambda turn: turn.stats(QUEUE, ANY)).ready


@pytest.mark.parametrize(("unit", "left"), [("transaction", 0), ("verb", 1)])
def test_an_exception_rolls_back_what_its_unit_says(unit: str, left: int) -> None:
    store = RemoteMemory(unit="verb" if unit == "verb" else "transaction")
    QueueService(store).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"x")], now=store.clock.now())
        raise ZeroDivisionError
    assert _ready(store) == left


def test_nothing_happens_while_it_is_down(store: RemoteMemory) -> None:
    store.is_down = True
    for call in (store.begin, store.read):
        with pytest.raises(StoreUnavailableError), call():
            pass
    assert store.refusals == 2


def test_a_lost_answer_is_of_a_change_that_was_made(store: RemoteMemory) -> None:
    store.answers_to_lose = 1
    with pytest.raises(OutcomeUnknownError), store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"x")], now=store.clock.now())
    assert _ready(store) == 1


def test_a_stalled_call_goes_on_when_it_flows_again(store: RemoteMemory) -> None:
    store.stall()
    store.threads.clear()
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(QueueService(store).run, lambda turn: turn.add(QUEUE, [NewTask(b"x")]))
        eventually(lambda: store.threads)
        assert _ready(store) == 0
        store.flow()
        assert adding.result(10)[0].status == "added"


def test_two_ways_lead_to_one_memory(store: RemoteMemory) -> None:
    other = RemoteMemory(store.memory)
    QueueService(other).run(lambda turn: turn.add(QUEUE, [NewTask(b"x")]))
    assert _ready(store) == 1
    assert isinstance(store.memory, MemoryStore)
