"""The queue as a source of work: one look per pool and turn, told in the fleet's own words."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.fleet.external import prefix_of
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.samples import LeaseSample, PresentWorker, QueueSample, RunningLease, Waiting
from orchestrator.source import ReleasedTask, SampleQuery
from orchestrator.sources import held_tasks
from queue_core.api import Observation, ObservationQuery, Queues
from queue_core.clock import MICROSECONDS, Instant, seconds_between
from queue_core.errors import QueueError, StoreUnavailableError
from queue_core.stats import FinishedLease as QueueFinishedLease
from queue_core.stats import LiveLease, QueueStats
from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.unit_of_work import MAX_SAMPLES_PER_OBSERVATION

MAX_LOOKS: Final = 12
"""Looks of one sample: enough to page through all the finished leases that a queue keeps."""
MIN_AT_ONCE: Final = 2
MAX_AT_ONCE: Final = 100
MAX_NEW_AT_ONCE: Final = 25
"""Pools of one call, at most; of new ones, each of which may answer with all the leases that its queue remembers."""
MAX_HELD_AT_ONCE: Final = 50
"""A pool that holds more leases is asked about alone."""
TOGETHER: Final = 1_000
"""Microseconds within which leases count as begun at once: those of one call are told apart by some."""
_LEAD: Final = "supervisor"

Heard = Callable[[str, str], Sequence[PresentWorker]]
"""The workers of a queue whose names begin so, as the servers have heard of them lately."""

_Lease = tuple[str, int]
"""One lease of a pool for all time: its task's name and its number."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the look before this one left: where its finished leases ended, its counts, and of the leases that were
    held how many there were when each was first seen."""

    cursor: int
    stats: QueueStats
    at_a_time: Mapping[_Lease, int] = field(default_factory=dict)


class QueueSource:
    """A `WorkSource` over all queues of one store. `sample` belongs to one thread; the waiting may be in another."""

    def __init__(
        self,
        queues: Queues,
        *,
        waiting: Queues | None = None,
        heard: Heard = lambda _queue, _prefix: (),
        elsewhere: Heard | None = None,
    ) -> None:
        """Args:
        waiting: what `wait_for_arrival` uses, when calls over `queues` must not be held up by a long one.
        heard: who asks for leases; without servers nobody knows.
        elsewhere: the same of all servers, where there are several; raises `QueueError` unless every one answers.
        """
        self._queues = queues
        self._heard = heard
        self._elsewhere = elsewhere
        self._waiting = waiting or queues
        self._seen: dict[str, _Seen] = {}

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        """See `WorkSource.sample`."""
        with _told_as_unavailable(f"sample queue {pool.queue}"):
            look, finished = self._paged(self._look_of(SampleQuery(pool, workers, ahead_seconds)))
        return self._sampled(pool, look, finished, now=now)

    def samples(
        self, asked: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        """See `WorkSource.samples`: pools with few leases, in calls of up to 100 of them."""
        told: dict[str, QueueSample | SourceUnavailableError] = {}
        if len(asked) < MIN_AT_ONCE:
            return told
        seen = [one for one in asked if self._is_small(one.pool)]
        new = [one for one in asked if one.pool.name not in self._seen]
        for part in (*_parts(seen, MAX_AT_ONCE), *_parts(new, MAX_NEW_AT_ONCE)):
            try:
                told.update(self._looked(part, now=now))
            except SourceUnavailableError as error:
                if not isinstance(error.__cause__, StoreUnavailableError):
                    break  # a server of before, or one asks for what can't be: they are asked one by one
                told.update((one.pool.name, error) for one in part)
        return told

    def _look_of(self, asked: SampleQuery) -> ObservationQuery:
        pool, before = asked.pool, self._seen.get(asked.pool.name)
        after = before.cursor if before else 0
        return ObservationQuery(pool.queue, tags_of(pool), after, tuple(sorted(asked.workers)), asked.ahead_seconds)

    def _looked(self, asked: Sequence[SampleQuery], *, now: Monotonic) -> Iterator[tuple[str, QueueSample]]:
        looks = [self._look_of(one) for one in asked]
        with _told_as_unavailable(f"sample {len(looks)} queues"):
            found = self._queues.observe_many(looks)
        for one, wanted, look in zip(asked, looks, found, strict=True):
            if look is not None and len(look.samples.finished) < MAX_SAMPLES_PER_OBSERVATION:
                finished = [lease for lease in look.samples.finished if wanted.tags.accepts(lease.tag)]
                yield one.pool.name, self._sampled(one.pool, look, finished, now=now)

    def _is_small(self, pool: PoolSpec) -> bool:
        """Whether it held few leases at the look before: one answer must not grow beyond bounds."""
        seen = self._seen.get(pool.name)
        return seen is not None and len(seen.at_a_time) <= MAX_HELD_AT_ONCE

    def _sampled(
        self, pool: PoolSpec, look: Observation, finished: Sequence[QueueFinishedLease], *, now: Monotonic
    ) -> QueueSample:
        before = self._seen.get(pool.name)
        known = before.at_a_time if before else {}
        stats = look.stats
        company = _Company(finished, look)
        is_all_told = before is not None and len(look.live) >= stats.in_flight
        held = {
            _lease(live): known.get(_lease(live)) or (company.at(live.leased_at) if is_all_told else stats.in_flight)
            for live in look.live
        }
        at_a_time = [known.get(_lease(lease)) or company.at(_began(lease)) for lease in finished] if before else ()
        self._seen[pool.name] = _Seen(look.samples.cursor, stats, held)
        return QueueSample(
            at=now,
            ready=stats.ready,
            delayed=stats.delayed,
            in_flight=stats.in_flight,
            dead=stats.dead,
            paused=stats.paused,
            arrivals=_arrivals(before.stats, stats) if before else 0,
            waiting=tuple(Waiting(w.position, _ago(w.ready_at, look.now)) for w in look.waiting),
            running=tuple(
                RunningLease(
                    lease.worker,
                    held_seconds=_ago(lease.leased_at, look.now),
                    waited_seconds=_ago(lease.ready_at, lease.leased_at),
                    lease_number=lease.lease_number,
                    at_a_time=held[_lease(lease)],
                    tag=lease.tag,
                )
                for lease in look.live
            ),
            # What finished before the first look is history.
            finished=tuple(
                _finished(lease, look.now, at_a_time=held_then)
                for lease, held_then in zip(finished, at_a_time, strict=False)
            ),
            first_seen_seconds_ago={worker: _ago(seen_at, look.now) for worker, seen_at in look.seen.items()},
            presence=self._asked(pool, look),
            upcoming=tuple(Waiting(w.position, seconds_between(w.ready_at, look.now)) for w in look.upcoming),
        )

    def _asked(self, pool: PoolSpec, look: Observation) -> dict[str, PresentWorker]:
        """When each worker asked for a lease last, by whichever server of the queue.

        The others are asked only for those that are silent at this one and hold nothing. While one of them does not
        answer, nobody knows.
        """
        if look.heard is None:
            return {}
        heard = {
            one.worker: PresentWorker(one.worker, one.silent_seconds, one.waits, one.hung_up) for one in look.heard
        }
        if self._elsewhere is None:
            return heard
        holders = {live.worker for live in look.live}
        silent = [w for w in look.seen if w not in holders and (w not in heard or heard[w].silent_seconds > 0.0)]
        if not silent:
            return heard
        try:
            found = {one.worker: one for one in self._elsewhere(pool.queue, "")}
        except QueueError:
            return {worker: one for worker, one in heard.items() if worker not in silent}
        for worker in silent:
            there, here = found.get(worker), heard.get(worker)
            if there is not None and (here is None or there.silent_seconds < here.silent_seconds):
                heard[worker] = there
        return heard

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        """See `WorkSource.present`."""
        with _told_as_unavailable(f"ask who works on queue {pool.queue}"):
            return self._heard(pool.queue, prefix_of(pool.name))

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        """See `WorkSource.retire`."""
        with _told_as_unavailable(f"retire worker {worker}"):
            return self._queues.retire_worker(worker, busy=busy)

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        """See `WorkSource.given_back_by`."""
        seen = self._seen.get(pool.name)
        with _told_as_unavailable(f"look what worker {worker} gave back"):
            look, finished = self._paged(ObservationQuery(pool.queue, ANY, seen.cursor if seen else 0))
        return [
            ReleasedTask(lease.queue, lease.name, lease.tag, lease.held_seconds, lease.lease_number, lease.died)
            for lease in finished
            if lease.worker == worker
            and lease.outcome == "released"
            and _ago(lease.ended_at, look.now) <= within_seconds
        ]

    def release_held_by(self, worker: str) -> Sequence[ReleasedTask]:
        """See `WorkSource.release_held_by`."""
        with _told_as_unavailable(f"release the leases of worker {worker}"):
            released = self._queues.release_worker(worker)
        return [
            ReleasedTask(lease.queue, lease.name, lease.tag, lease.held_seconds, lease.lease_number, lease.died)
            for lease in released
        ]

    def held_by(self, worker: str, pool: PoolSpec) -> Sequence[SuspectedTask]:
        """See `WorkSource.held_by`."""
        seen = self._seen.get(pool.name)
        with _told_as_unavailable(f"look what worker {worker} holds"):
            return held_tasks.held_by(self._queues, pool.queue, worker, cursor=seen.cursor if seen else 0)

    def give_back(self, tasks: Sequence[SuspectedTask]) -> Sequence[ReleasedTask]:
        """See `WorkSource.give_back`."""
        with _told_as_unavailable("give back tasks"):
            given = held_tasks.give_back(self._queues, tasks)
        return [ReleasedTask(task.queue, task.task, task.tag, task.held_seconds, task.lease_number) for task in given]

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        """See `WorkSource.has_worked`."""
        before = self._seen.get(pool.name)
        with _told_as_unavailable(f"look for work of {worker}"):
            _, finished = self._paged(ObservationQuery(pool.queue, tags_of(pool), before.cursor if before else 0))
        return any(lease.worker == worker for lease in finished)

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict]) -> Sequence[str]:
        """See `WorkSource.settle`."""
        with _told_as_unavailable("hold suspects back"):
            return held_tasks.apply_verdicts(self._queues, verdicts)

    def recall(self, suspects: Sequence[IsolatedTask]) -> None:
        """See `WorkSource.recall`."""
        with _told_as_unavailable("let suspects go"):
            held_tasks.recall(self._queues, suspects)

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        """See `WorkSource.wait_for_arrival`."""
        asked = [(pool.queue, tags_of(pool)) for pool in pools]
        with _told_as_unavailable("wait for arrivals"):
            queue = self._waiting.wait_ready(asked, wait_seconds=timeout_seconds)
            if queue is None:
                return None
            # Several pools may share the queue: the one whose tags have a ready task is meant.
            for pool in (p for p in pools if p.queue == queue):
                if self._waiting.queue(queue).stats(tags=tags_of(pool)).ready:
                    return pool.name
        return None

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        """See `WorkSource.lead`."""
        with _told_as_unavailable("take the lead"):
            return self._queues.lead(_LEAD, supervisor, seconds=seconds)

    def _paged(self, asked: ObservationQuery) -> tuple[Observation, list[QueueFinishedLease]]:
        """The pool's work as of the last look, and what finished since the cursor, page by page."""
        finished: list[QueueFinishedLease] = []
        after = asked.after
        for _ in range(MAX_LOOKS):
            look = self._queues.observe(
                asked.queue, tags=asked.tags, after=after, workers=asked.workers, ahead_seconds=asked.ahead_seconds
            )
            finished += (lease for lease in look.samples.finished if asked.tags.accepts(lease.tag))
            after = look.samples.cursor
            if len(look.samples.finished) < MAX_SAMPLES_PER_OBSERVATION:
                break
        return look, finished


