"""Detect contention: fewer leases at a time get as much done. It is suspected from durations, then tried. Pure.

Leases that last longer among many may simply be other work. So a late and suspected pool tries fewer leases, more, and
fewer again, and a result counts only if every trial confirms it (ADR 19).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from statistics import fmean, geometric_mean, median
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, QueueSample, RunningLease
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec

_SEEN: Final = 100
_SEEN_SECONDS: Final = 900.0
"""Leases kept of each size, the latest to end, and their greatest age."""
_TRIED: Final = 256
"""Leases kept of a trial step, the first to begin."""
_FEWEST: Final = 12
"""The fewest leases on each side of a comparison."""
_ERRORS: Final = 3.3
"""Standard errors by which the sides must differ: p < 0.001 for each step alone."""
_DOUBT: Final = 2.0
"""Standard errors within which sizes count as equal to the best; the middle of those is tried."""
_FEWER: Final = 0.75
"""The share of the present leases that the smaller size must not exceed for a trial to pay."""
_LONGEST_SECONDS: Final = 60.0
"""The typical lease among many beyond which there is no trial: it would cost more than it may bring."""
_STEP_SECONDS: Final = 60.0
_STEP_LEASES: Final = 3.0
"""A step lasts at most `_STEP_SECONDS` plus this many typical leases among many."""
_CAP_SECONDS: Final = 1800.0
"""How long a confirmed cap holds."""
_QUIET_SECONDS: Final = 3600.0
"""How long nothing is tried after a trial that confirmed nothing."""
_HELD_SECONDS: Final = 30.0
_HELD_LEASES: Final = 3.0
"""A cap is checked after `_HELD_SECONDS` plus this many typical leases."""
_AGAIN_SECONDS: Final = 300.0
"""Added to that after a probe with more leases that was in vain."""
_SHORTEST_SECONDS: Final = 0.001
_LONG_AGO: Final = Monotonic(float("-inf"))

Step = Literal["fewer", "more", "again", "held", "probe"]


@value
class TimedLease:
    """A lease that began among `held`, itself included; `seconds` so far where it `runs`."""

    tag: str | None
    began_at: float
    seconds: float
    held: int
    runs: bool = False

    @property
    def share(self) -> float:
        """The pool's time that the task took, in seconds: throughput is one divided by the mean of these."""
        return self.seconds / self.held


Sizes = Mapping[int, tuple[TimedLease, ...]]
"""Leases by the power of two of how many were held at a time."""


@value
class Trial:
    """A trial of `few` leases at a time against `many`: fewer, more, fewer again; then `few` is held `until`.

    A pool that falls behind while `few` is held probes twice as many. `done_few` and `done_many` are the leases of the
    last step with each size, `fresh` those of the present step, which began at `since` with `ready` tasks waiting.
    """

    few: int
    many: int
    done_few: tuple[TimedLease, ...]
    done_many: tuple[TimedLease, ...]
    since: Monotonic
    ready: int
    step: Step = "fewer"
    fresh: tuple[TimedLease, ...] = ()
    until: Monotonic = _LONG_AGO

    @property
    def limit(self) -> int:
        """The most leases at a time."""
        return {"more": self.many, "probe": min(2 * self.few, self.many)}.get(self.step, self.few)

    @property
    def comparison(self) -> str:
        """The throughput of each size, in words."""
        many, few = 1.0 / _mean(self.done_many), 1.0 / _mean(self.done_few)
        return f"{self.many} at a time did {many:.3g} tasks a second, {self.few} did {few:.3g}"

    def describe(self, now: Monotonic) -> str:
        """Return the comparison and its consequence in words."""
        if self.step != "held":
            return f"{self.comparison}: trying {self.limit}"
        return f"{self.comparison} (p < 0.001): {self.few} at most for {(self.until - now) / 60.0:.0f} min"

    def after(self, sample: QueueSample, leases: Iterable[TimedLease], spec: PoolSpec) -> "Trial | None":
        """Return the trial after a sample; None if fewer leases turn out to do less."""
        if self.step == "held":
            if sample.at - self.since < _HELD_SECONDS + _HELD_LEASES * _seconds(self.done_few):
                return self
            is_behind = _is_late(sample, spec) and sample.ready >= self.ready
            return self.then("probe" if is_behind else "held", sample)
        is_more, limit = self.limit > self.few, self.limit
        least, most = (math.sqrt(self.few * limit), math.inf) if is_more else (0.0, math.sqrt(2) * self.few)
        new = [lease for lease in leases if lease.began_at >= self.since and least < lease.held <= most]
        began = sorted([*self.fresh, *new], key=attrgetter("began_at"))[:_TRIED]
        tried = tuple(_ripe(began, self.done_few if is_more else self.done_many, sample.at))
        few, many = (self.done_few, tried) if is_more else (tried, self.done_many)
        errors = _errors(few, many)
        is_so = bool(tried) and _mean(few) <= _mean(many)
        is_over = sample.at - self.since > _STEP_SECONDS + _STEP_LEASES * _seconds(self.done_many)
        if self.step == "probe" and (is_over or abs(errors) >= _ERRORS):
            if is_so:
                held = replace(self, many=limit, done_many=many) if errors >= _ERRORS else self
                return replace(held.then("held", sample), since=Monotonic(sample.at + _AGAIN_SECONDS))
            raised = replace(self, few=limit, done_few=tried or few)
            return None if limit >= self.many else raised.then("held", sample)
        if is_so and errors >= _ERRORS:
            until = Monotonic(sample.at + _CAP_SECONDS)
            step: Step = "more" if self.step == "fewer" else "again" if is_more else "held"
            return replace(self.then(step, sample), done_few=few, done_many=many, until=until)
        if is_over or errors <= -_ERRORS:
            return None
        return replace(self, fresh=tuple([lease for lease in began if not lease.runs]))

    def then(self, step: Step, sample: QueueSample) -> "Trial":
        """Return the trial at the beginning of a step."""
        return replace(self, step=step, fresh=(), since=sample.at, ready=sample.ready)


