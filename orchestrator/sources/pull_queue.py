"""Use a queue as a source of work: one observation per pool and turn, translated into the fleet's terms (ADR 2)."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import (
    LeaseSample,
    PresentWorker,
    QueueSample,
    RunningLease,
    UnservedTag,
    Waiting,
    with_ticks,
)
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.external import prefix_of
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.source import ReleasedTask, SampleQuery
from orchestrator.sources import held_tasks
from orchestrator.sources.lapses import Lapses, is_lapse, released_task
from orchestrator.sources.merged_samples import merged
from queue_core.client.queue import Queues
from queue_core.clock import MICROSECONDS, NEVER, Instant, seconds_between
from queue_core.config.pool_tags import PoolTags, describe_served, describe_unserved, is_served
from queue_core.errors import QueueError, StoreUnavailableError, UnknownQueueError
from queue_core.process.wording import counted
from queue_core.stats import FinishedLease as QueueFinishedLease
from queue_core.stats import LiveLease, QueueStats, WorkerActivity
from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.unit.unit_of_work import MAX_SAMPLES_PER_OBSERVATION
from queue_core.verbs import Observation, ObservationQuery, served_tags
from queue_core.verbs.served_tags import (
    LASTING_SECONDS,
    facts_of,
    is_leased_by,
    is_recent,
    narrowed_tags,
    registered_tags,
    tags_served_by,
)

MAX_PAGES: Final = 12
"""Observations of one sample: enough to page through all the finished leases that a queue keeps."""
MIN_AT_ONCE: Final = 2
"""Pools from which on one call for several is worth it."""
MAX_AT_ONCE: Final = 100
"""Pools of one call, at most."""
MAX_NEW_AT_ONCE: Final = 25
"""The same for new pools: each answer may hold all the finished leases that its queue keeps."""
MAX_HELD_AT_ONCE: Final = 50
"""A pool with more live leases than this is observed in a call of its own."""
TAGS_AT_ONCE: Final = 100
"""Tags of one page of a queue's counts."""
MAX_TAG_PAGES: Final = 10
"""Pages of one look at tags that no pool works on."""
SIMULTANEOUS_MICROSECONDS: Final = 1_000
"""Leases that began within this many microseconds count as simultaneous: one call's leases differ by a few."""
_LEAD: Final = "supervisor"
_KEPT: Final = "supervisor"

PresenceQuery = Callable[[str, str], Sequence[PresentWorker]]
"""Returns a queue's workers whose names begin with a prefix, as its servers know them."""


class TicksAhead(Protocol):
    """Returns in how many seconds schedules add tasks that a pool will work on, soonest first."""

    def __call__(self, pool: PoolSpec, *, within_seconds: float, now: Monotonic) -> Sequence[float]: ...


def _no_ticks(pool: PoolSpec, *, within_seconds: float, now: Monotonic) -> Sequence[float]:  # noqa: ARG001
    return ()


_Lease = tuple[str, int]
"""A lease's identity within a pool: its task's name and its number."""


@dataclass(frozen=True, slots=True)
class _LastObservation:
    """The state after a pool's last observation: its cursor, its counts, and for each live lease how many were live
    when it was first seen; `leasable_at`: see `_leasable_at`. `tags` are those of which it has the counts."""

    cursor: int
    stats: QueueStats
    tags: TagFilter = ANY
    at_a_time: Mapping[_Lease, int] = field(default_factory=dict)
    leasable_at: Instant = NEVER


