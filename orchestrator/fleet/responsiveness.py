"""Find workers that hang: they neither hold a live lease nor ask for one. Pure.

The servers of the queue know when a worker last asked: it is idle while it waits in a lease call or has asked within
seconds. Where workers open the store themselves nobody knows, and a worker counts as idle until work has waited so long
that any worker that asks would have leased it, or until it has given no sign of life for as long since its lease ended
by time.
"""

from dataclasses import replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import PresentWorker, QueueSample
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.external import POLLS_SECONDS, WAITS_SECONDS
from orchestrator.fleet.quarantine import is_solo_worker
from orchestrator.fleet.workers import Fleet, State, Worker

GAP_SECONDS: Final = 3.0
"""Two samples further apart than a turn plus this are a gap: the supervisor, its host or the queue stood still, and
silent workers may have been unable to ask, so their silence before it does not count."""
UNTAKEN_SECONDS: Final = 10.0
"""Wait of a task, or time since a lease of its own ended by time, after which an idle worker is taken to hang, where no
server reports calls; workers poll every 5 s, and renew."""

_CHECKED_STATES: Final = frozenset({"idle", "alone", "unresponsive"})


@value
class WorkWatch:
    """Since when a pool was sampled without a gap, and since when every sample has found waiting work."""

    since: Monotonic
    untaken_since: Monotonic | None = None


def next_watch(
    before: WorkWatch | None, sample: QueueSample, *, last: QueueSample | None, turn_seconds: float
) -> WorkWatch:
    """Return the watch after a sample; `last` is the previous sample, None if sampling failed in between."""
    since = sample.at
    if before is not None and last is not None and sample.at - last.at <= turn_seconds + GAP_SECONDS:
        since = before.since
    if not sample.ready or sample.paused:
        return WorkWatch(since)
    oldest_at = Monotonic(sample.at - max((w.age_seconds for w in sample.waiting), default=0.0))
    known = before.untaken_since if before is not None and since < sample.at else None
    return WorkWatch(since, max(oldest_at, sample.at if known is None else known))


def mark_unresponsive(fleet: Fleet, sample: QueueSample, *, spec: PoolSpec, watch: WorkWatch) -> Fleet:
    """Mark the workers that hang, and unmark those that ask again. Call it after `observe`, once per sample.

    External workers are left out: a silent one counts as gone (see `external`). Nothing is marked while there are more
    leases than the sample lists.
    """
    if spec.runtime_kind == "external" or len(sample.running) < sample.in_flight:
        return fleet
    changed = {}
    for name, worker in fleet.workers.items():
        if worker.leases or worker.started_at is None or worker.state not in _CHECKED_STATES:
            continue
        after = _checked(worker, sample, spec=spec, watch=watch)
        if after is not worker:
            changed[name] = after
    return replace(fleet, workers={**fleet.workers, **changed}) if changed else fleet


def _checked(worker: Worker, sample: QueueSample, *, spec: PoolSpec, watch: WorkWatch) -> Worker:
    presence = sample.presence.get(worker.worker)
    is_marked = worker.state == "unresponsive"
    if presence is None:
        hung_at = _untaken_since(worker, sample, spec=spec, watch=watch)
        if hung_at is None:
            hung_at = _lapsed_since(worker, sample, spec=spec, watch=watch)
        if hung_at is None and is_marked and not _took_since(worker):
            hung_at = worker.hung_at  # there is no sign of life yet
    else:
        hung_at = _silent_since(worker, presence, sample, spec=spec, watch=watch)
    if hung_at is None:
        return _asks_again(worker, sample) if is_marked else worker
    if not is_marked:
        return replace(worker, state="unresponsive", since=sample.at, hung_at=hung_at)
    # After a gap its grace starts again.
    return replace(worker, since=watch.since) if watch.since > worker.since else worker


def _took_since(worker: Worker) -> bool:
    """Return whether it has ended a lease itself since it was marked."""
    return worker.acted_at is not None and worker.acted_at > worker.since


def _silent_since(
    worker: Worker, presence: PresentWorker, sample: QueueSample, *, spec: PoolSpec, watch: WorkWatch
) -> Monotonic | None:
    """Return since when it has neither asked nor held a lease, if that is too long; None while it counts as idle."""
    if presence.silent_seconds <= 0.0:
        return None
    asked_at = Monotonic(sample.at - presence.silent_seconds)
    alive_at = asked_at if worker.acted_at is None else max(asked_at, worker.acted_at)
    lapsed_at = worker.lapsed_at
    if lapsed_at is not None and watch.since < lapsed_at and alive_at < lapsed_at:
        return lapsed_at  # a worker that lives renews its lease, or ends it
    limit_seconds = WAITS_SECONDS if presence.waits else max(POLLS_SECONDS, spec.slo)
    since = alive_at if lapsed_at is None else max(alive_at, lapsed_at)
    return since if sample.at - max(since, watch.since) >= limit_seconds else None


def _untaken_since(worker: Worker, sample: QueueSample, *, spec: PoolSpec, watch: WorkWatch) -> Monotonic | None:
    """Return since when there was work that it did not take; None if not for long, or if it may not fit the worker."""
    if spec.app is None or worker.state == "alone" or watch.untaken_since is None:
        return None
    free_at = worker.since if worker.state == "idle" else worker.hung_at or worker.since
    since = max(watch.untaken_since, watch.since, free_at)
    return since if sample.at - since >= UNTAKEN_SECONDS else None


def _lapsed_since(worker: Worker, sample: QueueSample, *, spec: PoolSpec, watch: WorkWatch) -> Monotonic | None:
    """Return when its lease ended by time, if it has neither ended it nor taken another for long.

    Another worker may have taken all that waited, so that nothing is left to tell a worker that hangs by.
    """
    lapsed_at = worker.lapsed_at
    if spec.app is None or worker.state == "alone" or lapsed_at is None:
        return None
    if worker.acted_at is not None and worker.acted_at > lapsed_at:
        return None
    if watch.since > lapsed_at:  # a queue that nobody reached could not be asked to renew, either
        return None
    return lapsed_at if sample.at - lapsed_at >= UNTAKEN_SECONDS else None


def _asks_again(worker: Worker, sample: QueueSample) -> Worker:
    state: State = "alone" if is_solo_worker(worker.worker) else "idle"
    return replace(worker, state=state, since=sample.at, hung_at=None, condition="")
