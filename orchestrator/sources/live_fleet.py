"""The fleet of this moment: a supervisor's last snapshot, with what the queues and their leases say now.

A snapshot's figures are those of the supervisor's last turn, seconds old. `refreshed` is pure; `observed_now` asks the
queues, up to a hundred pools a call, each for counts and leases that a store has at hand.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from orchestrator.base.json_fields import Json, mapping_of, mappings_of
from orchestrator.config.sources import LABEL
from orchestrator.fleet.workers import NOT_COUNTED
from orchestrator.sources.pull_queue import MAX_AT_ONCE, unserved_in
from queue_core.client.queue import Queues
from queue_core.clock import Instant, seconds_between
from queue_core.config.pool_tags import PoolTags
from queue_core.errors import InvalidRequestError, UnknownQueueError
from queue_core.stats import FinishedLease, LeasingWorker, LiveLease
from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.verbs import Observation, ObservationQuery

NO_FINISHED: Final = (1 << 53) - 1
"""A cursor beyond every finished lease: a snapshot without a cursor has nothing to count from."""
MAX_UNSERVED_QUEUES: Final = 20
"""Queues that are asked for tags which no pool works on; of more the supervisor's last answer is shown."""
_LEAVING: Final = frozenset({"draining", "killed", "alone"})
"""States that no lease changes; the tasks of such a worker are shown all the same."""


def observed_now(queues: Queues, snapshot: Mapping[str, object]) -> dict[str, Observation]:
    """Return an observation for each pool of a snapshot whose queue exists, by the pool's name. Raises `QueueError`."""
    queries = dict(_queries(snapshot))
    found: dict[str, Observation] = {}
    names = list(queries)
    for begin in range(0, len(names), MAX_AT_ONCE):
        part = names[begin : begin + MAX_AT_ONCE]
        observations = queues.observe_many([queries[name] for name in part])
        found.update((name, one) for name, one in zip(part, observations, strict=True) if one is not None)
    return found


def unserved_now(queues: Queues, snapshot: Mapping[str, object]) -> list[Json]:
    """Return the `unserved` tags of a snapshot as they are now; as published where there are many queues to ask.

    A tag that was ever leased is one of them only if the supervisor says so, as it sees whether its leases go on.
    Raises `QueueError`.
    """
    published = mappings_of(snapshot.get("unserved"))
    known = {(one.get("queue"), one.get("tag")) for one in published}
    by_queue: dict[str, list[PoolTags]] = {}
    for name, pool in mapping_of(snapshot.get("pools")).items():
        settings = mapping_of(mapping_of(pool).get("settings"))
        queue = settings.get("queue")
        if isinstance(queue, str) and not queue.startswith(LABEL):
            by_queue.setdefault(queue, []).append(PoolTags(name, queue, _tags(settings)))
    narrowed = {queue: pools for queue, pools in by_queue.items() if all(pool.tags != ANY for pool in pools)}
    if len(narrowed) > MAX_UNSERVED_QUEUES:
        return published
    found: list[Json] = []
    for queue, pools in narrowed.items():
        with suppress(UnknownQueueError):
            seen = unserved_in(queues, pools)
            found += [one.record() for one in seen if not one.leases or (queue, one.tag) in known]
    return found


def outside_pools(queues: Queues, snapshot: Mapping[str, object]) -> Json:
    """Return what a fleet has beside its pools: `unserved` tags and `unsupervised` workers. Raises `QueueError`."""
    return {"unserved": unserved_now(queues, snapshot), "unsupervised": unsupervised_now(queues, snapshot)}


def unsupervised_now(queues: Queues, snapshot: Mapping[str, object]) -> list[Json]:
    """Return the workers that lease from the queues though no supervisor started them. Raises `QueueError`."""
    ours = {one.get("worker") for one in mappings_of(snapshot.get("workers"))}
    try:
        found = queues.present_workers()
    except InvalidRequestError:  # an older server
        return []
    return [present_json(one) for one in found if not one.pool and one.worker not in ours]


def present_json(worker: LeasingWorker) -> Json:
    """Return a worker that its queues know as an answer has it; `since` is None where it is unknown."""
    found = asdict(worker)
    return found | {"since": worker.since or None, "queues": [*worker.queues], "tasks": [*found["tasks"]]}


def refreshed(snapshot: Mapping[str, object], observed: Mapping[str, Observation], *, now_seconds: float) -> Json:
    """Return a snapshot with the figures of now.

    A pool's `sample` and `current` and each worker's `state`, `since`, `holding` and `finished` are of `now_seconds`
    (since the epoch). A worker also gets `tasks`, those that it holds with `held_seconds`, the longest held first, and
    `leasing`: whether a call of it waits for a task now, None where no server knows. Pools that were not observed, and
    their workers, stay as they were.
    """
    leases = {name: _PoolLeases(observation) for name, observation in observed.items()}
    workers = []
    for worker in mappings_of(snapshot.get("workers")):
        of_pool = leases.get(str(worker.get("pool")))
        workers.append(dict(worker) if of_pool is None else _worker(worker, of_pool, now_seconds))
    by_pool = _grouped_by_pool(workers)
    pools = dict(mapping_of(snapshot.get("pools")))
    for name, observation in observed.items():
        pools[name] = _pool(mapping_of(pools.get(name)), observation, by_pool.get(name, []), now_seconds)
    return {**snapshot, "pools": pools, "workers": workers}


