"""The outbox of a unit of work: events and wake-ups to publish once its changes are durable. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from queue_core import events
from queue_core.clock import Instant
from queue_core.events import Lifecycle, QueueEvent
from queue_core.fast_values import none_indexes, value
from queue_core.stats import FinishedLease
from queue_core.task import Lease, NewTask
from queue_core.verbs import Added, Deleted, Deletion, Granted

_THEN = attrgetter("then")


@value
class WakeUp:
    """`count` tasks of a tag became leasable; `served` of them were leased to waiters in the same unit of work."""

    queue: str
    tag: str | None
    count: int = 1
    served: int = 0


class Outbox:
    """Collects wake-ups by queue and tag, and events if the lifecycle log is on."""

    def __init__(self, *, now: Instant, lifecycle: Lifecycle) -> None:
        self.now = now
        self.wakes: dict[tuple[str, str | None], int] = {}
        self._served: dict[tuple[str, str | None], int] = {}
        self.recorded: list[Iterable[QueueEvent]] = []
        self._lifecycle = lifecycle

    def record(self, events: Iterable[QueueEvent]) -> None:
        """Record events, if the log wants any. A lazy iterable is consumed later, when `now` may have moved on."""
        if self._lifecycle != "off":
            self.recorded.append(events)

    def events(self) -> list[QueueEvent]:
        """Return the events for the log: one per task, or one per kind and call. Call it once, after the replies."""
        if self._lifecycle == "task":
            return list(chain.from_iterable(self.recorded))
        return [event for recorded in self.recorded for event in _in_batches(recorded)]

    def record_granted(self, queue: str, granted: Granted) -> None:
        """Record the leases that a lease call granted and those it found expired."""
        if granted.expired:
            self.record_finished(granted.expired)
        if self._lifecycle != "off" and granted.leases:
            self.recorded.append(_leased_events(queue, granted.leases, at=self.now))

    def record_deleted(
        self, queue: str, deletions: Sequence[Deletion], outcomes: Sequence[Deleted | None]
    ) -> tuple[list[Added], list[str]]:
        """Record deletions; return the outcomes of their `then` and the tokens that were not current."""
        if self._lifecycle != "off":
            self.recorded.append(_deleted_events(outcomes, at=self.now))
        added: list[Added] = []
        if any(map(_THEN, deletions)):
            for deletion, outcome in zip(deletions, outcomes, strict=True):
                if outcome is not None and deletion.then:
                    added.extend(outcome.then)
                    self.record_added(queue, deletion.then, outcome.then)
        lost = none_indexes(outcomes)
        return added, [deletions[at].token for at in lost] if lost else []

    def record_added(self, queue: str, tasks: Sequence[NewTask], added: Sequence[Added]) -> None:
        """Record an add; `added` are the outcomes in the order of `tasks`."""
        for task, outcome in zip(tasks, added, strict=True):
            if outcome.ready and outcome.status == "added":
                self.wake(task.queue or queue, task.tag)
        if self._lifecycle != "off":
            at = self.now
            self.record(
                QueueEvent(events.TASK_ADDED, at, task.queue or queue, outcome.name, task.tag)
                for task, outcome in zip(tasks, added, strict=True)
                if outcome.status == "added"
            )

    def record_finished(self, finished: Sequence[FinishedLease]) -> None:
        """Record leases that ended without a deletion; their tasks may be leased again unless they died."""
        for lease in finished:
            if not lease.died:
                self.wake(lease.queue, lease.tag)
        at = self.now
        self.record(event for lease in finished for event in finished_events(lease, at=at))

    def wake(self, queue: str, tag: str | None) -> None:
        """Wake one waiter for a task of this tag."""
        key = (queue, tag)
        self.wakes[key] = self.wakes.get(key, 0) + 1

    def all_wakes(self) -> list[WakeUp]:
        """Return the wake-ups by queue and tag."""
        served = self._served
        return [WakeUp(*key, count, served.get(key, 0)) for key, count in self.wakes.items()]

    def record_served(self, wake: WakeUp, number: int) -> None:
        """Record how many of these tasks were leased to waiters."""
        self._served[(wake.queue, wake.tag)] = number


def _in_batches(events: Iterable[QueueEvent]) -> Iterable[QueueEvent]:
    batch: dict[tuple[str, str], QueueEvent] = {}
    for event in events:
        key = (event.event, event.queue)
        before = batch.get(key)
        count = event.count + (before.count if before else 0)
        batch[key] = QueueEvent(event.event, event.at, event.queue, count=count)
    return batch.values()


def _leased_events(queue: str, leases: Sequence[Lease], *, at: Instant) -> Iterator[QueueEvent]:
    """Yield the events of leases lazily; a generator expression would evaluate `leases` and `at` at once."""
    for lease in leases:
        yield QueueEvent(
            events.TASK_LEASED,
            at,
            queue,
            lease.name,
            lease.tag,
            lease.worker,
            lease.lease_number,
            lease.waited_seconds,
        )


def _deleted_events(outcomes: Sequence[Deleted | None], *, at: Instant) -> Iterator[QueueEvent]:
    for outcome in outcomes:
        if outcome is not None:
            yield from finished_events(outcome.finished, at=at)


_FINISHED = {
    "deleted": events.TASK_DELETED,
    "released": events.LEASE_RELEASED,
    "expired": events.LEASE_EXPIRED,
    "removed": events.TASK_DELETED,
}


def finished_events(lease: FinishedLease, *, at: Instant) -> list[QueueEvent]:
    """Return the events of a lease that ended, and of its task's death if it died.

    A release has the reason that was told, the death of its task too.
    """
    ended = QueueEvent(
        _FINISHED[lease.outcome],
        at,
        lease.queue,
        lease.name,
        lease.tag,
        lease.worker,
        lease.lease_number,
        lease.waited_seconds,
        lease.held_seconds,
        reason=(lease.reason or None) if lease.outcome in ("released", "removed") else None,
    )
    if not lease.died:
        return [ended]
    return [ended, replace(ended, event=events.TASK_DIED, reason=lease.reason)]
