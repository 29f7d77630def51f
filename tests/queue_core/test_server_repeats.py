"""A repeated add meets the memory of its first."""

import pytest

from queue_core.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    QueueError,
    StoreUnavailableError,
    UnknownQueueError,
)
from queue_core.http_api.problem_types import STALE_KEY
from queue_core.server import repeats
from queue_core.server.kept_adds import KeptAdd
from queue_core.server.problems import Problem
from queue_core.server.repeats import Repeats
from queue_core.server.turns import Done
from queue_core.service import QueueService
from queue_core.store import Added, ClientCall
from queue_core.task import ANY, NewTask, QueueSpec
from tests.support.remote_memory import RemoteMemory

QUEUE = "q"


class Desk:
    """Counts what was begun, and finishes it when told to."""

    def __init__(self) -> None:
        self.repeats = Repeats("run1")
        self.begun: list[Done] = []
        self.told: list[object] = []

    def ask(self, key: str) -> None:
        self.repeats.once(key.encode(), lambda _call, done: self.begun.append(done), self.told.append)


def test_a_repeat_gets_the_outcome_of_the_first() -> None:
    desk = Desk()
    desk.ask("run1/s/1/0")
    desk.begun[0]("added")
    desk.ask("run1/s/1/1")
    assert (len(desk.begun), desk.told) == (1, ["added", "added"])


def test_a_repeat_joins_a_first_that_is_still_running() -> None:
    desk = Desk()
    desk.ask("run1/s/1/0")
    desk.ask("run1/s/1/1")
    assert desk.told == []
    desk.begun[0]("added")
    assert (len(desk.begun), desk.told) == (1, ["added", "added"])


def test_the_next_add_of_a_session_and_other_sessions_are_begun() -> None:
    desk = Desk()
    for key in ("run1/s/1/0", "run1/s/2/0", "run1/t/1/0"):
        desk.ask(key)
    assert len(desk.begun) == 3


def test_an_add_that_was_refused_may_be_tried_again() -> None:
    desk = Desk()
    desk.ask("run1/s/1/0")
    desk.begun[0](UnknownQueueError("no queue"))
    desk.ask("run1/s/1/1")
    assert len(desk.begun) == 2


def test_an_add_in_doubt_stays_in_doubt() -> None:
    desk = Desk()
    doubt = OutcomeUnknownError("the disk did not confirm")
    desk.ask("run1/s/1/0")
    desk.begun[0](doubt)
    desk.ask("run1/s/1/1")
    assert (len(desk.begun), desk.told) == (1, [doubt, doubt])


def test_a_key_of_another_run_is_refused_untouched() -> None:
    desk = Desk()
    with pytest.raises(Problem) as raised:
        desk.ask("run0/s/1/0")
    assert (raised.value.status, raised.value.type) == (412, STALE_KEY)
    assert desk.begun == []


def test_a_repeat_from_another_run_is_in_doubt() -> None:
    with pytest.raises(OutcomeUnknownError):
        Desk().ask("run0/s/1/1")


def test_a_forgotten_session_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MAX_SESSIONS", 2)
    desk = Desk()
    for session in ("a", "b", "c"):
        desk.ask(f"run1/{session}/1/0")
    with pytest.raises(OutcomeUnknownError):
        desk.ask("run1/a/1/1")
    desk.ask("run1/d/1/0")
    assert len(desk.begun) == 4


@pytest.mark.parametrize("key", ["", "run1", "run1/s/x/0", "run1/s/1/0/9", "run1/s/\u00e9/0"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError):
        Desk().ask(key)


# -- a store that remembers -------------------------------------------------------------------------------------------


class Counter:
    """A server's counter over a store that it shares; a step is run at once."""

    def __init__(self, store: RemoteMemory, run: str = "run1") -> None:
        self.service = QueueService(store, sleep=lambda _seconds: None)
        self.repeats = Repeats(run, kept_by_store=True)
        self.told: list[object] = []

    def ask(self, key: str, *, is_lost: bool = False) -> object:
        """The outcome; `is_lost`: the server dies before anybody is told."""

        def start(call: ClientCall | None, done: Done) -> None:
            assert call is not None
            try:
                outcome: object = self.service.run(KeptAdd(QUEUE, [NewTask(b"x")], call))
            except QueueError as error:
                outcome = error
            if not is_lost:
                done(outcome)

        self.repeats.once(key.encode(), start, self.told.append)
        return self.told[-1] if self.told else None


@pytest.fixture(params=["transaction", "verb"])
def shared(request: pytest.FixtureRequest) -> RemoteMemory:
    store = RemoteMemory(unit=request.param)
    QueueService(store).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    return store


def _tasks(store: RemoteMemory) -> int:
    return QueueService(store.memory).look(lambda turn: turn.stats(QUEUE, ANY)).added_total


def test_a_repeat_at_another_server_gets_the_outcome_of_the_first(shared: RemoteMemory) -> None:
    first, other = Counter(shared), Counter(RemoteMemory(shared.memory, unit=shared.unit), "run2")
    first.ask("run1/s/1/0", is_lost=True)
    assert other.ask("run1/s/1/1") == [Added("_1", "added", ready=True)]
    assert other.ask("run2/s/2/0") == [Added("_2", "added", ready=True)]
    assert _tasks(shared) == 2


def test_a_repeat_of_an_add_that_did_not_arrive_takes_effect(shared: RemoteMemory) -> None:
    assert Counter(shared).ask("run0/s/1/1") == [Added("_1", "added", ready=True)]


def test_an_add_that_failed_is_not_remembered(shared: RemoteMemory) -> None:
    counter = Counter(shared)
    shared.is_down = True
    assert isinstance(counter.ask("run1/s/1/0"), StoreUnavailableError)
    shared.is_down = False
    assert counter.ask("run1/s/1/1") == [Added("_1", "added", ready=True)]


def test_an_add_whose_answer_the_store_did_not_give_is_not_done_again(shared: RemoteMemory) -> None:
    counter = Counter(shared)
    shared.answers_to_lose = 1
    assert isinstance(counter.ask("run1/s/1/0"), OutcomeUnknownError)
    assert counter.ask("run1/s/1/1") == [Added("_1", "added", ready=True)]
    assert _tasks(shared) == 1


def test_a_straggler_that_comes_after_its_repeat_adds_nothing() -> None:
    store = RemoteMemory()
    QueueService(store).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    assert Counter(store, "run2").ask("run1/s/1/1") == [Added("_1", "added", ready=True)]
    assert Counter(store).ask("run1/s/1/0") == [Added("_1", "added", ready=True)]
    assert _tasks(store) == 1


def test_an_older_add_of_a_session_is_over(shared: RemoteMemory) -> None:
    Counter(shared).ask("run1/s/2/0")
    assert isinstance(Counter(shared).ask("run1/s/1/1"), OutcomeUnknownError)
