"""Check the histories of all callers and the final contents of the store against the design's invariants. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.faults.history import HistoryCall
from tests.faults.limited import limits_are_obeyed
from tests.faults.lives import Contents, Effect, Life, lives_of
from tests.faults.order import order
from tests.faults.remembered import remembered
from tests.faults.rules import RULES

INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I13", "I16", "I19", "I20", "I22")
REPORTED_BY_DRIVERS = ("I14", "I18")
"""Invariants no history shows, reported by the drivers: answers of stopped servers, and processes of a stopped
supervisor."""
MAX_CLOCK_STEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the invariant's number in the design, and the evidence."""

    invariant: str
    what: str


class ClockSteppedError(Exception):
    """The wall clock was set during the run, so lease instants prove nothing; run again."""


def check(calls: Sequence[HistoryCall], contents: Contents) -> list[Violation]:
    """Return every violation that the calls and the contents prove. Raises `ClockSteppedError`.

    A call without an answer may have taken effect or not, at any time after its invocation: it proves no violation, and
    excuses whatever it can explain.
    """
    _check_clock(calls)
    lives = lives_of(calls, contents)
    found = [
        Violation(invariant, what)
        for invariant, rules in RULES.items()
        for rule in rules
        for life in lives.values()
        for what in rule(life, contents)
    ]
    found += [Violation("I1", what) for what in _hand_overs(lives)]
    found += [Violation("I9", what) for what in _mixed_groups(calls)]
    found += [Violation(*one) for one in order(calls, lives, clock_error=contents.clock_error, apart=contents.limits)]
    found += [Violation("I22", what) for what in limits_are_obeyed(lives.values(), contents)]
    found += [Violation(*one) for one in remembered(calls, lives, contents)]
    found += [Violation("I16", what) for what in _accounts(lives, contents)]
    return found


def count_by_invariant(violations: Iterable[Violation]) -> dict[str, int]:
    """Return the number of violations of every invariant."""
    counts = Counter(violation.invariant for violation in violations)
    return {invariant: counts[invariant] for invariant in (*INVARIANTS, *REPORTED_BY_DRIVERS)}


def _check_clock(calls: Sequence[HistoryCall]) -> None:
    offsets = [call.invoked.at * 1000 - call.invoked.ns for call in calls]
    if offsets and max(offsets) - min(offsets) > MAX_CLOCK_STEP_SECONDS * 1e9:
        step_seconds = (max(offsets) - min(offsets)) / 1e9
        raise ClockSteppedError(f"the wall clock moved by {step_seconds:.3f} s against CLOCK_MONOTONIC; run again")


def _hand_overs(lives: dict[str, Life]) -> Iterator[str]:
    """Check that `delete(task, then=[...])` is atomic: an unanswered one did both parts or neither."""
    for life in lives.values():
        deletions = [one for one in life.operations if one.verb == "delete" and one.effect != "refused"]
        named = any(effect != "refused" for _, effect in life.named_deletions)
        for operation in deletions:
            if operation.effect != "open":
                continue
            for request in operation.end.then:
                following = lives[request.uid]
                was_seen = life.stored or life.grants[-1].lease.token != operation.end.token
                if was_seen and following.is_seen and len(following.addings) == 1:
                    yield f"{life.uid} was not deleted, but {request.uid} was added in its place"
                gone = life.is_acknowledged and not life.stored and len(deletions) == 1 and not named
                if gone and not following.is_seen and not following.may_be_deleted:
                    yield f"{life.uid} was deleted, but {request.uid} was not added in its place"


def _mixed_groups(calls: Sequence[HistoryCall]) -> Iterator[str]:
    for call in calls:
        tags = {lease.tag for lease in call.answer.leases}
        if call.request.filter_kind == "oldest" and len(tags) > 1:
            yield f"a batch of one tag has {sorted(map(str, tags))}"


def _accounts(lives: dict[str, Life], contents: Contents) -> Iterator[str]:
    """I16: check the store's own check, its counts against its tasks, and its totals against acknowledged calls."""
    yield from contents.problems
    for queue, stats in contents.stats.items():
        counted: Counter[str] = Counter(task.state for task in contents.tasks if task.queue == queue)
        told = {"READY": stats.ready, "DELAYED": stats.delayed, "LEASED": stats.in_flight, "DEAD": stats.dead}
        told["HELD"] = stats.held
        for state, number in told.items():
            if counted[state] != number:
                yield f"{queue}: {number} tasks are said to be {state}, there are {counted[state]}"
        addings = [adding for life in lives.values() for adding in life.addings if adding.request.queue == queue]
        least = sum(adding.status == "added" for adding in addings)
        most = sum(adding.effect != "refused" and adding.status in ("added", "") for adding in addings)
        if not least <= stats.added_total <= most:
            yield f"{queue}: added_total is {stats.added_total}, adds that may count are {least} to {most}"
        done, removed = _departures(lives.values(), queue)
        if not contents.runners and not done.least <= stats.deleted_total <= done.most:
            yield f"{queue}: deleted_total is {stats.deleted_total}, deletions that may count are {done}"
        gone = stats.added_total - stats.deleted_total - sum(counted.values())
        if not removed.least <= gone <= removed.most:
            yield (
                f"{queue}: {stats.added_total} added, {stats.deleted_total} deleted, but {sum(counted.values())} left:"
                f" deletions by name explain {removed} tasks"
            )


@dataclass(frozen=True, slots=True)
class _Bounds:
    """How many tasks took a way out: those that callers know of, and those that they may not have heard of."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


def _departures(lives: Iterable[Life], queue: str) -> tuple[_Bounds, _Bounds]:
    """Return how many tasks of the queue were done, and how many removed by name, which no total counts (ADR 103)."""
    known = list(lives)
    done = _bounds(
        one.effect
        for life in known
        for one in life.operations
        if one.verb == "delete" and one.call.request.queue == queue
    )
    return done, _bounds(
        effect for life in known for call, effect in life.named_deletions if call.request.queue == queue
    )


def _bounds(effects: Iterable[Effect]) -> _Bounds:
    counted = Counter(effects)
    return _Bounds(counted["done"], counted["done"] + counted["open"])
