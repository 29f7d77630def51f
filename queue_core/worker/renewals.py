"""Renew the leases of running handlers, mark tasks whose lease is lost, and end the worker when a handler is stuck."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Final

from queue_core.attempts.attempt import Failure
from queue_core.attempts.failures import failure_message, host_name
from queue_core.client.queue import Queue
from queue_core.errors import InvalidLeaseTimeError, LeaseLostError, QueueError, StoreUnavailableError
from queue_core.limits import MAX_TOKENS_PER_CALL
from queue_core.process.wording import shown_seconds
from queue_core.stats import OVERRAN
from queue_core.task import Lease
from queue_core.verbs import Renewal
from queue_core.worker import events
from queue_core.worker.code_lines import full_lines, place_of_lines, shown_lines, traceback_of_lines
from queue_core.worker.context import Task
from queue_core.worker.invocation import Invocation
from queue_core.worker.lifecycle import EXIT_HUNG, LifecycleEnd, WorkerLifecycle
from queue_core.worker.removals import removals_of

RENEWED_AFTER: Final = 1 / 3
"""Fraction of a lease after which it is renewed: two more tries fit into the rest."""
RETRIED_AFTER: Final = 1 / 10
"""Fraction of a lease after which a renewal without a reply is retried."""
LONGEST_RETRY_SECONDS: Final = 5.0
"""Longest pause before a renewal without a reply is retried."""
SHORTEST_LEASE_SECONDS: Final = 0.001
"""Shortest length for which a lease is renewed."""
NEWS_SECONDS: Final = 1.0
"""Least time in seconds between two renewals of a lease that only carry its task's progress or checkpoint."""
GIVEN_BACK_BEFORE: Final = 1 / 20
"""Fraction of a lease before the end of its last renewal at which the worker gives it back, to say what hangs."""
LONGEST_GIVEN_BACK_BEFORE_SECONDS: Final = 0.5
UNKNOWN_LEASE_SECONDS: Final = 10.0
"""Seconds for which a lease of unknown length is renewed at once: this host's clock may differ from the store's."""

EXPIRED: Final = "it could not be renewed in time"
REFUSED: Final = "the queue refused to renew it"
MAX_LEASE_REACHED: Final = "it reached the queue's max_lease"
GIVEN_BACK: Final = "the worker gave it back"
NOT_BEGUN: Final = "it may have ended before its handler was called, as the worker stood still: given back"


@dataclass(slots=True)
class RenewedLease:
    """A lease under renewal. Instants are monotonic seconds of this process, so a stepped clock loses no lease."""

    task: Task
    invocation: Invocation
    lease_seconds: float
    ends_at: float
    due_at: float
    sent_at: float
    sure_until: float
    """When it may end first: counted from when it was requested or renewed, not from when its answer was read."""
    news_at: float = float("inf")
    """When its task's progress or checkpoint is to be sent, if that is before `due_at`."""
    is_final: bool = False
    """Return whether `max_lease` allows no renewal any more: it is given back at `due_at`, just before its end."""