class QueueSource:
    """A `WorkSource` over all queues of one store. `sample` belongs to one thread, `wait_for_arrival` to any."""

    def __init__(
        self,
        queues: Queues,
        *,
        waiting: Queues | None = None,
        presence: PresenceQuery = lambda _queue, _prefix: (),
        all_presence: PresenceQuery | None = None,
        ticks: TicksAhead = _no_ticks,
    ) -> None:
        """Args:
        waiting: used by `wait_for_arrival`, where a long call must not hold up those over `queues`.
        presence: returns the workers that ask for leases; without servers nobody knows.
        all_presence: the same of all servers, if there are several; raises `QueueError` unless every one answers.
        ticks: returns in how many seconds schedules add tasks that a pool will work on, within so many seconds.
        """
        self._queues = queues
        self._presence = presence
        self._all_presence = all_presence
        self._waiting = waiting or queues
        self._seen: dict[str, _LastObservation] = {}
        self._lapses = Lapses()
        self._ticks = ticks

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        """See `WorkSource.sample`."""
        if len(pool.queues) > 1:
            return self._sample_several(pool, workers, ahead_seconds, now=now)
        with _as_unavailable(f"sample queue {pool.queue}"):
            observation, finished = self._paged(self._query_of(SampleQuery(pool, workers, ahead_seconds)))
        return self._with_ticks(self._sampled(pool, observation, finished, now=now), pool, ahead_seconds)

    def _sample_several(
        self, pool: PoolSpec, workers: Collection[str], ahead_seconds: float, *, now: Monotonic
    ) -> QueueSample:
        """Sample each queue of a pool, and merge the samples. A queue that is not there yet has no tasks."""
        parts = _parts_of(pool)
        queries = [self._query_of(SampleQuery(part, workers, ahead_seconds)) for part in parts]
        with _as_unavailable(f"sample {counted(len(parts), 'queue')} of pool {pool.name}"):
            observations = [
                None if one is None else self._completed(query, one)
                for query, one in zip(queries, self._queues.observe_many(queries), strict=True)
            ]
        found = [
            self._with_ticks(self._sampled(part, *observed, now=now), part, ahead_seconds)
            for part, observed in zip(parts, observations, strict=True)
            if observed is not None  # a producer, or a worker of Celery's, creates it
        ]
        return merged(found) if found else QueueSample(at=now, ready=0, delayed=0, in_flight=0, dead=0)

    def _completed(
        self, query: ObservationQuery, observed: Observation
    ) -> tuple[Observation, Sequence[QueueFinishedLease]]:
        """Return an observation with all leases that finished since the cursor."""
        if len(observed.samples.finished) >= MAX_SAMPLES_PER_OBSERVATION:
            return self._paged(query)
        return observed, [lease for lease in observed.samples.finished if query.tags.accepts(lease.tag)]

    def samples(
        self, queries: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        """See `WorkSource.samples`: batches of up to 100 pools with few leases each, and with one queue."""
        samples: dict[str, QueueSample | SourceUnavailableError] = {}
        queries = [one for one in queries if len(one.pool.queues) == 1]
        if len(queries) < MIN_AT_ONCE:
            return samples
        seen = [one for one in queries if self._is_small(one.pool)]
        new = [one for one in queries if one.pool.name not in self._seen]
        for part in (*_parts(seen, MAX_AT_ONCE), *_parts(new, MAX_NEW_AT_ONCE)):
            try:
                samples.update(self._observed(part, now=now))
            except SourceUnavailableError as error:
                if not isinstance(error.__cause__, StoreUnavailableError):
                    break  # an older server, or an invalid query: observe the pools one by one
                samples.update((one.pool.name, error) for one in part)
        return samples

    def _query_of(self, query: SampleQuery) -> ObservationQuery:
        pool, before = query.pool, self._seen.get(query.pool.name)
        after = before.cursor if before else 0
        return ObservationQuery(pool.queue, tags_of(pool), after, tuple(sorted(query.workers)), query.ahead_seconds)

    def _observed(self, queries: Sequence[SampleQuery], *, now: Monotonic) -> Iterator[tuple[str, QueueSample]]:
        observation_queries = [self._query_of(one) for one in queries]
        with _as_unavailable(f"sample {counted(len(observation_queries), 'queue')}"):
            found = self._queues.observe_many(observation_queries)
        for one, query, observation in zip(queries, observation_queries, found, strict=True):
            if observation is not None and len(observation.samples.finished) < MAX_SAMPLES_PER_OBSERVATION:
                finished = [lease for lease in observation.samples.finished if query.tags.accepts(lease.tag)]
                sample = self._sampled(one.pool, observation, finished, now=now)
                yield one.pool.name, self._with_ticks(sample, one.pool, one.ahead_seconds)

    def _with_ticks(self, sample: QueueSample, pool: PoolSpec, ahead_seconds: float) -> QueueSample:
        """Return the sample with the tasks that schedules add soon: workers are up when these come."""
        ticks = self._ticks(pool, within_seconds=ahead_seconds, now=sample.at) if ahead_seconds > 0 else ()
        return replace(sample, upcoming=with_ticks(sample.upcoming, ticks)) if ticks else sample

    def _is_small(self, pool: PoolSpec) -> bool:
        """Return whether the pool had few leases at the last observation: this bounds the size of an answer."""
        seen = self._seen.get(pool.name)
        return seen is not None and len(seen.at_a_time) <= MAX_HELD_AT_ONCE

    def _sampled(
        self, pool: PoolSpec, observed: Observation, finished: Sequence[QueueFinishedLease], *, now: Monotonic
    ) -> QueueSample:
        before = self._seen.get(pool.name)
        self._lapses.add(finished)
        known = before.at_a_time if before else {}
        stats = observed.stats
        live_leases = _LiveLeases(finished, observed)
        is_complete = before is not None and len(observed.live) >= stats.in_flight
        held = {
            _lease(live): known.get(_lease(live))
            or (live_leases.at(live.leased_at) if is_complete else stats.in_flight)
            for live in observed.live
        }
        at_a_time = [known.get(_lease(lease)) or live_leases.at(_began(lease)) for lease in finished] if before else ()
        leasable_at = _leasable_at(before, observed)
        self._seen[pool.name] = _LastObservation(observed.samples.cursor, stats, tags_of(pool), held, leasable_at)
        return QueueSample(
            at=now,
            ready=stats.leasable,
            delayed=stats.delayed,
            in_flight=stats.in_flight,
            dead=stats.dead,
            paused=stats.paused,
            arrivals=_arrivals(before.stats, stats) if before and before.tags == tags_of(pool) else 0,
            waiting=_waiting(observed, since=leasable_at),
            running=tuple(
                RunningLease(
                    lease.worker,
                    held_seconds=_ago(lease.leased_at, observed.now),
                    waited_seconds=_ago(lease.ready_at, lease.leased_at),
                    lease_number=lease.lease_number,
                    at_a_time=held[_lease(lease)],
                    tag=lease.tag,
                )
                for lease in observed.live
            ),
            # Leases that finished before the first observation are not reported.
            finished=tuple(
                _finished(lease, observed.now, at_a_time=held_then)
                for lease, held_then in zip(finished, at_a_time, strict=False)
                if lease.outcome != "removed"  # its task was deleted: how long it ran says nothing of the work
            ),
            first_seen_seconds_ago={worker: _ago(seen_at, observed.now) for worker, seen_at in observed.seen.items()},
            presence=self._last_calls(pool, observed),
            upcoming=tuple(Waiting(w.position, seconds_between(w.ready_at, observed.now)) for w in observed.upcoming),
            cursor=observed.samples.cursor,
            held=stats.held + stats.ready - stats.leasable,
            held_by=observed.held_by,
            held_by_rate=observed.held_by_rate,
        )

    def _last_calls(self, pool: PoolSpec, observed: Observation) -> dict[str, PresentWorker]:
        """Return when each worker last asked for a lease, at any server of the queue.

        The other servers are only asked about workers that are silent at this one and hold no lease. While one of them
        does not answer, the state of those is unknown.
        """
        if observed.heard is None:
            return {}
        heard = {
            one.worker: PresentWorker(one.worker, one.silent_seconds, one.waits, one.hung_up, one.tags)
            for one in observed.heard
        }
        if self._all_presence is None:
            return heard
        holders = {live.worker for live in observed.live}
        silent = [w for w in observed.seen if w not in holders and (w not in heard or heard[w].silent_seconds > 0.0)]
        if not silent:
            return heard
        try:
            found = {one.worker: one for one in self._all_presence(pool.queue, "")}
        except QueueError:
            return {worker: one for worker, one in heard.items() if worker not in silent}
        for worker in silent:
            there, here = found.get(worker), heard.get(worker)
            if there is not None and (here is None or there.silent_seconds < here.silent_seconds):
                heard[worker] = there
        return heard

    def unserved(self, pools: Sequence[PoolSpec]) -> Sequence[UnservedTag]:
        """See `WorkSource.unserved`."""
        with _as_unavailable(f"count the tags of queue {pools[0].queue}"):
            found = unserved_in(self._queues, [PoolTags(pool.name, pool.queue, tags_of(pool)) for pool in pools])
            if not found:
                return found
            others = [one.tags for one in self._presence(pools[0].queue, "") if is_recent(one.silent_seconds)]
        return [one for one in found if not is_leased_by(others, one.tag)]

    def publish(self, pools: Sequence[PoolSpec], *, gone: Collection[str] = ()) -> None:
        """See `WorkSource.publish`."""
        with _as_unavailable("register the tags of pools"):
            for pool in pools:
                facts = facts_of(pool.queues, tags_of(pool))
                seconds = LASTING_SECONDS if facts is not None else 0.0
                self._queues.register(served_tags.KIND, pool.name, facts or {}, seconds=seconds)
            for name in gone:
                self._queues.register(served_tags.KIND, name, {}, seconds=0.0)

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        """See `WorkSource.present`."""
        with _as_unavailable(f"list the workers of queue {pool.queue}"):
            found = [one for queue in pool.queues for one in self._presence(queue, prefix_of(pool.name))]
        last: dict[str, PresentWorker] = {}
        for one in sorted(found, key=lambda one: one.silent_seconds):
            last.setdefault(one.worker, one)
        return list(last.values()) if len(pool.queues) > 1 else found

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        """See `WorkSource.retire`."""
        with _as_unavailable(f"retire worker {worker}"):
            return self._queues.retire_worker(worker, busy=busy)

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        """See `WorkSource.given_back_by`."""
        with _as_unavailable(f"list the tasks that worker {worker} released"):
            pages = [self._finished_since(part) for part in _parts_of(pool)]
        return [
            released_task(lease)
            for observed_at, finished in pages
            for lease in finished
            if lease.worker == worker
            and lease.outcome == "released"
            and not lease.overran
            and _ago(lease.ended_at, observed_at) <= within_seconds
        ]

    def _finished_since(self, pool: PoolSpec, tags: TagFilter = ANY) -> tuple[Instant, Sequence[QueueFinishedLease]]:
        """Return the leases of a pool's one queue that ended since its last sample, and the instant of that."""
        seen = self._seen.get(pool.name)
        try:
            observation, finished = self._paged(ObservationQuery(pool.queue, tags, seen.cursor if seen else 0))
        except UnknownQueueError:
            if len(pool.queues) == 1:
                raise
            return NEVER, ()  # one of Celery's queues that nobody has declared yet
        return observation.now, finished

    def lapsed_by(self, worker: str, pool: PoolSpec, *, named: Collection[str] = ()) -> Sequence[ReleasedTask]:
        """See `WorkSource.lapsed_by`."""
        with _as_unavailable(f"list the tasks that worker {worker} let expire"):
            finished = [lease for part in _parts_of(pool) for lease in self._finished_since(part)[1]]
        return self._lapses.take(worker, [lease for lease in finished if lease.worker == worker], named=named)

    def release_held_by(self, worker: str, notice: DeathNotice) -> Sequence[ReleasedTask]:
        """See `WorkSource.release_held_by`."""
        with _as_unavailable(f"release the leases of worker {worker}"):
            released = self._queues.release_worker(worker, failure=held_tasks.failure_of_death(notice))
        return [released_task(lease) for lease in released]

    def held_by(self, worker: str, pool: PoolSpec, *, payload_bytes: int = 0) -> Sequence[SuspectedTask]:
        """See `WorkSource.held_by`."""
        held: list[SuspectedTask] = []
        with _as_unavailable(f"list the tasks that worker {worker} holds"):
            for part in _parts_of(pool):
                seen = self._seen.get(part.name)
                cursor = seen.cursor if seen else 0
                held += held_tasks.held_by(self._queues, part.queue, worker, cursor=cursor, payload_bytes=payload_bytes)
        return held

    def give_back(self, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> Sequence[ReleasedTask]:
        """See `WorkSource.give_back`."""
        with _as_unavailable("release tasks"):
            given = held_tasks.give_back(self._queues, tasks, notice)
        return [ReleasedTask(task.queue, task.task, task.tag, task.held_seconds, task.lease_number) for task in given]

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        """See `WorkSource.has_worked`."""
        with _as_unavailable(f"list the leases that worker {worker} finished"):
            finished = [lease for part in _parts_of(pool) for lease in self._finished_since(part, tags_of(pool))[1]]
        return any(lease.worker == worker for lease in finished)

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> Sequence[str]:
        """See `WorkSource.apply_verdicts`."""
        with _as_unavailable("hold suspected tasks back"):
            return held_tasks.apply_verdicts(self._queues, verdicts, notice)

    def recall(self, tasks: Sequence[IsolatedTask]) -> None:
        """See `WorkSource.recall`."""
        with _as_unavailable("release suspected tasks"):
            held_tasks.recall(self._queues, tasks)

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        """See `WorkSource.wait_for_arrival`."""
        queues_and_tags = [(queue, tags_of(pool)) for pool in pools for queue in pool.queues]
        with _as_unavailable("wait for arrivals"):
            queue = self._waiting.wait_ready(queues_and_tags, wait_seconds=timeout_seconds)
            if queue is None:
                return None
            # Several pools may share the queue: return one whose tags have a ready task.
            for pool in (p for p in pools if queue in p.queues):
                if self._waiting.queue(queue).stats(tags=tags_of(pool)).ready:
                    return pool.name
        return None

    def kept(self) -> str | None:
        """See `WorkSource.kept`."""
        with _as_unavailable("read what supervisors keep"):
            return self._queues.kept(_KEPT)

    def keep(self, text: str) -> None:
        """See `WorkSource.keep`."""
        with _as_unavailable("keep what this supervisor knows"):
            self._queues.keep(_KEPT, text)

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        """See `WorkSource.lead`."""
        with _as_unavailable("lead the store"):
            return self._queues.lead(_LEAD, supervisor, seconds=seconds)

    def _paged(self, query: ObservationQuery) -> tuple[Observation, list[QueueFinishedLease]]:
        """Return the last observation, and all leases that finished since the cursor, page by page."""
        finished: list[QueueFinishedLease] = []
        after = query.after
        for _ in range(MAX_PAGES):
            observation = self._queues.observe(
                query.queue, tags=query.tags, after=after, workers=query.workers, ahead_seconds=query.ahead_seconds
            )
            finished += (lease for lease in observation.samples.finished if query.tags.accepts(lease.tag))
            after = observation.samples.cursor
            if len(observation.samples.finished) < MAX_SAMPLES_PER_OBSERVATION:
                break
        return observation, finished


def unserved_in(queues: Queues, pools: Sequence[PoolTags]) -> list[UnservedTag]:
    """Return the tags of waiting tasks that none of these pools, all those of one queue, works on.

    The store counts per tag, so this never reads a task. Raises `QueueError`.
    """
    if any(pool.tags == ANY for pool in pools):
        return []
    queue = pools[0].queue
    found: list[UnservedTag] = []
    after: str | None = None
    for _ in range(MAX_TAG_PAGES):
        page = queues.queue(queue).tag_stats(after=after, limit=TAGS_AT_ONCE)
        for tag, stats in ((one.tag, one.stats) for one in page):
            waiting = stats.ready + stats.held + stats.delayed
            if waiting and not stats.in_flight and not is_served(tag, pools):
                found.append(
                    UnservedTag(
                        queue,
                        tag,
                        waiting,
                        stats.leased_total,
                        describe_unserved(tag, waiting, pools),
                        describe_served(tag, by_pool=True),
                        describe_served(tag, by_pool=False),
                    )
                )
        if len(page) < TAGS_AT_ONCE:
            break
        after = page[-1].tag
    return found


def as_reported(queues: Queues, pools: Sequence[PoolTags]) -> list[PoolTags]:
    """Return pools, all those of one queue, with the tags that their supervisor says their workers lease."""
    reported = registered_tags(queues.registrations(served_tags.KIND), pools[0].queue) if pools else {}
    return [
        replace(pool, tags=narrowed_tags(pool.tags, tags_served_by(reported[pool.pool])))
        if pool.pool in reported
        else pool
        for pool in pools
    ]


def tags_of(pool: PoolSpec) -> TagFilter:
    """Return the tags a pool works on."""
    if pool.untagged:
        return UNTAGGED
    return TagFilter.of(*pool.tags) if pool.tags else ANY


def _parts_of(pool: PoolSpec) -> Sequence[PoolSpec]:
    """Return the pool once for each of its queues; its last observation of each is kept under a name of its own."""
    if len(pool.queues) == 1:
        return (pool,)
    return [pool.model_copy(update={"name": f"{pool.name}:{queue}", "queue": queue}) for queue in pool.queues]


def _parts(queries: Sequence[SampleQuery], size: int) -> Iterator[Sequence[SampleQuery]]:
    return (queries[begin : begin + size] for begin in range(0, len(queries), size))


@contextmanager
def _as_unavailable(what: str) -> Iterator[None]:
    try:
        yield
    except QueueError as error:
        raise SourceUnavailableError(f"can't {what}: {error}") from error


def _leasable_at(before: _LastObservation | None, observed: Observation) -> Instant:
    """Return since when the limits of a whole queue have let its first tasks be leased; `NEVER` for a queue without.

    While it has no room that is now; afterwards it is the last observation at which it had none.
    """
    if observed.stats.room is None:
        return NEVER
    return observed.now if observed.stats.room == 0 or before is None else before.leasable_at


def _waiting(observed: Observation, *, since: Instant) -> tuple[Waiting, ...]:
    """Return the waits of the tasks that could be leased now, each as long as it could be.

    A position beyond the room of the queue becomes that of the last task there is room for.
    """
    leasable = observed.stats.leasable
    waits: dict[int, float] = {}
    for waiting in observed.waiting if leasable else ():
        waits.setdefault(min(waiting.position, leasable), _ago(max(waiting.ready_at, since), observed.now))
    return tuple(Waiting(position, seconds) for position, seconds in waits.items())


def _arrivals(before: QueueStats, after: QueueStats) -> int:
    """Return how many tasks became leasable in between: added, released, expired, or their eta came.

    Ready tasks grow by these and shrink by leases. Purged tasks are not counted, and a tag's totals that were reset
    count from 0.
    """
    leased = after.leased_total - before.leased_total
    if leased < 0:
        leased = after.leased_total
    return max(0, after.ready - before.ready + leased)


def _lease(lease: LiveLease | QueueFinishedLease) -> _Lease:
    return lease.name, lease.lease_number


class _LiveLeases:
    """Counts the leases that were live at an instant since the last observation."""

    def __init__(self, finished: Sequence[QueueFinishedLease], observation: Observation) -> None:
        self._starts = sorted([_began(lease) for lease in finished] + [live.leased_at for live in observation.live])
        self._ends = sorted(lease.ended_at for lease in finished)

    def at(self, instant: Instant) -> int:
        """Return how many leases were live at `instant`, at least the one that began then."""
        begun = bisect_right(self._starts, instant + SIMULTANEOUS_MICROSECONDS)
        return max(1, begun - bisect_right(self._ends, instant))


def _began(lease: QueueFinishedLease) -> Instant:
    return Instant(lease.ended_at - round(lease.held_seconds * MICROSECONDS))


def _finished(lease: QueueFinishedLease, now: Instant, *, at_a_time: int) -> LeaseSample:
    assert lease.outcome != "removed"
    return LeaseSample(
        lease.worker,
        held_seconds=lease.held_seconds,
        waited_seconds=lease.waited_seconds,
        outcome="died" if lease.died else "expired" if lease.overran else lease.outcome,
        lease_number=lease.lease_number,
        ended_seconds_ago=_ago(lease.ended_at, now),
        at_a_time=at_a_time,
        tag=lease.tag,
        by_time=is_lapse(lease),
    )


def _ago(instant: Instant, now: Instant) -> float:
    return max(0.0, seconds_between(instant, now))


class PresenceSource(Protocol):
    """A server that knows its callers."""

    def worker_activity(self, queue: str, *, prefix: str = "") -> list[WorkerActivity]:
        """Return the workers whose names begin with `prefix`, as this server knows them."""


class ServersPresence:
    """Asks every server, as a worker may be connected to any of them."""

    def __init__(self, servers: Sequence[PresenceSource]) -> None:
        self._servers = servers

    def __call__(self, queue: str, prefix: str) -> Sequence[PresentWorker]:
        """Return each worker as known to the server that it called last.

        Raises `QueueError` when no server answers; a server that is down has no waiting worker.
        """
        found, failure, answers = self._query_servers(queue, prefix)
        if failure is not None and not answers:
            raise failure
        return found

    def all(self, queue: str, prefix: str) -> Sequence[PresentWorker]:
        """The same, but raises `QueueError` unless every server answers: a worker may reach one that we can't."""
        found, failure, _ = self._query_servers(queue, prefix)
        if failure is not None:
            raise failure
        return found

    @property
    def several(self) -> bool:
        """Return whether there is more than one server."""
        return len(self._servers) > 1

    def _query_servers(self, queue: str, prefix: str) -> tuple[list[PresentWorker], QueueError | None, int]:
        """Return the workers, an error of a server that did not answer, and how many servers answered."""
        found: dict[str, WorkerActivity] = {}
        failure: QueueError | None = None
        answers = 0
        for server in self._servers:
            try:
                heard = server.worker_activity(queue, prefix=prefix)
            except QueueError as error:
                failure = error
                continue
            answers += 1
            for one in heard:
                known = found.get(one.worker)
                if known is None or one.silent_seconds < known.silent_seconds:
                    found[one.worker] = one
        present = [
            PresentWorker(one.worker, one.silent_seconds, one.waits, one.hung_up, one.tags) for one in found.values()
        ]
        return present, failure, answers
