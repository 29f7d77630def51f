"""Registrations on every store: facts hold for their time, are replaced and ended, by several programs at once."""

from threading import Thread

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import START, ManualClock
from queue_core.errors import InvalidRequestError, StoreUnavailableError
from queue_core.store import Store
from queue_core.unit import registration_verbs as verbs
from queue_core.unit.service import QueueService
from queue_core.verbs.registration import MAX_REGISTRATIONS, Registration
from tests.support.stores.restored_tasks import opened_again
from tests.support.stores.task_builders import MICROSECOND, at

KIND = "supervisors"


class RegisteringProgram:
    """A program with an opened store, and a clock that only moves when told."""

    def __init__(self, store: Store, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(START)
        self.queues = LocalQueues(QueueService(store, clock=self.clock))

    def known(self) -> dict[str, str]:
        return {one.name: one.facts.get("url", "") for one in self.queues.registrations(KIND)}

    def register(self, name: str, url: str, seconds: float = 10) -> None:
        self.queues.register(KIND, name, {"url": url}, seconds=seconds)


@pytest.fixture
def program(store: Store) -> RegisteringProgram:
    return RegisteringProgram(store)


@pytest.mark.parametrize(("off", "holds"), [(-MICROSECOND, True), (0, False), (MICROSECOND, False)])
def test_facts_hold_until_their_time_is_over(program: RegisteringProgram, off: float, holds: bool) -> None:
    program.register("a", "http://a")
    assert program.queues.registrations(KIND) == [Registration("a", {"url": "http://a"}, at(10))]
    program.clock.advance(10 + off)
    assert bool(program.known()) == holds


def test_they_are_renewed_replaced_and_ended_by_name(program: RegisteringProgram) -> None:
    program.register("b", "http://b")
    program.register("a", "http://a")
    assert list(program.known()) == ["a", "b"]
    program.clock.advance(9)
    program.register("a", "http://a2")
    program.clock.advance(2)
    assert program.known() == {"a": "http://a2"}
    program.register("a", "", seconds=0)
    program.register("a", "", seconds=0)
    assert program.known() == {}


def test_kinds_are_apart(program: RegisteringProgram) -> None:
    program.register("a", "http://a")
    program.queues.register("consoles", "a", {}, seconds=10)
    assert [one.facts for one in program.queues.registrations("consoles")] == [{}]
    assert program.known() == {"a": "http://a"}


def test_they_survive_a_restart(store: Store) -> None:
    RegisteringProgram(store).register("a", "http://ä")
    again = opened_again(store)
    kept = {} if store.url == "memory:" else {"a": "http://ä"}  # that one ends with its process
    assert RegisteringProgram(again).known() == kept
    again.close()


def test_several_programs_register_at_once_and_none_is_lost(store: Store) -> None:
    failures: list[Exception] = []

    def register(name: str) -> None:
        program = RegisteringProgram(store)
        for number in range(5):
            while True:
                try:
                    program.register(name, f"http://{number}")
                except StoreUnavailableError as error:  # the others were quicker five times
                    failures.append(error)
                else:
                    break

    threads = [Thread(target=register, args=(f"program-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert RegisteringProgram(store).known() == {f"program-{number}": "http://4" for number in range(4)}


@pytest.mark.parametrize(
    ("kind", "name", "facts", "seconds"),
    [
        pytest.param("Supervisors", "a", {}, 1, id="kind"),
        pytest.param("", "a", {}, 1, id="no-kind"),
        pytest.param(KIND, "a\ud800", {}, 1, id="name"),
        pytest.param(KIND, "a", {"x": "y" * 2048}, 1, id="too-much"),
        pytest.param(KIND, "a", {}, -1, id="negative"),
        pytest.param(KIND, "a", {}, 86_401, id="too-long"),
    ],
)
def test_what_is_beyond_the_bounds_is_refused(
    program: RegisteringProgram, kind: str, name: str, facts: dict[str, str], seconds: float
) -> None:
    with pytest.raises(InvalidRequestError):
        program.queues.register(kind, name, facts, seconds=seconds)


def test_one_kind_has_a_bounded_number(program: RegisteringProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_REGISTRATIONS == 1_000
    monkeypatch.setattr(verbs, "MAX_REGISTRATIONS", 2)
    program.register("a", "http://a")
    program.register("b", "http://b")
    with pytest.raises(InvalidRequestError, match="at most 2 supervisors"):
        program.register("c", "http://c")
    program.register("a", "http://a2")
