"""What the verbs of a turn are to tell once their change is durable: events for the log, wake-ups for waiters. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from queue_core import events
from queue_core.clock import Instant
from queue_core.events import Lifecycle, QueueEvent
from queue_core.stats import FinishedLease
from queue_core.store import Added, Deleted, Deletion, Granted
from queue_core.task import NewTask


@dataclass(frozen=True, slots=True)
class Wake:
    """`count` tasks of a tag became leasable."""

    queue: str
    tag: str | None
    count: int = 1


class Notes:
    """Collects events, as far as the lifecycle log wants them, and wake-ups by queue and tag."""

    def __init__(self, *, now: Instant, lifecycle: Lifecycle) -> None:
        self.now = now
        self.events: list[QueueEvent] = []
        self.wakes: dict[tuple[str, str | None], int] = {}
        self._lifecycle = lifecycle

    def note(self, noted: Iterable[QueueEvent]) -> None:
        """Keep events as the log wants them: one for each task, one for all of a kind, or none."""
        if self._lifecycle == "task":
            self.events.extend(noted)
        elif self._lifecycle == "batch":
            batch: dict[tuple[str, str], QueueEvent] = {}
            for event in noted:
                key = (event.event, event.queue)
                before = batch.get(key)
                count = event.count + (before.count if before else 0)
                batch[key] = QueueEvent(event.event, event.at, event.queue, count=count)
            self.events.extend(batch.values())

    def note_granted(self, queue: str, granted: Granted) -> None:
        """For a lease call: what it granted, and what it found expired."""
        self.note_finished(granted.expired)
        if self._lifecycle != "off" and granted.leases:
            self.note(
                QueueEvent(
                    events.TASK_LEASED,
                    self.now,
                    queue,
                    lease.name,
                    lease.tag,
                    lease.worker,
                    lease.lease_number,
                    lease.waited_seconds,
                )
                for lease in granted.leases
            )

    def note_deleted(
        self, queue: str, deletions: Sequence[Deletion], outcomes: Sequence[Deleted | None]
    ) -> tuple[list[Added], list[str]]:
        """For deletions; what their `then` became, and the tokens that were not current."""
        if self._lifecycle != "off":
            self._log_finished([outcome.finished for outcome in outcomes if outcome is not None])
        added: list[Added] = []
        lost: list[str] = []
        for deletion, outcome in zip(deletions, outcomes, strict=True):
            if outcome is None:
                lost.append(deletion.token)
            elif deletion.then:
                added.extend(outcome.then)
                self.note_added(queue, deletion.then, outcome.then)
        return added, lost

    def note_added(self, queue: str, tasks: Sequence[NewTask], added: Sequence[Added]) -> None:
        """For an add, whose outcomes are in the order of its tasks."""
        wakes = self.wakes
        for task, outcome in zip(tasks, added, strict=True):
            if outcome.ready and outcome.status == "added":
                key = (task.queue or queue, task.tag)
                wakes[key] = wakes.get(key, 0) + 1
        if self._lifecycle != "off":
            self.note(
                QueueEvent(events.TASK_ADDED, self.now, task.queue or queue, outcome.name, task.tag)
                for task, outcome in zip(tasks, added, strict=True)
                if outcome.status == "added"
            )

    def note_finished(self, finished: Sequence[FinishedLease]) -> None:
        """For leases that ended without a deletion: their tasks may be leased again."""
        for lease in finished:
            if not lease.died:
                self.wake(lease.queue, lease.tag)
        self._log_finished(finished)

    def _log_finished(self, finished: Sequence[FinishedLease]) -> None:
        if self._lifecycle != "off" and finished:
            self.note(event for lease in finished for event in finished_events(lease, at=self.now))

    def wake(self, queue: str, tag: str | None) -> None:
        """Have one waiter woken for a task of this tag."""
        key = (queue, tag)
        self.wakes[key] = self.wakes.get(key, 0) + 1

    def all_wakes(self) -> list[Wake]:
        """The wake-ups by queue and tag."""
        return [Wake(queue, tag, count) for (queue, tag), count in self.wakes.items()]


_FINISHED = {"deleted": events.TASK_DELETED, "released": events.LEASE_RELEASED, "expired": events.LEASE_EXPIRED}


def finished_events(lease: FinishedLease, *, at: Instant) -> list[QueueEvent]:
    """What the lifecycle log tells of a lease that ended: how, and the death that came with it."""
    told = QueueEvent(
        _FINISHED[lease.outcome],
        at,
        lease.queue,
        lease.name,
        lease.tag,
        lease.worker,
        lease.lease_number,
        lease.waited_seconds,
        lease.held_seconds,
    )
    if not lease.died:
        return [told]
    return [told, replace(told, event=events.TASK_DIED, reason=lease.reason)]