class Renewals:
    """A thread that renews all leases of a worker; handlers that block can't delay it."""

    def __init__(
        self, queue: Queue, lifecycle: WorkerLifecycle, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._queue = queue
        self._lifecycle = lifecycle
        self._jitter = jitter
        self._changed = Condition()
        self._leases: dict[str, RenewedLease] = {}
        self._lost_at: dict[Invocation, float] = {}
        self._stuck: set[Invocation] = set()
        self._next_check_at = float("inf")
        self._closed = False
        self._thread = Thread(target=self._run, name="towline-renewals", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop renewing and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=1.0)

    def track(self, invocation: Invocation, *, requested_at: float | None = None) -> None:
        """Renew the invocation's leases, requested at `requested_at` (by default now), until `untrack`."""
        now, on_news = invocation.started_at, self._schedule_news
        with self._changed:
            for task in invocation.tasks:
                length_seconds = lease_seconds(task.lease)
                seconds = length_seconds or UNKNOWN_LEASE_SECONDS
                due_at = now if length_seconds is None else now + seconds * RENEWED_AFTER
                sure_until = (now if requested_at is None else requested_at) + seconds
                self._leases[task.lease.token] = RenewedLease(
                    task, invocation, seconds, now + seconds, due_at, now, sure_until
                )
                task.on_news = on_news
                if due_at < self._next_check_at:
                    self._next_check_at = due_at
                    self._changed.notify()
        invocation.is_in_force = lambda: self._is_in_force(invocation)

    def untrack(self, invocation: Invocation) -> None:
        """Stop renewing: the handler has ended, and the caller deletes or releases its leases."""
        with self._changed:
            for task in invocation.tasks:
                self._leases.pop(task.lease.token, None)
            self._lost_at.pop(invocation, None)
            self._stuck.discard(invocation)

    def _is_in_force(self, invocation: Invocation) -> bool:
        """Return whether all its leases that are not lost hold for sure; log it if not."""
        now = self._lifecycle.clock.monotonic()
        with self._changed:
            entries = [self._leases.get(task.lease.token) for task in invocation.tasks]
        if all(entry is None or now < entry.sure_until for entry in entries):
            return True
        self._lifecycle.log.warning(events.LEASE_LOST, **invocation.log_fields(now=now), reason=NOT_BEGUN)
        return False

    def stuck(self) -> int:
        """Return the number of calls that ran on for the grace after their leases: nobody waits for them any more."""
        return len(self._stuck)

    def held(self) -> list[tuple[Task, float]]:
        """Return the tasks that handlers work on, each with when its handler began."""
        with self._changed:
            return [(entry.task, entry.invocation.started_at) for entry in self._leases.values()]

    def abandon(self) -> list[Task]:
        """Mark every tracked lease as lost and return their tasks; the caller releases them."""
        with self._changed:
            abandoned = list(self._leases.values())
        self._lose(abandoned, GIVEN_BACK)
        return [entry.task for entry in abandoned]

    def renew_due(self) -> None:
        """Renew the leases due by now and handle lost leases and stuck handlers, as the thread does."""
        self._process(self._take_due(self._lifecycle.clock.monotonic()))

    def _schedule_news(self, task: Task) -> None:
        """Make the lease of a task due soon: its handler reported something."""
        with self._changed:
            entry = self._leases.get(task.lease.token)
            if entry is None or entry.is_final:
                return
            entry.news_at = min(entry.news_at, entry.sent_at + NEWS_SECONDS)
            if entry.news_at < self._next_check_at:
                self._next_check_at = entry.news_at
                self._changed.notify()

    def _run(self) -> None:
        try:
            while (due := self._wait_for_due()) is not None:
                self._process(due)
        except BaseException as error:  # noqa: BLE001  the top of a thread: without it handlers would lose their leases unnoticed
            self._lifecycle.fail(error, thread="renewals")

    def _wait_for_due(self) -> list[RenewedLease] | None:
        """Sleep until a lease or a stuck handler is due; return the leases due for renewal, None when closed."""
        with self._changed:
            while not self._closed:
                now = self._lifecycle.clock.monotonic()
                if self._next_check_at <= now:
                    return self._take_due(now)
                self._next_check_at = self._soonest()
                left = self._next_check_at - self._lifecycle.clock.monotonic()
                self._changed.wait(timeout=None if left == float("inf") else max(0.0, left))
            return None

    def _take_due(self, now: float) -> list[RenewedLease]:
        """Return the leases that are due or nearly due: one call renews many. `_process` sets the next check."""
        with self._changed:
            self._next_check_at = float("inf")
            return [
                entry
                for entry in self._leases.values()
                if entry.due_at <= now + entry.lease_seconds / 20 or entry.news_at <= now
            ]

    def _process(self, due: Sequence[RenewedLease]) -> None:
        self._renew_all(due)
        self._end_if_stuck()

    def _soonest(self) -> float:
        grace_seconds = self._lifecycle.settings.grace_seconds
        soonest = min((min(entry.due_at, entry.news_at) for entry in self._leases.values()), default=float("inf"))
        return min(soonest, min(self._lost_at.values(), default=float("inf")) + grace_seconds)

    def _renew_all(self, due: Sequence[RenewedLease]) -> None:
        now = self._lifecycle.clock.monotonic()
        self._lose([entry for entry in due if entry.ends_at <= now and not entry.is_final], EXPIRED)
        self._give_back([entry for entry in due if entry.due_at <= now and entry.is_final])
        by_length: dict[float, list[RenewedLease]] = {}
        for entry in due:
            if not entry.invocation.is_alive():
                entry.due_at, entry.news_at = entry.ends_at, float("inf")
            elif entry.ends_at > now and not entry.is_final:
                by_length.setdefault(entry.lease_seconds, []).append(entry)
        for seconds, group in by_length.items():
            for start in range(0, len(group), MAX_TOKENS_PER_CALL):
                self._renew(group[start : start + MAX_TOKENS_PER_CALL], seconds)

    def _renew(self, group: Sequence[RenewedLease], seconds: float) -> None:
        sent_at = self._lifecycle.clock.monotonic()
        refused: Sequence[str] = ()
        news: dict[str, Renewal] = {}
        for entry in group:
            entry.sent_at, entry.news_at = sent_at, float("inf")
            if (renewal := entry.task.news()) is not None:
                news[entry.task.lease.token] = renewal
        tokens = [entry.task.lease.token for entry in group]
        try:
            self._queue.renew([news.get(token, token) for token in tokens] if news else tokens, seconds=seconds)
        except LeaseLostError as error:
            refused = error.tokens
        except InvalidLeaseTimeError:
            self._find_final(group, seconds)
            return
        except StoreUnavailableError as error:
            self._lifecycle.queue_unreached(error)
            self._try_later(group, now=sent_at)
            return
        except QueueError as error:
            self._lifecycle.log.warning(events.QUEUE_UNREACHED, error=str(error), verb="renew")
            self._try_later(group, now=sent_at)
            return
        self._lifecycle.queue_reached()
        gone = set(refused)
        self._lose_refused([entry for entry in group if entry.task.lease.token in gone])
        for entry in group:
            # Counted from the sending: the queue counts from a later instant.
            entry.ends_at = entry.sure_until = sent_at + seconds
            entry.due_at = sent_at + seconds * RENEWED_AFTER
            if (renewal := news.get(entry.task.lease.token)) is not None:
                entry.task.mark_sent(renewal)

    def _lose_refused(self, refused: Sequence[RenewedLease]) -> None:
        tasks = [entry.task for entry in refused]
        reasons = removals_of(self._queue, tasks, worker=self._lifecycle.settings.worker)
        by_reason: dict[str, list[RenewedLease]] = {}
        for entry in refused:
            by_reason.setdefault(reasons.get(entry.task.lease.token, REFUSED), []).append(entry)
        for reason, entries in by_reason.items():
            self._lose(entries, reason)

    def _find_final(self, group: Sequence[RenewedLease], seconds: float) -> None:
        """Find the lease that would exceed the queue's `max_lease` and made the call fail for all; renew it no more."""
        if len(group) > 1:
            for entry in group:
                self._renew([entry], seconds)
            return
        final = group[0]
        early_seconds = min(LONGEST_GIVEN_BACK_BEFORE_SECONDS, final.lease_seconds * GIVEN_BACK_BEFORE)
        final.is_final = True
        final.due_at, final.news_at = final.ends_at - early_seconds, float("inf")

    def _give_back(self, final: Sequence[RenewedLease]) -> None:
        """Give leases back that end now, at the queue's `max_lease`, with the line their handler is at (ADR 34).

        One try, so that no renewal waits for it: a lease that is not given back expires, and nobody knows why.
        """
        now = self._lifecycle.clock.monotonic()
        failures = [self._overrun(entry.invocation, now=now) for entry in final]
        lost = self._lose(final, MAX_LEASE_REACHED)
        for entry, failure in zip(final, failures, strict=True):
            if entry.task not in lost:
                continue
            try:
                self._queue.release([entry.task.lease.token], delay_seconds=0.0, error=failure)
            except LeaseLostError:
                pass  # it ended by time
            except StoreUnavailableError as error:
                self._lifecycle.queue_unreached(error)
            except QueueError as error:
                self._lifecycle.log.warning(events.QUEUE_UNREACHED, error=str(error), verb="release")

    @staticmethod
    def _overrun(invocation: Invocation, *, now: float) -> Failure:
        lines = invocation.lines()
        shown = shown_lines(lines)
        ran_for = shown_seconds(now - invocation.started_at)
        message = f"its handler ran on for {ran_for}, as long as the queue's max_lease allows"
        return Failure(
            "timed_out",
            OVERRAN,
            failure_message(f"{message}, it was at {shown}" if shown else message),
            place_of_lines(lines) or invocation.handler.place,
            host_name(),
            traceback=traceback_of_lines(f"{OVERRAN}: {message}", lines, invocation.tasks),
        )

    def _try_later(self, group: Iterable[RenewedLease], *, now: float) -> None:
        for entry in group:
            pause = min(LONGEST_RETRY_SECONDS, entry.lease_seconds * RETRIED_AFTER) * (1.0 - 0.5 * self._jitter())
            entry.due_at = min(entry.ends_at, now + pause)

    def _lose(self, lost: Iterable[RenewedLease], reason: str) -> list[Task]:
        """Mark these leases as lost, and return the tasks of those that were held until now."""
        now = self._lifecycle.clock.monotonic()
        invocations: dict[Invocation, None] = {}
        tasks: list[Task] = []
        with self._changed:
            for entry in lost:
                # A lease untracked meanwhile was deleted or released: nothing was lost.
                if self._leases.pop(entry.task.lease.token, None) is not None:
                    entry.task.mark_lost(reason)
                    tasks.append(entry.task)
                    invocations[entry.invocation] = None
            ended = [invocation for invocation in invocations if not invocation.remaining()]
            self._lost_at.update(dict.fromkeys(ended, now))
        for invocation in invocations:
            self._lifecycle.log.warning(
                events.LEASE_LOST,
                **invocation.log_fields(now=now),
                place=place_of_lines(invocation.lines()),
                reason=reason,
            )
        for invocation in ended:
            invocation.cancel()
        return tasks

    def _end_if_stuck(self) -> None:
        now = self._lifecycle.clock.monotonic()
        grace_seconds = self._lifecycle.settings.grace_seconds
        with self._changed:
            stuck = [invocation for invocation, lost_at in self._lost_at.items() if now >= lost_at + grace_seconds]
            for invocation in stuck:
                del self._lost_at[invocation]
            self._stuck.update(stuck)
            self._next_check_at = self._soonest()
        for invocation in stuck:
            self._end_for(invocation, now=now)

    def _end_for(self, invocation: Invocation, *, now: float) -> None:
        """End the worker because of a call that hangs."""
        lines = invocation.lines()
        shown = shown_lines(lines)
        self._lifecycle.log.warning(
            events.HANDLER_STUCK,
            **invocation.log_fields(now=now),
            place=place_of_lines(lines),
            reason=invocation.tasks[0].lost_reason,
            where=full_lines(lines),
        )
        ran_seconds, grace_seconds = now - invocation.started_at, self._lifecycle.settings.grace_seconds
        self._lifecycle.end(
            LifecycleEnd(
                events.HANDLER_STUCK,
                f"{invocation.handler.display_name} hung{f' at {shown}' if shown else ''}: it ran for "
                f"{shown_seconds(ran_seconds)}, {shown_seconds(grace_seconds)} longer than the lease of its task "
                f"{invocation.tasks[0].name}",
                EXIT_HUNG,
            )
        )


def lease_seconds(lease: Lease) -> float | None:
    """Return the length of a lease, to the millisecond; both instants are the store's.

    None where the store's clock was stepped back in between, which may put the grant after the end.
    """
    microseconds = lease.expires_at - lease.leased_at
    return max(SHORTEST_LEASE_SECONDS, (microseconds + 500) // 1000 / 1000) if microseconds > 0 else None