def tags_of(pool: PoolSpec) -> TagFilter:
    """The tasks a pool works on."""
    if pool.untagged:
        return UNTAGGED
    return TagFilter.of(*pool.tags) if pool.tags else ANY


def _parts(asked: Sequence[SampleQuery], size: int) -> Iterator[Sequence[SampleQuery]]:
    return (asked[begin : begin + size] for begin in range(0, len(asked), size))


@contextmanager
def _told_as_unavailable(what: str) -> Iterator[None]:
    try:
        yield
    except QueueError as error:
        raise SourceUnavailableError(f"can't {what}: {error}") from error


def _arrivals(before: QueueStats, after: QueueStats) -> int:
    """Tasks that became leasable in between, however: added, released, expired, or their eta came.

    What is ready grew by them and shrank by the leases. Tasks that were purged while ready are not counted, and a
    tag's totals that began anew count from 0.
    """
    leased = after.leased_total - before.leased_total
    if leased < 0:
        leased = after.leased_total
    return max(0, after.ready - before.ready + leased)


def _lease(lease: LiveLease | QueueFinishedLease) -> _Lease:
    return lease.name, lease.lease_number


class _Company:
    """How many leases were held at an instant since the look before, by those that ended since and those held now."""

    def __init__(self, finished: Sequence[QueueFinishedLease], look: Observation) -> None:
        self._starts = sorted([_began(lease) for lease in finished] + [live.leased_at for live in look.live])
        self._ends = sorted(lease.ended_at for lease in finished)

    def at(self, instant: Instant) -> int:
        """Those that had begun, or began with it, and not ended; at least the one that began then."""
        return max(1, bisect_right(self._starts, instant + TOGETHER) - bisect_right(self._ends, instant))


def _began(lease: QueueFinishedLease) -> Instant:
    return Instant(lease.ended_at - round(lease.held_seconds * MICROSECONDS))


def _finished(lease: QueueFinishedLease, now: Instant, *, at_a_time: int) -> LeaseSample:
    return LeaseSample(
        lease.worker,
        held_seconds=lease.held_seconds,
        waited_seconds=lease.waited_seconds,
        outcome="died" if lease.died else lease.outcome,
        lease_number=lease.lease_number,
        ended_seconds_ago=_ago(lease.ended_at, now),
        at_a_time=at_a_time,
        tag=lease.tag,
    )


def _ago(instant: Instant, now: Instant) -> float:
    return max(0.0, seconds_between(instant, now))