class _PoolLeases:
    """The leases of one pool by the names of their workers."""

    def __init__(self, observed: Observation) -> None:
        self.observed = observed
        self.held: dict[str, list[LiveLease]] = {}
        self.ended: dict[str, list[FinishedLease]] = {}
        self.heard = {one.worker: one for one in observed.heard or ()}
        for live in sorted(observed.live, key=lambda lease: lease.leased_at):
            self.held.setdefault(live.worker, []).append(live)
        for lease in observed.samples.finished:
            self.ended.setdefault(lease.worker, []).append(lease)

    @property
    def is_whole(self) -> bool:
        """Return whether every live lease was listed."""
        return len(self.observed.live) >= self.observed.stats.in_flight

    def is_leasing(self, worker: str) -> bool | None:
        """Return whether a lease call of the worker waits; None where no server knows."""
        if self.observed.heard is None:
            return None
        return worker in self.heard and self.heard[worker].waits


def _queries(snapshot: Mapping[str, object]) -> Iterable[tuple[str, ObservationQuery]]:
    workers = _grouped_by_pool(mappings_of(snapshot.get("workers")))
    for name, pool in mapping_of(snapshot.get("pools")).items():
        settings, sample = mapping_of(mapping_of(pool).get("settings")), mapping_of(mapping_of(pool).get("sample"))
        queue, cursor = settings.get("queue"), sample.get("cursor")
        if not isinstance(queue, str) or queue.startswith(LABEL):
            continue
        if not _has_several(settings):  # of several, the supervisor's last turn is shown
            after = cursor if isinstance(cursor, int) else NO_FINISHED
            names = tuple(str(worker.get("worker")) for worker in workers.get(name, ()))
            yield name, ObservationQuery(queue, _tags(settings), after, names)


def _has_several(settings: Mapping[str, object]) -> bool:
    queues = settings.get("queues")
    return isinstance(queues, Sequence) and len(queues) > 1


def _pool(pool: Json, observed: Observation, workers: Sequence[Json], now_seconds: float) -> Json:
    stats = observed.stats
    sample = {
        **mapping_of(pool.get("sample")),
        "at": now_seconds,
        "ready": stats.leasable,
        "held": stats.held + stats.ready - stats.leasable,
        "held_by": observed.held_by,
        "delayed": stats.delayed,
        "in_flight": stats.in_flight,
        "dead": stats.dead,
        "paused": stats.paused,
        "oldest_seconds": round(stats.oldest_ready_seconds(observed.now), 3),
        "deleted_total": stats.deleted_total,
        "cursor": observed.samples.cursor,
    }
    names = {worker.get("worker") for worker in workers}
    counted = [one for one in workers if one.get("state") not in NOT_COUNTED and one.get("replaced_by") not in names]
    return {**pool, "current": len(counted), "sample": sample}


def _worker(worker: Json, leases: _PoolLeases, now_seconds: float) -> Json:
    name = str(worker.get("worker"))
    held, ended = leases.held.get(name, []), leases.ended.get(name, [])
    if not held and not leases.is_whole:
        return worker  # its lease may be among those that were not listed
    state, since = _state(worker, held, ended, leases.observed, now_seconds)
    finished = worker.get("finished")
    return {
        **worker,
        "state": state,
        "since": since,
        "holding": len(held),
        "finished": (finished if isinstance(finished, int) else 0) + len(ended),
        "tasks": [_task(lease, leases.observed) for lease in held],
        "leasing": leases.is_leasing(name),
    }


def _state(
    worker: Json,
    held: Sequence[LiveLease],
    ended: Sequence[FinishedLease],
    observed: Observation,
    now_seconds: float,
) -> tuple[object, object]:
    """Return the worker's state and since when, by the rules of `fleet.observation`."""
    state, since, name = worker.get("state"), worker.get("since"), str(worker.get("worker"))

    def shown(instant: Instant) -> float:
        return round(now_seconds - max(0.0, seconds_between(instant, observed.now)), 3)

    if state in _LEAVING or (state == "unresponsive" and not held):
        return state, since
    if held:
        return "busy", shown(held[0].leased_at)
    if ended:
        return "idle", shown(max(lease.ended_at for lease in ended))
    if state == "starting" and name in observed.seen:
        return "idle", shown(observed.seen[name])
    if state == "busy":  # its lease expired, which is recorded only by the next lease call
        return "idle", now_seconds
    return state, since


def _task(lease: LiveLease, observed: Observation) -> Json:
    held_seconds = round(max(0.0, seconds_between(lease.leased_at, observed.now)), 3)
    return {"task": lease.name, "tag": lease.tag, "held_seconds": held_seconds, "lease_number": lease.lease_number}


def _tags(settings: Mapping[str, object]) -> TagFilter:
    """Return the tags on which a pool works, as its supervisor knows them."""
    tags = settings.get("works_on", settings.get("tags"))
    if tags == "untagged":
        return UNTAGGED
    return TagFilter.of(*map(str, tags)) if isinstance(tags, list) and tags else ANY


def _grouped_by_pool(workers: Iterable[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for worker in workers:
        found.setdefault(str(worker.get("pool")), []).append(worker)
    return found
