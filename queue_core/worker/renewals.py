"""Renews the leases of running handlers, tells handlers of leases that are lost, and notices those that are stuck."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Final

from queue_core.api import Queue
from queue_core.errors import InvalidLeaseTimeError, LeaseLostError, QueueError, StoreUnavailableError
from queue_core.limits import MAX_TOKENS_PER_CALL
from queue_core.task import Lease
from queue_core.worker import events
from queue_core.worker.context import Task
from queue_core.worker.invocation import Invocation
from queue_core.worker.lifecycle import EXIT_INTERNAL, LifecycleEnd, WorkerLifecycle

RENEWED_AFTER: Final = 1 / 3
"""Share of a lease after which it is renewed: two more tries fit into the rest."""
RETRIED_AFTER: Final = 1 / 10
"""Share of a lease after which a renewal that was not answered is repeated."""
LONGEST_RETRY_SECONDS: Final = 5.0
SHORTEST_LEASE_SECONDS: Final = 0.001
UNKNOWN_LEASE_SECONDS: Final = 10.0
"""What a lease of unknown length is renewed for, at once: this host's clock says nothing of the store's."""

EXPIRED: Final = "it could not be renewed in time"
REFUSED: Final = "the queue refused to renew it"
OUTGROWN: Final = "it reached the queue's max_lease"
GIVEN_BACK: Final = "the worker gave it back"


@dataclass(slots=True)
class KeptLease:
    """A lease under renewal. Instants are monotonic seconds of this process, so a stepped clock loses no lease."""

    task: Task
    call: Invocation
    lease_seconds: float
    ends_at: float
    due_at: float
    is_final: bool = False


class Renewals:
    """One thread for all slots of a worker. Handlers that block cannot hold it up."""

    def __init__(self, queue: Queue, shift: WorkerLifecycle, *, jitter: Callable[[], float] = random.random) -> None:
        self._queue = queue
        self._shift = shift
        self._jitter = jitter
        self._changed = Condition()
        self._kept: dict[str, KeptLease] = {}
        self._lost_at: dict[Invocation, float] = {}
        self._next_look_at = float("inf")
        self._closed = False
        self._thread = Thread(target=self._run, name="towline-renewals", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def close(self) -> None:
        """Renew nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=1.0)

    def hold(self, call: Invocation) -> None:
        """Keep the call's leases alive until `drop`."""
        now = call.started_at
        with self._changed:
            for task in call.tasks:
                known = _length_seconds(task.lease)
                seconds = known or UNKNOWN_LEASE_SECONDS
                due_at = now if known is None else now + seconds * RENEWED_AFTER
                self._kept[task.lease.token] = KeptLease(task, call, seconds, now + seconds, due_at)
                if due_at < self._next_look_at:
                    self._next_look_at = due_at
                    self._changed.notify()

    def drop(self, call: Invocation) -> None:
        """The call's handler has ended: its leases are the caller's to delete or release."""
        with self._changed:
            for task in call.tasks:
                self._kept.pop(task.lease.token, None)
            self._lost_at.pop(call, None)

    def abandon(self) -> list[Lease]:
        """Lose every lease that is still held, telling the handlers; the caller releases them."""
        with self._changed:
            kept = list(self._kept.values())
        self._lose(kept, GIVEN_BACK)
        return [entry.task.lease for entry in kept]

    def renew_due(self) -> None:
        """Renew what is due by now, and note what is lost or stuck; the thread does this whenever something is."""
        self._see_to(self._take_due(self._shift.clock.monotonic()))

    def _run(self) -> None:
        try:
            while (due := self._wait_for_due()) is not None:
                self._see_to(due)
        except BaseException:  # noqa: BLE001  the top of a thread: without it handlers would lose their leases unnoticed
            self._shift.fail(thread="renewals")

    def _wait_for_due(self) -> list[KeptLease] | None:
        """Sleep until something is to be looked at; the leases due for renewal, None when closed."""
        with self._changed:
            while not self._closed:
                now = self._shift.clock.monotonic()
                if self._next_look_at <= now:
                    return self._take_due(now)
                self._next_look_at = self._soonest()
                left = self._next_look_at - self._shift.clock.monotonic()
                self._changed.wait(timeout=None if left == float("inf") else max(0.0, left))
            return None

    def _take_due(self, now: float) -> list[KeptLease]:
        """What is due, or nearly: one call renews for many. The next look is set by `_see_to`."""
        with self._changed:
            self._next_look_at = float("inf")
            return [kept for kept in self._kept.values() if kept.due_at <= now + kept.lease_seconds / 20]

    def _see_to(self, due: Sequence[KeptLease]) -> None:
        self._renew_all(due)
        self._look_for_stuck()

    def _soonest(self) -> float:
        grace_seconds = self._shift.settings.grace_seconds
        soonest = min((kept.due_at for kept in self._kept.values()), default=float("inf"))
        return min(soonest, min(self._lost_at.values(), default=float("inf")) + grace_seconds)

    def _renew_all(self, due: Sequence[KeptLease]) -> None:
        now = self._shift.clock.monotonic()
        self._lose([kept for kept in due if kept.ends_at <= now and not kept.is_final], EXPIRED)
        self._lose([kept for kept in due if kept.ends_at <= now and kept.is_final], OUTGROWN)
        by_length: dict[float, list[KeptLease]] = {}
        for kept in due:
            if not kept.call.is_alive():
                kept.due_at = kept.ends_at
            elif kept.ends_at > now and not kept.is_final:
                by_length.setdefault(kept.lease_seconds, []).append(kept)
        for seconds, group in by_length.items():
            for start in range(0, len(group), MAX_TOKENS_PER_CALL):
                self._renew(group[start : start + MAX_TOKENS_PER_CALL], seconds)

    def _renew(self, group: Sequence[KeptLease], seconds: float) -> None:
        asked_at = self._shift.clock.monotonic()
        refused: Sequence[str] = ()
        try:
            self._queue.renew([kept.task.lease.token for kept in group], seconds=seconds)
        except LeaseLostError as error:
            refused = error.tokens
        except InvalidLeaseTimeError:
            self._outgrow(group, seconds)
            return
        except StoreUnavailableError as error:
            self._shift.unreached(error)
            self._try_later(group, now=asked_at)
            return
        except QueueError as error:
            self._shift.log.warning(events.QUEUE_UNREACHED, error=str(error), verb="renew")
            self._try_later(group, now=asked_at)
            return
        self._shift.reached()
        gone = set(refused)
        self._lose([kept for kept in group if kept.task.lease.token in gone], REFUSED)
        for kept in group:
            kept.ends_at = asked_at + seconds  # from the asking, as the queue counts from a later instant
            kept.due_at = asked_at + seconds * RENEWED_AFTER

    def _outgrow(self, group: Sequence[KeptLease], seconds: float) -> None:
        """One of these would outgrow `max_lease` and failed the call for all: tell it from the others."""
        if len(group) > 1:
            for kept in group:
                self._renew([kept], seconds)
            return
        group[0].is_final = True
        group[0].due_at = group[0].ends_at

    def _try_later(self, group: Iterable[KeptLease], *, now: float) -> None:
        for kept in group:
            pause = min(LONGEST_RETRY_SECONDS, kept.lease_seconds * RETRIED_AFTER) * (1.0 - 0.5 * self._jitter())
            kept.due_at = min(kept.ends_at, now + pause)

    def _lose(self, lost: Iterable[KeptLease], reason: str) -> None:
        now = self._shift.clock.monotonic()
        calls: dict[Invocation, None] = {}
        with self._changed:
            for kept in lost:
                # Whoever dropped it in the meantime has deleted or released it: nothing was lost.
                if self._kept.pop(kept.task.lease.token, None) is not None:
                    kept.task.mark_lost(reason)
                    calls[kept.call] = None
            ended = [call for call in calls if not call.held()]
            self._lost_at.update(dict.fromkeys(ended, now))
        for call in calls:
            self._shift.log.warning(events.LEASE_LOST, reason=reason, **call.told(now=now))
        for call in ended:
            call.cancel()

    def _look_for_stuck(self) -> None:
        now = self._shift.clock.monotonic()
        grace_seconds = self._shift.settings.grace_seconds
        with self._changed:
            stuck = [call for call, lost_at in self._lost_at.items() if now >= lost_at + grace_seconds]
            for call in stuck:
                del self._lost_at[call]
            self._next_look_at = self._soonest()
        for call in stuck:
            self._shift.log.warning(events.HANDLER_STUCK, where=call.where(), **call.told(now=now))
            self._shift.end(
                LifecycleEnd(
                    events.HANDLER_STUCK,
                    f"{call.handler.shown_name} did not return within {grace_seconds:g} s of losing its lease",
                    EXIT_INTERNAL,
                )
            )


def _length_seconds(lease: Lease) -> float | None:
    """How long the lease was given for, to the millisecond; both instants are the store's.

    None where its clock was stepped back in between, which may put the grant after the end.
    """
    microseconds = lease.expires_at - lease.leased_at
    return max(SHORTEST_LEASE_SECONDS, (microseconds + 500) // 1000 / 1000) if microseconds > 0 else None
