"""Where work fails because there is more of it: the most leases at a time that what it depends on stands. Pure.

Leases that began among few are compared with those that began among many, within one lot of leases that began one after
the other: so neither an outage, nor tasks that fail anyway, nor a pool that grows because of either looks like it.
Source: Cochran, Mantel and Haenszel's test of one effect in many small tables.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.samples import LeaseSample
from orchestrator.values import value

_LOT: Final = 16
"""Leases that are compared with each other; fewer that began within `_LOT_SECONDS` are forgotten."""
_MOST_LOTS: Final = 32
"""Of one sample; those that began last."""
_LAST_NUMBER: Final = 10
"""A task that has failed so often tells no more of what it depends on."""
_LOT_SECONDS: Final = 300.0
_HALF_LIFE_SECONDS: Final = 600.0
_FEWEST: Final = 16.0
"""Leases on each side, at least, before anything is said of them."""
_JUDGED: Final = 48
"""Leases under a ceiling, at least, before it is given up or raised."""
_FEWEST_TO_TELL: Final = 8.0
"""The same, to tell sizes from each other once it is known that the size matters."""
_ERRORS: Final = 4.0
"""Standard errors: of chance alone one of 30,000 looks at one size; there are several sizes, and many looks."""
_WORSE: Final = 0.15
_TIMES: Final = 2.0
"""By so much more, and so many times as many, fail among many: less is not worth a smaller pool."""
_FIRST_WAIT_SECONDS: Final = 60.0
_LONGEST_WAIT_SECONDS: Final = 900.0
_UNSEEN_SECONDS: Final = 1800.0
"""A ceiling under which this little is done is raised all the same."""
_QUIET_SECONDS: Final = 1800.0
"""How long nothing is done after a ceiling that was in vain."""
_STEP: Final = 4
"""A quarter more is tried at a time, at least one; and splits lie as far from each other."""
_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class FailureSplit:
    """Leases that began among at most so many, and among more: how many, and how many of each failed; decayed.

    `expected` of `many_failed` if the size were no matter, and with which variance; `many_held` is the sum of the sizes
    among which they began.
    """

    few: float = 0.0
    few_failed: float = 0.0
    many: float = 0.0
    many_failed: float = 0.0
    many_held: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    def kept(self, share: float) -> "FailureSplit":
        """What is left of it after a while."""
        return FailureSplit(
            self.few * share,
            self.few_failed * share,
            self.many * share,
            self.many_failed * share,
            self.many_held * share,
            self.expected * share,
            self.variance * share,
        )

    @property
    def few_share(self) -> float:
        return self.few_failed / self.few

    @property
    def many_share(self) -> float:
        return self.many_failed / self.many

    def errors(self, *, fewest: float) -> float:
        """By how many standard errors more fail among many; 0 while less is known, or the difference is small."""
        if min(self.few, self.many) < fewest or self.variance <= 0.0:
            return 0.0
        if self.many_share < max(self.few_share + _WORSE, _TIMES * self.few_share):
            return 0.0
        return (self.many_failed - self.expected - 0.5) / math.sqrt(self.variance)


_NOTHING: Final = FailureSplit()


@value
class Ceiling:
    """At most so many `leases` at a time; at `probe_at` some more are tried.

    `known` of them are stood: there `few_share` failed, and `many_share` at `beyond`; before, `all_share` of all. Since
    it is as it is, `seen` leases began and ended; `tried` of them began among at most `known`, and `failed` of these
    failed.
    """

    leases: int
    known: int
    beyond: int
    few_share: float
    many_share: float
    all_share: float
    since: Monotonic
    probe_at: Monotonic
    wait_seconds: float = _FIRST_WAIT_SECONDS
    seen: int = 0
    tried: int = 0
    failed: int = 0

    @property
    def is_in_vain(self) -> bool:
        """Whether nearly as many fail under it as did before: then it was not the size."""
        return self.tried >= _JUDGED and self.failed > self.tried * (self.few_share + self.all_share) / 2


Began = tuple[int, bool]
"""A lease: as one of how many it began, and whether it failed."""


@value
class Overload:
    """What is known of it. `lot` is not yet compared; `splits` are by the most that count as few; `ended` of all leases
    `failed`, decayed.
    """

    splits: Mapping[int, FailureSplit] = field(default_factory=dict)
    lot: tuple[Began, ...] = ()
    lot_at: Monotonic = _LONG_AGO
    ended: float = 0.0
    failed: float = 0.0
    at: Monotonic = _LONG_AGO
    ceiling: Ceiling | None = None
    quiet_until: Monotonic = _LONG_AGO

    def after(self, finished: Sequence[LeaseSample], *, at: Monotonic) -> "Overload":
        """Learn from leases that ended since the sample before."""
        told = [lease for lease in finished if lease.lease_number <= _LAST_NUMBER and lease.at_a_time > 0]
        if not told and self.ceiling is None:
            return self
        known = _compared(self, told, at)
        lowered = _lowered(known, at)
        if lowered is not known or known.ceiling is None:
            return lowered
        return _tried(known, known.ceiling, told, at)


def _compared(known: Overload, told: Sequence[LeaseSample], at: Monotonic) -> Overload:
    is_forgotten = at - known.lot_at > _LOT_SECONDS
    began = sorted(told, key=lambda lease: lease.held_seconds + lease.ended_seconds_ago, reverse=True)
    new = [(lease.at_a_time, lease.outcome != "deleted") for lease in began[-_MOST_LOTS * _LOT :]]
    lot = (*(() if is_forgotten else known.lot), *new)
    if len(lot) < _LOT:
        return replace(known, lot=lot, lot_at=at if is_forgotten or not known.lot else known.lot_at)
    keep = 0.5 ** (max(0.0, at - known.at) / _HALF_LIFE_SECONDS)
    splits: Mapping[int, FailureSplit] = {size: split.kept(keep) for size, split in known.splits.items()}
    ends = len(lot) - len(lot) % _LOT
    for begins in range(0, ends, _LOT):
        splits = _learned(splits, lot[begins : begins + _LOT])
    ended = known.ended * keep + ends
    failed = known.failed * keep + sum(has_failed for _, has_failed in lot[:ends])
    return replace(known, splits=splits, lot=lot[ends:], lot_at=at, ended=ended, failed=failed, at=at)


def _lowered(known: Overload, at: Monotonic) -> Overload:
    """Lower the ceiling, or set one, where more fail among more."""
    if at < known.quiet_until or not known.splits:
        return known
    before = known.ceiling
    if max(split.errors(fewest=_FEWEST) for split in known.splits.values()) < _ERRORS:
        return known
    # That there is such a size is known; which one is where the difference is greatest.
    _, size = max((split.errors(fewest=_FEWEST_TO_TELL), size) for size, split in known.splits.items())
    if before is not None and size >= before.leases:
        return known
    split = known.splits[size]
    wait_seconds = before.wait_seconds if before is not None else _FIRST_WAIT_SECONDS
    if before is not None and before.leases > before.known:
        wait_seconds = min(_LONGEST_WAIT_SECONDS, 2.0 * wait_seconds)  # more was tried in vain
    beyond = max(size + 1, round(split.many_held / split.many))
    probe_at = Monotonic(at + wait_seconds)
    shares = split.few_share, split.many_share, known.failed / known.ended
    return Overload(ceiling=Ceiling(size, size, beyond, *shares, at, probe_at, wait_seconds))


def _tried(known: Overload, ceiling: Ceiling, told: Iterable[LeaseSample], at: Monotonic) -> Overload:
    """Give a ceiling up that is in vain, and raise one whose time has come."""
    since = [lease for lease in told if lease.held_seconds + lease.ended_seconds_ago <= at - ceiling.since]
    under = [lease for lease in since if lease.at_a_time <= ceiling.known]
    failed = sum(lease.outcome != "deleted" for lease in under)
    ceiling = replace(
        ceiling,
        seen=ceiling.seen + len(since),
        tried=ceiling.tried + len(under),
        failed=ceiling.failed + failed,
    )
    if ceiling.is_in_vain:
        return Overload(quiet_until=Monotonic(at + _QUIET_SECONDS))
    is_judged = ceiling.seen >= _JUDGED or at - ceiling.since >= _UNSEEN_SECONDS
    if at < ceiling.probe_at or not is_judged:
        return replace(known, ceiling=ceiling)
    leases = ceiling.leases + max(1, ceiling.leases // _STEP)
    if leases > 2 * ceiling.beyond:
        return Overload()
    probe_at = Monotonic(at + _FIRST_WAIT_SECONDS)
    stood = replace(ceiling, known=ceiling.leases, leases=leases, since=at, probe_at=probe_at)
    return Overload(ceiling=replace(stood, seen=0, tried=0, failed=0))


def _sizes(least: int, most: int) -> Iterator[int]:
    """The sizes at which leases that began among `least` to `most` are split."""
    size = 1
    while size < most:
        if size >= least:
            yield size
        size += max(1, size // _STEP)


def _learned(splits: Mapping[int, FailureSplit], lot: Sequence[Began]) -> Mapping[int, FailureSplit]:
    """The splits after one more lot. One in which all fail, or none, tells nothing of sizes."""
    count, failed = len(lot), sum(has_failed for _, has_failed in lot)
    if not 0 < failed < count:
        return splits
    left = sorted(lot, reverse=True)
    few = few_failed = few_held = 0
    held = sum(size for size, _ in lot)
    learned = {**splits}
    for size in _sizes(left[-1][0], left[0][0]):
        while left[-1][0] <= size:
            began_among, has_failed = left.pop()
            few += 1
            few_failed += has_failed
            few_held += began_among
        many, before = count - few, splits.get(size, _NOTHING)
        learned[size] = FailureSplit(
            before.few + few,
            before.few_failed + few_failed,
            before.many + many,
            before.many_failed + failed - few_failed,
            before.many_held + held - few_held,
            before.expected + many * failed / count,
            before.variance + few * many * failed * (count - failed) / (count * count * (count - 1)),
        )
    return learned
