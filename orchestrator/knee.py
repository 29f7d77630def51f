"""Where more workers bring no more throughput: learned from how long leases last at each concurrency. Pure.

Source: Gunther's Universal Scalability Law says that such a knee exists where work contends for one thing; where it is,
only durations tell.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from operator import attrgetter
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.metrics import FinishedLease, RunningLease
from orchestrator.value import value

_RATIO: Final = math.log(1.3)
_MIN_LEASES: Final = 20.0
_MAX_LEASES: Final = 150.0
_FORGET_SECONDS: Final = 900.0
_RECENT_SECONDS: Final = 600.0
_MIN_BUSY: Final = 4
_FEWER: Final = 0.75
_SUSPECT_SECONDS: Final = 60.0
_SUSPECT_AGAIN_SECONDS: Final = 300.0
_HALF: Final = 0.5
_IN_VAIN: Final = 0.7
_SUSPICION_LEASES: Final = 6.0
_SUSPICION_ERRORS: Final = 2.0
_FIT_LEASES: Final = 5.0
_SINGULAR: Final = 1e-12
_ERRORS: Final = 3.0
_PROBE_LEASES: Final = 60
_CAP_SECONDS: Final = 1800.0
_QUIET_SECONDS: Final = 3600.0
_SHORTEST_SECONDS: Final = 0.001
_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class Bucket:
    """Leases that began while about as many were held: sums of the logarithms of their seconds, and of how many."""

    count: float = 0.0
    logs: float = 0.0
    squares: float = 0.0
    held: float = 0.0
    at: Monotonic = _LONG_AGO

    def after(self, ended: Iterable[FinishedLease], at: Monotonic) -> "Bucket":
        """Learn from leases; what is old, or very many, weighs less."""
        known = _EMPTY if at - self.at > _FORGET_SECONDS else self
        count, logs, squares, held = known.count, known.logs, known.squares, known.held
        for lease in ended:
            seconds = lease.held_seconds
            if seconds < _SHORTEST_SECONDS:
                seconds = _SHORTEST_SECONDS
            log = math.log(seconds)
            if count > _MAX_LEASES:
                count, logs, squares, held = 0.5 * count, 0.5 * logs, 0.5 * squares, 0.5 * held
            count += 1.0
            logs += log
            squares += log * log
            held += lease.at_a_time
        return Bucket(count, logs, squares, held, at)

    @property
    def mean_held(self) -> float:
        """How many were held, on average."""
        return self.held / self.count

    @property
    def mean_log(self) -> float:
        """The mean logarithm of seconds: contention multiplies durations, and long tails shrink."""
        return self.logs / self.count

    @property
    def variance(self) -> float:
        """Of the logarithms."""
        return max(1e-6, self.squares / self.count - self.mean_log**2)


_EMPTY: Final = Bucket()


@value
class Cap:
    """A size that is not exceeded until `until`; lifted earlier when leases at it bring less than `log_throughput`."""

    workers: int
    beyond: int
    log_throughput: float
    until: Monotonic
    leases: int = 0
    logs: float = 0.0


@value
class Knee:
    """What is known of contention. `cap` is in leases held at a time; while it `is_suspected`, growth should wait.

    A suspicion that is not confirmed within a minute is dropped for five minutes.
    """

    buckets: Mapping[int, Bucket] = field(default_factory=dict)
    cap: Cap | None = None
    suspected_at: Monotonic = _LONG_AGO
    quiet_until: Monotonic = _LONG_AGO
    is_suspected: bool = False

    def is_in_doubt(self, at: Monotonic) -> bool:
        """Whether contention was suspected within the last minute, for the first time in five."""
        return at - self.suspected_at <= _SUSPECT_SECONDS

    def after(
        self,
        finished: Iterable[FinishedLease],
        running: Sequence[RunningLease],
        *,
        is_waited_for: bool,
        at: Monotonic,
    ) -> "Knee":
        """Learn from leases that ended, and look whether those held now are past the knee.

        Args:
            running: leases held now; one that has run long already counts with what it has.
            is_waited_for: whether tasks are ready: without them nothing is lost by a larger fleet.
        """
        buckets = _learned(self.buckets, finished, at)
        known = Knee(buckets, self.cap, self.suspected_at, self.quiet_until)
        if self.cap is not None:
            return _probed(known, self.cap, finished, at)
        if not is_waited_for or len(running) < _MIN_BUSY or at < self.quiet_until:
            return known
        held = [(lease.held_seconds, lease.at_a_time) for lease in running if lease.at_a_time > 0]
        if len(held) < _MIN_BUSY:
            return known
        sizes = _sizes(buckets, held, at)
        cap = _found(sizes, at)
        if cap is not None:
            return replace(known, cap=cap)
        if not _is_suspected(sizes):
            return known
        since = self.suspected_at if at - self.suspected_at < _SUSPECT_AGAIN_SECONDS else at
        return replace(known, suspected_at=since, is_suspected=at - since <= _SUSPECT_SECONDS)


def _probed(knee: Knee, cap: Cap, ended: Iterable[FinishedLease], at: Monotonic) -> Knee:
    """Lift a cap whose time is over, or under which less gets done than beyond it."""
    at_cap = [lease.held_seconds for lease in ended if 0 < lease.at_a_time <= cap.workers]
    logs = math.fsum(math.log(max(_SHORTEST_SECONDS, seconds)) for seconds in at_cap)
    cap = replace(cap, leases=cap.leases + len(at_cap), logs=cap.logs + logs)
    if at > cap.until:
        return Knee()
    if cap.leases < _PROBE_LEASES:
        return replace(knee, cap=cap)
    if math.log(cap.workers) - cap.logs / cap.leases < cap.log_throughput:
        return Knee(quiet_until=Monotonic(at + _QUIET_SECONDS))
    return replace(knee, cap=replace(cap, leases=0, logs=0.0))


@cache
def _key(held: int) -> int:
    return int(math.log(held) / _RATIO)


def _learned(buckets: Mapping[int, Bucket], ended: Iterable[FinishedLease], at: Monotonic) -> Mapping[int, Bucket]:
    alike: dict[int, list[FinishedLease]] = {}
    for lease in ended:
        held = lease.at_a_time
        if held <= 0:
            continue
        key = _key(held)
        if key in alike:
            alike[key].append(lease)
        else:
            alike[key] = [lease]
    if not alike:
        return buckets
    learned = {**buckets}
    for key, leases in alike.items():
        learned[key] = buckets.get(key, _EMPTY).after(leases, at)
    return learned


@value
class _Size:
    """About as many leases at a time: what is known of those that ended, and the logarithms of those that run.

    `count` is of both; the means are the bucket's.
    """

    ended: Bucket
    running: tuple[float, ...]
    count: float
    mean_held: float
    mean_log: float

    def exceeds(self, fewer: "_Size", *, share: float, errors: float) -> bool:
        """Whether leases last longer than among `fewer` by more than this share of the growth, by so many standard
        errors, more than 0.

        At a share of 1 the larger fleet gets no more done than the smaller. A running lease counts with what it has,
        and at least with what is usual among fewer.
        """
        usual = fewer.mean_log
        logs = math.fsum([max(usual, log) for log in self.running])
        beyond = (self.ended.logs + logs) / self.count - usual - share * math.log(self.mean_held / fewer.mean_held)
        if beyond <= 0.0:
            return False
        of_fewer = fewer.ended.variance
        variance = max(self.ended.variance, of_fewer) if self.ended.count > 1 else of_fewer
        return beyond / math.sqrt(variance / self.count + of_fewer / fewer.ended.count) > errors


def _sizes(buckets: Mapping[int, Bucket], held: Sequence[tuple[float, int]], at: Monotonic) -> list[_Size]:
    """The sizes seen lately, the largest last."""
    running: dict[int, list[tuple[float, int]]] = {}
    for seconds, size in held:
        running.setdefault(_key(size), []).append((seconds, size))
    sizes = []
    for key in {*buckets, *running}:
        bucket, now = buckets.get(key, _EMPTY), running.get(key, [])
        if not now and at - bucket.at >= _RECENT_SECONDS:
            continue
        if not bucket.count:  # nothing has ended here yet: as many are held as those that run say
            bucket = Bucket(held=1e-9 * sum(size for _, size in now) / len(now), count=1e-9, at=at)
        logs = tuple([math.log(max(_SHORTEST_SECONDS, seconds)) for seconds, _ in now])
        count = bucket.count + len(logs)
        sizes.append(_Size(bucket, logs, count, bucket.mean_held, bucket.mean_log))
    return sorted(sizes, key=attrgetter("mean_held"))


def _found(sizes: Sequence[_Size], at: Monotonic) -> Cap | None:
    """The best size, if the largest one seen lately brings no more than a much smaller one did: by three errors."""
    known = [size for size in sizes if size.count >= _MIN_LEASES]
    if not known:
        return None
    top = known[-1]
    most = top.mean_held
    fewer = [size for size in known if size.ended.count >= _MIN_LEASES and size.mean_held <= _FEWER * most]
    if not any(top.exceeds(size, share=1.0, errors=_ERRORS) for size in fewer):
        return None
    best = max(fewer, key=lambda size: _least_log_throughput(size.ended)).ended.mean_held
    peak = _peak([size.ended for size in sizes if size.ended.count >= _FIT_LEASES])
    usual = fewer[0].mean_log
    # What runs there now is not over: its throughput is at most that of leases which end at once.
    logs = top.ended.logs + math.fsum(max(usual, log) for log in top.running)
    workers = max(best, min(peak, _FEWER * most))
    return Cap(max(1, round(workers)), round(most), math.log(most) - logs / top.count, Monotonic(at + _CAP_SECONDS))


def _is_suspected(sizes: Sequence[_Size]) -> bool:
    """Whether leases among many last so much longer than among half as many that most of the growth was in vain."""
    known = [size for size in sizes if size.ended.count >= _SUSPICION_LEASES]
    return any(
        size.exceeds(fewer, share=_IN_VAIN, errors=_SUSPICION_ERRORS)
        for size in sizes
        if size.running and size.count >= _SUSPICION_LEASES
        for fewer in known
        if fewer.mean_held <= _HALF * size.mean_held
    )


def _peak(buckets: Sequence[Bucket]) -> float:
    """Where throughput is largest by the law whose mean duration is a + b (n - 1) + c n (n - 1); 0: it can't be told.

    Least squares of relative errors over what was seen, with none of the three below 0.
    """
    best: tuple[float, float] | None = None
    for use in ((True, True, True), (True, False, True), (False, True, True), (False, False, True)):
        found = _fit(buckets, use)
        if found is None or min(found) < 0.0 or found[2] <= 0.0:
            continue
        a, b, c = found
        error = sum(
            bucket.count * (_law(bucket.mean_held, found) / math.exp(bucket.mean_log) - 1.0) ** 2 for bucket in buckets
        )
        if best is None or error < best[0]:
            best = (error, math.sqrt(max(1.0, (a - b) / c)))
    return 0.0 if best is None else best[1]


def _law(held: float, factors: tuple[float, float, float]) -> float:
    a, b, c = factors
    return a + b * (held - 1.0) + c * held * (held - 1.0)


def _fit(buckets: Sequence[Bucket], use: tuple[bool, bool, bool]) -> tuple[float, float, float] | None:
    """The factors that are used, by the normal equations; None where they are not told apart."""
    columns = [index for index in range(3) if use[index]]
    size = len(columns)
    if len(buckets) < size:
        return None
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for bucket in buckets:
        seconds = math.exp(bucket.mean_log)
        terms = (1.0, bucket.mean_held - 1.0, bucket.mean_held * (bucket.mean_held - 1.0))
        row = [terms[index] / seconds for index in columns]
        for i in range(size):
            for j in range(size):
                matrix[i][j] += bucket.count * row[i] * row[j]
            matrix[i][size] += bucket.count * row[i]
    solved = _solved(matrix)
    if solved is None:
        return None
    factors = [0.0, 0.0, 0.0]
    for index, factor in zip(columns, solved, strict=True):
        factors[index] = factor
    return factors[0], factors[1], factors[2]


def _solved(matrix: list[list[float]]) -> list[float] | None:
    """Gauss and Jordan's elimination of a small system; None when it is singular."""
    size = len(matrix)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        if abs(matrix[pivot][i]) < _SINGULAR:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for row in range(size):
            if row != i:
                share = matrix[row][i] / matrix[i][i]
                matrix[row] = [one - share * other for one, other in zip(matrix[row], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]


def _least_log_throughput(bucket: Bucket) -> float:
    return math.log(bucket.mean_held) - bucket.mean_log - math.sqrt(bucket.variance / bucket.count)
