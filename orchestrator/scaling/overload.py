"""Detect overload: tasks fail because many run at a time. Find the most leases that their dependency stands. Pure.

Leases that began among few are compared with those that began among many, within one lot of consecutive leases. So an
outage, tasks that always fail, or a pool that grows because of either is not mistaken for overload.
Source: the test of Cochran, Mantel and Haenszel for one effect in many small tables.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample
from orchestrator.base.values import value

_LOT: Final = 16
"""The number of consecutive leases that are compared with each other."""
_MOST_LOTS: Final = 32
"""The most lots of one sample; the latest leases count."""
_LAST_NUMBER: Final = 10
"""The highest lease number that counts: a task that fails more often says nothing about its dependency."""
_LOT_SECONDS: Final = 300.0
"""Age after which an incomplete lot is dropped."""
_HALF_LIFE_SECONDS: Final = 600.0
_FEWEST: Final = 16.0
"""The fewest leases on each side of a split for a ceiling to be set."""
_JUDGED: Final = 48
"""The fewest leases under a ceiling before it is given up or raised."""
_FEWEST_TO_TELL: Final = 8.0
"""The fewest leases on each side to choose among sizes, once it is certain that the size matters."""
_ERRORS: Final = 4.0
"""Standard errors needed: chance alone exceeds them in one of 30,000 tests, and there are many tests."""
_WORSE: Final = 0.15
_TIMES: Final = 2.0
"""How much larger the failed share among many must be, as a difference and as a factor, to justify a smaller pool."""
_FIRST_WAIT_SECONDS: Final = 60.0
_LONGEST_WAIT_SECONDS: Final = 900.0
"""How long a ceiling waits before more is tried; doubled after each try in vain, up to the longest."""
_UNSEEN_SECONDS: Final = 1800.0
"""Age at which a ceiling is raised even if fewer than `_JUDGED` leases began under it."""
_QUIET_SECONDS: Final = 1800.0
"""How long no ceiling is set after one that did not help."""
_STEP: Final = 4
"""A ceiling is raised by one part in this many, at least by one; splits are as far apart."""
_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class FailureSplit:
    """The decayed counts of leases that began among few (at most the split's size) and among many, and their failures.

    `expected` is `many_failed` if size did not matter, with its `variance`; `many_held` is the sum of the sizes among
    which the many began.
    """

    few: float = 0.0
    few_failed: float = 0.0
    many: float = 0.0
    many_failed: float = 0.0
    many_held: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    def kept(self, share: float) -> "FailureSplit":
        """Return the counts decayed to this share."""
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
        """Return by how many standard errors more fail among many; 0 if too few are known or they differ little."""
        if min(self.few, self.many) < fewest or self.variance <= 0.0:
            return 0.0
        if self.many_share < max(self.few_share + _WORSE, _TIMES * self.few_share):
            return 0.0
        return (self.many_failed - self.expected - 0.5) / math.sqrt(self.variance)


_NOTHING: Final = FailureSplit()


@value
class Ceiling:
    """A ceiling of `leases` at a time; at `probe_at` it is raised to try more.

    `known` leases at a time are fine: `few_share` of them failed, against `many_share` at `beyond`, and `all_share` of
    all leases before. Since the ceiling was set, `seen` leases began and ended; `tried` of them began among at most
    `known`, of which `failed` failed.
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
        """True if nearly as many fail under it as before: then the size was not the cause."""
        return self.tried >= _JUDGED and self.failed > self.tried * (self.few_share + self.all_share) / 2


Began = tuple[int, bool]
"""A lease: how many were held when it began, itself included, and whether it failed."""


@value
class Overload:
    """The failures by size, and the ceiling that follows from them.

    `lot` has leases that are not compared yet; `splits` are by the largest size that counts as few; `ended` and
    `failed` are decayed counts of all leases.
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
        """Learn from leases that ended since the previous sample."""
        usable = [lease for lease in finished if lease.lease_number <= _LAST_NUMBER and lease.at_a_time > 0]
        if not usable and self.ceiling is None:
            return self
        known = _compared(self, usable, at)
        lowered = _lowered(known, at)
        if lowered is not known or known.ceiling is None:
            return lowered
        return _tried(known, known.ceiling, usable, at)


def _compared(known: Overload, usable: Sequence[LeaseSample], at: Monotonic) -> Overload:
    is_forgotten = at - known.lot_at > _LOT_SECONDS
    began = sorted(usable, key=lambda lease: lease.held_seconds + lease.ended_seconds_ago, reverse=True)
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
    """Set or lower the ceiling if more leases fail among many."""
    if at < known.quiet_until or not known.splits:
        return known
    before = known.ceiling
    if max(split.errors(fewest=_FEWEST) for split in known.splits.values()) < _ERRORS:
        return known
    # There is such a size; take the one with the clearest difference.
    _, size = max((split.errors(fewest=_FEWEST_TO_TELL), size) for size, split in known.splits.items())
    if before is not None and size >= before.leases:
        return known
    split = known.splits[size]
    wait_seconds = before.wait_seconds if before is not None else _FIRST_WAIT_SECONDS
    if before is not None and before.leases > before.known:
        wait_seconds = min(_LONGEST_WAIT_SECONDS, 2.0 * wait_seconds)  # raising it was in vain
    beyond = max(size + 1, round(split.many_held / split.many))
    probe_at = Monotonic(at + wait_seconds)
    shares = split.few_share, split.many_share, known.failed / known.ended
    return Overload(ceiling=Ceiling(size, size, beyond, *shares, at, probe_at, wait_seconds))


def _tried(known: Overload, ceiling: Ceiling, usable: Iterable[LeaseSample], at: Monotonic) -> Overload:
    """Drop a ceiling that does not help, and raise one that is due for a probe."""
    since = [lease for lease in usable if lease.held_seconds + lease.ended_seconds_ago <= at - ceiling.since]
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
    """Yield the sizes at which leases that began among `least` to `most` are split."""
    size = 1
    while size < most:
        if size >= least:
            yield size
        size += max(1, size // _STEP)


def _learned(splits: Mapping[int, FailureSplit], lot: Sequence[Began]) -> Mapping[int, FailureSplit]:
    """Return the splits after one more lot. A lot in which all fail, or none, says nothing about sizes."""
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