@value
class Contention:
    """The recent leases by size, and the trial under way or held, if any; none begins before `quiet_until`."""

    seen: Sizes = field(default_factory=dict)
    trial: Trial | None = None
    quiet_until: Monotonic = _LONG_AGO

    def after(self, sample: QueueSample, spec: PoolSpec, *, startup_seconds: float) -> "Contention":
        """Learn from a new sample of the pool, whose workers start in `startup_seconds`."""
        if spec.contention == "off":
            return NO_CONTENTION
        at, trial = sample.at, self.trial
        ended = [_timed(lease, at, lease.ended_seconds_ago) for lease in sample.finished if lease.outcome == "deleted"]
        running = [_timed(lease, at) for lease in sample.running]
        seen = _added(self.seen, ended, _SEEN)
        if trial is not None and spec.contention == "guard":
            if trial.step in {"held", "probe"} and at >= trial.until:
                return NO_CONTENTION
            trial = trial.after(sample, [*ended, *running], spec)
            return Contention(quiet_until=Monotonic(at + _QUIET_SECONDS)) if trial is None else Contention(seen, trial)
        if at < self.quiet_until or not _is_late(sample, spec):
            return Contention(seen, None, self.quiet_until)
        trial = _suspected(_added(seen, running, _SEEN + len(running)), sample, spec)
        if trial is not None and sample.oldest_seconds < startup_seconds + _seconds(trial.done_many):
            trial = None  # tasks would wait longer because of the trial than without it
        return Contention(seen, trial, self.quiet_until)


NO_CONTENTION: Final = Contention()


def _timed(lease: LeaseSample | RunningLease, at: Monotonic, ago: float | None = None) -> TimedLease:
    seconds = max(_SHORTEST_SECONDS, lease.held_seconds)
    return TimedLease(lease.tag, at - (ago or 0.0) - lease.held_seconds, seconds, lease.at_a_time, ago is None)


def _added(sizes: Sizes, leases: Iterable[TimedLease], most: int) -> Sizes:
    """Return the sizes with these leases added, at most `most` of each."""
    new: dict[int, list[TimedLease]] = {}
    for lease in leases:
        if lease.held > 0:
            new.setdefault(lease.held.bit_length(), []).append(lease)
    return {**sizes, **{size: (*sizes.get(size, ()), *alike)[-most:] for size, alike in new.items()}}


def _is_late(sample: QueueSample, spec: PoolSpec) -> bool:
    return sample.oldest_seconds > spec.slo


def _suspected(sizes: Sizes, sample: QueueSample, spec: PoolSpec) -> Trial | None:
    """Return a trial of the sizes that seem to do most against the one that seems to do least, if that is larger."""
    lately = [[lease for lease in size if sample.at - lease.began_at < _SEEN_SECONDS] for size in sizes.values()]
    known = sorted([size for size in lately if len(size) >= _FEWEST], key=_share)
    larger = [_ripe(size, known[0], sample.at) for size in known if size[0].held > known[0][0].held]
    if not larger:
        return None
    many = max(larger, key=_share)
    good = [size for size in known if _errors(known[0], size) < _DOUBT]
    few = [lease for size in good for lease in size]
    if _errors(few, many) < _ERRORS or _seconds(many) > _LONGEST_SECONDS:
        return None
    at_few = round(geometric_mean([fmean([lease.held for lease in size]) for size in good]))
    at_few = max(at_few, spec.workers.min * spec.concurrency)
    at_many = round(fmean([lease.held for lease in many]))
    if at_few > _FEWER * min(at_many, sample.in_flight):
        return None
    return Trial(at_few, at_many, tuple(few), tuple(many), sample.at, sample.ready)


def _ripe(leases: Iterable[TimedLease], other: Sequence[TimedLease], at: Monotonic) -> list[TimedLease]:
    """Return the leases that began long enough ago to last as long as others; else only short ones would count."""
    even = _share(other)
    return [lease for lease in leases if at - lease.began_at >= even * lease.held]


def _errors(few: Sequence[TimedLease], many: Sequence[TimedLease]) -> float:
    """Return by how many standard errors leases among many take more of the pool's time; 0 if too few are known.

    A running lease counts as endless among few, and as its age among many, so doubt favours the larger size.
    Source: the rank sum test of Mann and Whitney, for each tag.
    """
    if min(len(few), len(many)) < _FEWEST:
        return 0.0
    above = variance = 0.0
    for tag in {lease.tag for lease in few}:
        quick = sorted([math.inf if lease.runs else lease.share for lease in few if lease.tag == tag])
        slow = [lease.share for lease in many if lease.tag == tag]
        above += sum(bisect_left(quick, share) + bisect_right(quick, share) - len(quick) for share in slow) / 2
        variance += len(quick) * len(slow) * (len(quick) + len(slow) + 1) / 12
    return above / math.sqrt(variance) if variance else 0.0


def _mean(leases: Iterable[TimedLease]) -> float:
    return fmean([lease.share for lease in leases])


def _share(leases: Sequence[TimedLease]) -> float:
    return median([lease.share for lease in leases]) if leases else 0.0


def _seconds(leases: Iterable[TimedLease]) -> float:
    return median([lease.seconds for lease in leases])
