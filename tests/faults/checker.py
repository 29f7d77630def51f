"""Holds the histories of all callers and the final contents of the store against the design's invariants. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tests.faults.history import Call
from tests.faults.lives import FOREVER, Contents, Life, lives_of
from tests.faults.rules import RULES

INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I13", "I16")
TOLD_BY_DRIVERS = ("I18",)
"""What no history shows: the processes of a stopped supervisor."""
MAX_CLOCK_STEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: the invariant's number in the design, and what was seen."""

    invariant: str
    what: str


class ClockSteppedError(Exception):
    """The wall clock was set during the run: instants of leases prove nothing; run again."""


def check(calls: Sequence[Call], contents: Contents) -> list[Violation]:
    """Every violation that the calls and the contents prove. Raises `ClockSteppedError`.

    A call without an answer may have taken effect or not, at any time after its invocation: it accuses nobody, and
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
    found += [Violation(*one) for one in _order(calls, lives)]
    found += [Violation("I16", what) for what in _accounts(lives, contents)]
    return found


def count_by_invariant(violations: Iterable[Violation]) -> dict[str, int]:
    """How many of each invariant, none left out."""
    counts = Counter(violation.invariant for violation in violations)
    return {invariant: counts[invariant] for invariant in (*INVARIANTS, *TOLD_BY_DRIVERS)}


def _check_clock(calls: Sequence[Call]) -> None:
    offsets = [call.invoked.at * 1000 - call.invoked.ns for call in calls]
    if offsets and max(offsets) - min(offsets) > MAX_CLOCK_STEP_SECONDS * 1e9:
        step_seconds = (max(offsets) - min(offsets)) / 1e9
        raise ClockSteppedError(f"the wall clock moved by {step_seconds:.3f} s against CLOCK_MONOTONIC; run again")


def _hand_overs(lives: dict[str, Life]) -> Iterator[str]:
    """`delete(task, then=[...])` is one step: what an unanswered one did to the task it did to `then`, too."""
    for life in lives.values():
        deletions = [one for one in life.operations if one.verb == "delete" and one.effect != "refused"]
        named = any(effect != "refused" for _, effect in life.named_deletions)
        for operation in deletions:
            if operation.effect != "open":
                continue
            for asked in operation.end.then:
                following = lives[asked.uid]
                if life.stored and following.is_seen and len(following.addings) == 1:
                    yield f"{life.uid} was not deleted, but {asked.uid} was added in its place"
                gone = life.is_acknowledged and not life.stored and len(deletions) == 1 and not named
                if gone and not following.is_seen and not following.may_be_deleted:
                    yield f"{life.uid} was deleted, but {asked.uid} was not added in its place"


def _mixed_groups(calls: Sequence[Call]) -> Iterator[str]:
    for call in calls:
        tags = {lease.tag for lease in call.answer.leases}
        if call.asked.filter_kind == "oldest" and len(tags) > 1:
            yield f"a batch of one tag has {sorted(map(str, tags))}"


def _order(calls: Sequence[Call], lives: dict[str, Life]) -> Iterator[tuple[str, str]]:
    """I10, and I7 for tasks that were never leased: a lease takes the oldest that is surely there, and never nothing.

    Within one answer the etas rise. Between calls only tasks prove something that were acknowledged before the lease
    was asked for, with no delay, and whose first lease, its number says, came after the answer.
    """
    waiting = _Waiting(lives, takes_back_unseen=_takes_back_unseen(calls))
    for call in calls:
        if call.asked.verb != "lease" or call.outcome != "ok" or call.answered is None:
            continue
        for one, following in pairwise(call.answer.leases):
            if following.ready_at < one.ready_at:
                yield "I10", f"{following.uid} with the earlier eta was leased after {one.uid}"
        if not call.answer.leases:
            left = waiting.left_behind(call, added_before=call.invoked.at)
            if left:
                yield "I7", f"{left} was leasable, but a lease of {call.asked.filter} came back empty"
            continue
        newest = max(lease.ready_at for lease in call.answer.leases)
        left = waiting.left_behind(call, added_before=min(newest, call.invoked.at))
        if left:
            yield "I10", f"{left} was leasable before {newest}, the eta of a task that was leased instead"


class _Waiting:
    """For each queue and tag, which tasks surely waited, unleased, from when until when."""

    def __init__(self, lives: dict[str, Life], *, takes_back_unseen: bool) -> None:
        spans: dict[tuple[str, str | None], list[tuple[int, int, str]]] = {}
        for life in lives.values():
            for queue, tag, since, until in _surely_waiting(life, takes_back_unseen=takes_back_unseen):
                spans.setdefault((queue, tag), []).append((since, until, life.uid))
        self._since: dict[tuple[str, str | None], list[int]] = {}
        self._longest: dict[tuple[str, str | None], list[tuple[int, str]]] = {}
        for key, of_tag in spans.items():
            of_tag.sort()
            self._since[key] = [since for since, _, _ in of_tag]
            self._longest[key] = list(accumulate(((until, uid) for _, until, uid in of_tag), max))

    def left_behind(self, call: Call, *, added_before: int) -> str:
        """A task that the lease should have taken: it waited since before `added_before` until after the answer."""
        assert call.answered is not None
        granted_tags = {lease.tag for lease in call.answer.leases}
        for (queue, tag), since in self._since.items():
            if queue != call.asked.queue or not call.asked.filter.accepts(tag):
                continue
            if call.asked.filter_kind == "oldest" and granted_tags and tag not in granted_tags:
                continue  # which group is the oldest is judged by its own tasks only
            index = bisect_left(since, added_before)
            if index:
                until, uid = self._longest[queue, tag][index - 1]
                if until > call.answered.at:
                    return uid
        return ""


def _takes_back_unseen(calls: Sequence[Call]) -> bool:
    """Whether a server may have taken back, uncounted, what it had granted to a worker that was killed meanwhile.

    Such a lease leaves no trace but its instant: the task has its old place and number.
    """
    return any(call.asked.verb == "release_worker" and call.answered is None for call in calls)


def _surely_waiting(life: Life, *, takes_back_unseen: bool) -> Iterator[tuple[str, str | None, int, int]]:
    """From the answer of its only add to its first lease, or for ever; nothing where anything about it is open."""
    if len(life.addings) != 1 or life.named_deletions:
        return
    adding = life.addings[0]
    answered = adding.call.answered
    delayed = adding.asked.eta is not None or bool(adding.asked.delay_seconds)
    if adding.effect != "done" or adding.status not in ("added", "") or answered is None or delayed:
        return
    if life.grants:
        first = life.grants[0]
        if first.lease.number == 1 and first.call is not None and not takes_back_unseen:
            yield adding.asked.queue, adding.asked.tag, answered.at, first.leased_at
    elif any(task.leased_at == 0 and task.state == "READY" for task in life.stored):
        yield adding.asked.queue, adding.asked.tag, answered.at, FOREVER


def _accounts(lives: dict[str, Life], contents: Contents) -> Iterator[str]:
    """I16: the store's own check, its counts against its tasks, and its totals against what was acknowledged."""
    yield from contents.problems
    for queue, stats in contents.stats.items():
        counted: Counter[str] = Counter(task.state for task in contents.tasks if task.queue == queue)
        told = {"READY": stats.ready, "DELAYED": stats.delayed, "LEASED": stats.in_flight, "DEAD": stats.dead}
        for state, number in told.items():
            if counted[state] != number:
                yield f"{queue}: {number} tasks are said to be {state}, there are {counted[state]}"
        addings = [adding for life in lives.values() for adding in life.addings if adding.asked.queue == queue]
        least = sum(adding.status == "added" for adding in addings)
        most = sum(adding.effect != "refused" and adding.status in ("added", "") for adding in addings)
        if not least <= stats.added_total <= most:
            yield f"{queue}: added_total is {stats.added_total}, adds that may count are {least} to {most}"
        if stats.added_total - stats.deleted_total != sum(counted.values()):
            yield f"{queue}: {stats.added_total} added, {stats.deleted_total} deleted, but {sum(counted.values())} left"
