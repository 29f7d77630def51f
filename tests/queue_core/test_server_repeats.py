"""A repeated add meets the memory of its first."""

import pytest

from queue_core.errors import InvalidRequestError, OutcomeUnknownError, UnknownQueueError
from queue_core.http_api.problem_types import STALE_KEY
from queue_core.server import repeats
from queue_core.server.problems import Problem
from queue_core.server.repeats import Repeats
from queue_core.server.turns import Done


class Desk:
    """Counts what was begun, and finishes it when told to."""

    def __init__(self) -> None:
        self.repeats = Repeats("run1")
        self.begun: list[Done] = []
        self.told: list[object] = []

    def ask(self, key: str) -> None:
        self.repeats.once(key.encode(), self.begun.append, self.told.append)


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
