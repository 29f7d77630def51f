"""I10, and I7 for never leased tasks: a lease takes the oldest task that is surely there, and never nothing. Pure.

Within one answer the etas rise. Between calls only such tasks prove something that were acknowledged before the lease
was requested, without delay, and whose first lease came after the answer.
"""

from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tests.faults.history import HistoryCall
from tests.faults.lives import FOREVER, Life

UNANSWERED_SECONDS = 1.0
"""How long a call without an answer is assumed to be in progress, in seconds."""
TAKEN_BACK_SECONDS = 2.0
"""Seconds after a call's end within which its undelivered tasks are leasable again: a server releases them, and
an engine that loses the connection rolls back.
"""
LATE_SECONDS = 1.0
"""Leases granted that many seconds after the call are released, and leased anew."""
SILENCE_SECONDS = 0.25
ONE_TRY_SECONDS = 0.02
"""A longer call may have been retried inside; its first try may have held tasks unseen."""


def order(
    calls: Sequence[HistoryCall], lives: dict[str, Life], *, clock_error: int, apart: Container[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each invariant that a lease broke, and how, but for queues `apart`: their tasks wait for more than etas.

    A waiting task's eta may be ahead of this host's clock, and the lease's instant behind it, by `clock_error` each.
    """
    slack = 2 * clock_error
    waiting = _Waiting(lives, takes_back_unseen=_takes_back_unseen(calls))
    hiding = _Hiding(calls)
    for call in calls:
        if call.request.verb != "lease" or call.outcome != "ok" or call.answered is None:
            continue
        if call.request.queue in apart:
            continue
        took = call.answered.at - call.invoked.at
        for one, following in pairwise(call.answer.leases):
            if following.ready_at < one.ready_at:
                yield "I10", f"{following.uid} with the earlier eta was leased after {one.uid}"
        if took + slack >= 1e6 * call.request.seconds:
            continue  # its leases may have expired on the way, and are then not in the answer
        newest = max((lease.ready_at for lease in call.answer.leases), default=FOREVER)
        left = waiting.left_behind(call, added_before=min(newest, call.invoked.at) - slack)
        if not left or len(left) <= hiding.most(call):
            continue
        if call.answer.leases:
            yield "I10", f"{left[0]} was leasable before {newest}, the eta of a task that was leased instead"
        else:
            yield "I7", f"{left[0]} was leasable, but a lease of {call.request.filter} came back empty"


@dataclass(frozen=True, slots=True)
class _Span:
    """A task that surely waited, unleased, from `since` to `until`."""

    since: int
    until: int
    uid: str


class _Waiting:
    """The tasks that surely waited, by queue and tag."""

    def __init__(self, lives: dict[str, Life], *, takes_back_unseen: bool) -> None:
        self._spans: dict[tuple[str, str | None], list[_Span]] = {}
        for life in lives.values():
            for queue, tag, span in _surely_waiting(life, takes_back_unseen=takes_back_unseen):
                self._spans.setdefault((queue, tag), []).append(span)
        self._since: dict[tuple[str, str | None], list[int]] = {}
        self._longest: dict[tuple[str, str | None], list[int]] = {}
        for key, of_tag in self._spans.items():
            of_tag.sort(key=lambda span: (span.since, span.until, span.uid))
            self._since[key] = [span.since for span in of_tag]
            self._longest[key] = list(accumulate((span.until for span in of_tag), max))

    def left_behind(self, call: HistoryCall, *, added_before: int) -> list[str]:
        """Return tasks the lease should have taken: waiting from before `added_before` until after the answer."""
        assert call.answered is not None
        answered_at = call.answered.at
        granted_tags = {lease.tag for lease in call.answer.leases}
        left: list[str] = []
        for (queue, tag), since in self._since.items():
            if queue != call.request.queue or not call.request.filter.accepts(tag):
                continue
            if call.request.filter_kind == "oldest" and granted_tags and tag not in granted_tags:
                continue  # the oldest group is determined by its own tasks only
            index = bisect_left(since, added_before)
            if index and self._longest[queue, tag][index - 1] > answered_at:
                left += [span.uid for span in self._spans[queue, tag][:index] if span.until > answered_at]
        return left


class _Hiding:
    """Calls that may have held tasks for a while without a trace, and how many each.

    An undelivered lease is released to its old place, uncounted, or was never committed; a call may have been retried
    inside. Meanwhile that many of its tasks are invisible to others.
    """

    def __init__(self, calls: Sequence[HistoryCall]) -> None:
        self._windows: dict[str, list[tuple[int, int, HistoryCall]]] = {}
        silences = _silences(calls)
        for call in calls:
            if call.request.verb != "lease":
                continue
            ended_at = call.answered.at if call.answered else call.invoked.at + round(1e6 * UNANSWERED_SECONDS)
            if call.outcome == "ok" and ended_at - call.invoked.at < 1e6 * ONE_TRY_SECONDS:
                continue
            until = ended_at + (0 if call.outcome == "ok" else round(1e6 * TAKEN_BACK_SECONDS))
            for began_at, over_at in silences if call.outcome != "ok" else ():
                if call.invoked.at <= over_at and until >= began_at:
                    until = max(until, over_at + round(1e6 * TAKEN_BACK_SECONDS))
            self._windows.setdefault(call.request.queue, []).append((call.invoked.at, until, call))

    def most(self, asking: HistoryCall) -> int:
        """Return how many tasks such calls may have hidden from this call, or it from itself."""
        assert asking.answered is not None
        return sum(
            call.request.count
            for since, until, call in self._windows.get(asking.request.queue, ())
            if since <= asking.answered.at
            and until >= asking.invoked.at
            and (call is not asking or asking.answered.at - asking.invoked.at > 1e6 * LATE_SECONDS)
        )


def _silences(calls: Sequence[HistoryCall]) -> list[tuple[int, int]]:
    """Return when no call was answered for a while, in order: the store was unavailable."""
    answered = sorted(call.answered.at for call in calls if call.answered is not None and call.outcome == "ok")
    return [(one, following) for one, following in pairwise(answered) if following - one > 1e6 * SILENCE_SECONDS]


def _takes_back_unseen(calls: Sequence[HistoryCall]) -> bool:
    """Return whether a server may have released, uncounted, the leases of a worker killed meanwhile.

    Such a lease leaves no trace but its instant: the task has its old place and number, and the worker recorded
    nothing.
    """
    return any(call.request.verb == "release_worker" and call.answered is None for call in calls)


def _surely_waiting(life: Life, *, takes_back_unseen: bool) -> Iterator[tuple[str, str | None, _Span]]:
    """Return the span from the answer of the only add to the first lease, or forever; None if anything is uncertain."""
    if len(life.addings) != 1 or life.named_deletions:
        return
    adding = life.addings[0]
    answered = adding.call.answered
    delayed = adding.request.eta is not None or bool(adding.request.delay_seconds)
    if adding.effect != "done" or adding.status not in ("added", "") or answered is None or delayed:
        return
    if adding.call.outcome != "ok":
        return  # its caller gave up: the server may have done it long after
    if life.grants:
        first = life.grants[0]
        if first.lease.number == 1 and first.call is not None and not takes_back_unseen:
            yield adding.request.queue, adding.request.tag, _Span(answered.at, first.leased_at, life.uid)
    elif any(task.leased_at == 0 and task.state == "READY" for task in life.stored):
        yield adding.request.queue, adding.request.tag, _Span(answered.at, FOREVER, life.uid)
