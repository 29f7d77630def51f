"""LeaseClient: leases, deletes and releases for one thread. Retries failed calls and never drops a finished task."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from queue_core.attempts.attempt import Failure
from queue_core.attempts.failures import failure_message, failure_of, host_name
from queue_core.client.queue import Queue
from queue_core.errors import (
    InvalidLeaseTimeError,
    InvalidRequestError,
    LeaseLostError,
    QueueError,
    StoreUnavailableError,
    UnknownQueueError,
    WorkerRetiredError,
)
from queue_core.limits import MAX_TOKENS_PER_CALL
from queue_core.process.wording import shown_seconds
from queue_core.task import Lease, TagFilter
from queue_core.verbs import Renewal
from queue_core.worker import events
from queue_core.worker.context import Task
from queue_core.worker.invocation import TOO_LATE, InvocationDone, InvocationFailed
from queue_core.worker.lifecycle import EXIT_MISCONFIGURED, LifecycleEnd, WorkerLifecycle, retry_seconds
from queue_core.worker.removals import removals_of
from queue_core.worker.renewals import UNKNOWN_LEASE_SECONDS, lease_seconds

SHORT_WAIT_SECONDS = 1.0
"""Longest wait for tasks where a wait can't be interrupted: a drain has to sit it out."""
LAST_RENEWAL_SECONDS = 10.0
"""Length of the renewal with a last checkpoint, where the queue's `max_lease` allows no whole lease."""
TRUSTED_SHARE = 1 / 2
"""Fraction of a lease for which its answer may be on its way: then a third is left, until its first renewal is due."""
MOST_CONFIRMATIONS = 3
"""Tries to renew a lease whose answer came late, each of which may come late too; after that it is given back."""


@dataclass(frozen=True, slots=True)
class QueueClients:
    """The clients by which a worker reaches its queue.

    Args:
        shared: for calls that do not wait; used by several threads.
        waiting: opens a client for one thread, which is closed to interrupt its wait; None: that thread waits with the
            shared client, where a wait can't be interrupted and is short instead.
    """

    shared: Queue
    waiting: Callable[[], Queue] | None = None


class LeaseClient:
    """The queue client of one thread; only `interrupt` may be called from another.

    A retry is harmless: a deletion that took effect although its reply was lost is refused the second time, and a lease
    whose grant was lost expires.
    """

    def __init__(
        self,
        clients: QueueClients,
        lifecycle: WorkerLifecycle,
        *,
        tags: TagFilter,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._queue = clients.shared
        self._lifecycle = lifecycle
        self._tags = tags
        self._jitter = jitter
        self._finished: list[InvocationDone] = []
        self.requested_at = 0.0
        """When the leases at hand were requested, or renewed by `in_force`, in monotonic seconds."""
        self._is_uncertain = False
        """Return whether `_finished` was sent once without a reply: it may have taken effect."""
        self._owns_waiting = clients.waiting is not None
        self._waiting = clients.shared if clients.waiting is None else clients.waiting()
        wait_seconds = lifecycle.settings.wait_seconds
        self._wait_seconds = wait_seconds if self._owns_waiting else min(wait_seconds, SHORT_WAIT_SECONDS)

    def finish(self, done: Sequence[InvocationDone]) -> None:
        """Queue these for deletion with the next lease, or by `flush`."""
        self._finished += done

    def exchange(self, *, count: int, wait: Literal["wait", "poll"] = "wait") -> list[Lease]:
        """Delete the finished tasks and lease the next in one call: a worker's steady state.

        Returns no lease when there is no task, and once the worker is ending; `flush` then deletes what is left.
        A lease that has ended while its answer was on its way is not returned (see `in_force`).
        """
        attempt = 0
        self.requested_at = self._lifecycle.clock.monotonic()  # an answer may be that to the first of several tries
        while not self._lifecycle.ending.is_set():
            try:
                leases, refused = self._waiting.exchange(
                    [done.deletion for done in self._finished],
                    count=count,
                    tags=self._tags,
                    worker=self._lifecycle.settings.worker,
                    # A retry does not wait, so that the reply shows at once that the queue is back.
                    wait_seconds=self._wait_seconds if wait == "wait" and attempt == 0 else 0.0,
                )
            except StoreUnavailableError as error:
                self._is_uncertain = True
                if self._lifecycle.ending.is_set():  # the wait was interrupted: the queue is not to blame
                    return []
                attempt += 1
                self._lifecycle.queue_unreached(error)
                self._lifecycle.ending.wait(retry_seconds(attempt, jitter=self._jitter()))
            except WorkerRetiredError:
                self._clear()  # deletions take effect before a retired worker is turned away
                self._lifecycle.end(LifecycleEnd(events.WORKER_RETIRED, "retired by its supervisor", urgency="finish"))
            except (InvalidRequestError, UnknownQueueError) as error:
                if not self._finished:
                    self._give_up(error)
                else:
                    self.flush()  # it finds out which of them is invalid
            except QueueError as error:
                self._give_up(error)
            else:
                self._lifecycle.queue_reached()
                if not self._is_uncertain:
                    self._log_refused(refused, self._finished)
                self._clear()
                return self.in_force(leases)
        return []

    def top_up(self, *, count: int, tags: TagFilter) -> list[Lease]:
        """Lease up to `count` more tasks of one tag, without waiting; none when the call fails.

        Follow it by `in_force` with all leases, those of the exchange before too.
        """
        try:
            return self._queue.lease(count, tags=tags, worker=self._lifecycle.settings.worker)
        except QueueError:
            return []  # the batch begins with what it has; a lasting error shows at the next exchange

    def in_force(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return those of the leases since the last exchange that hold now; call it before their handlers begin.

        A process that was stopped, or a slow connection, may read an answer when its leases have ended: another worker
        has the tasks. Each lease is counted from when it was requested; one that may be half over is renewed, or else
        given back.
        """
        held = list(leases)
        lengths = {lease.token: lease_seconds(lease) or 0.0 for lease in held}  # 0: not known before it is renewed
        for _ in range(MOST_CONFIRMATIONS):
            requested_at, now = self.requested_at, self._lifecycle.clock.monotonic()
            late = [lease for lease in held if now - requested_at > lengths[lease.token] * TRUSTED_SHARE]
            if not late:
                return held
            self.requested_at = now
            confirmed = self._confirmed(late, seconds=now - requested_at)
            lengths.update({token: lengths[token] or UNKNOWN_LEASE_SECONDS for token in confirmed})
            gone = {lease.token for lease in late} - confirmed
            held = [lease for lease in held if lease.token not in gone]
        if held:
            seconds = self._lifecycle.clock.monotonic() - self.requested_at
            reason = (
                f"the queue answers after {seconds:.1f} s, which is too late for leases of "
                f"{min(lengths[lease.token] for lease in held):g} s: give the queue a longer `lease`"
            )
            self._lifecycle.log.warning(events.LEASES_RELEASED, reason=reason, count=len(held))
            self._give_back(held, charge="uncounted", failure=Failure("given_back", message=reason))
        return []

    def flush(self) -> None:
        """Delete the finished tasks without leasing; a task whose follow-up tasks can't be added counts as failed."""
        finished, is_uncertain = tuple(self._finished), self._is_uncertain
        self._clear()
        for start in range(0, len(finished), MAX_TOKENS_PER_CALL):
            chunk = finished[start : start + MAX_TOKENS_PER_CALL]
            try:
                self._delete(chunk, is_uncertain=is_uncertain)
            except (InvalidRequestError, UnknownQueueError):
                for done in chunk:  # the whole call was refused for one of them
                    try:
                        self._delete([done], is_uncertain=is_uncertain)
                    except (InvalidRequestError, UnknownQueueError) as error:
                        self._refuse(done, error)

    def fail(self, failed: InvocationFailed) -> None:
        """Release tasks because their handler failed; a checkpoint that was not sent yet is sent before."""
        self._send_checkpoints(failed.tasks)
        for release in failed.releases(jitter=self._jitter()):
            self._release(
                [task.lease for task in release.tasks],
                delay_seconds=release.delay_seconds,
                dead_reason=release.dead_reason,
                charge=release.charge,
                failure=release.failure,
            )

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases whose handler never began: leasable at once, in their old places, and not counted."""
        self._give_back(leases, charge="uncounted", failure=self._stopped())

    def give_back_unfinished(self, tasks: Sequence[Task], *, blamed: Failure | None = None) -> None:
        """Release tasks whose handler has not ended, as `give_back` does, with their checkpoints.

        With `blamed`, the failure that their handlers caused, the lease counts and they wait for the queue's back-off.
        """
        self._send_checkpoints(tasks)
        charge: Literal["counted", "uncounted"] = "uncounted" if blamed is None else "counted"
        self._give_back([task.lease for task in tasks], charge=charge, failure=blamed or self._stopped())

    def interrupt(self) -> None:
        """Interrupt, from another thread, the wait of the thread that uses this client; the worker must be ending."""
        self.close()

    def close(self) -> None:
        """Close this thread's own client: it can't lease any more, only delete and release."""
        if self._owns_waiting:
            self._waiting.close()

    def _clear(self) -> None:
        self._finished.clear()
        self._is_uncertain = False

    def _delete(self, finished: Sequence[InvocationDone], *, is_uncertain: bool) -> None:
        def delete(attempt: int) -> None:
            try:
                self._queue.delete([done.deletion for done in finished])
            except LeaseLostError as error:
                if attempt == 0 and not is_uncertain:
                    self._log_refused(error.tokens, finished)

        self._persist(delete)

    def _confirmed(self, late: Sequence[Lease], *, seconds: float) -> set[str]:
        """Renew leases that were requested `seconds` ago; return the tokens of those that hold."""
        tokens = {lease.token for lease in late}
        held: set[str] = set()

        def renew(_attempt: int) -> None:
            renewals = [Renewal(lease.token, lease_seconds(lease) or UNKNOWN_LEASE_SECONDS) for lease in late]
            try:
                self._queue.renew(renewals)
                held.update(tokens)
            except LeaseLostError as error:
                held.update(tokens - set(error.tokens))
                self._log_ended([lease for lease in late if lease.token not in held], seconds=seconds)
            except InvalidLeaseTimeError:  # no whole lease is left until `max_lease`; leased again, there is
                self._give_back(late, charge="uncounted", failure=TOO_LATE)
            except UnknownQueueError as error:  # the queue was dropped or moved
                self._lifecycle.log.warning(events.LEASE_LOST, reason=str(error), count=len(late))

        self._persist(renew)
        return held

    def _log_ended(self, ended: Sequence[Lease], *, seconds: float) -> None:
        for lease in ended:
            self._lifecycle.log.warning(
                events.LEASE_LOST,
                task=lease.name,
                tag=lease.tag,
                lease_number=lease.lease_number,
                reason=f"it ended before the answer to its lease call was read, {shown_seconds(seconds)} after the "
                "call: the worker or its connection stood still; its handler was not called",
            )

    def _stopped(self) -> Failure:
        reason = self._lifecycle.stop_reason
        message = "its worker was asked to stop" + (f": {reason}" if reason else "")
        return Failure("given_back", message=failure_message(message), host=host_name())

    def _give_back(self, leases: Sequence[Lease], *, charge: Literal["counted", "uncounted"], failure: Failure) -> None:
        if leases:
            self._lifecycle.log.info(events.LEASES_RELEASED, count=len(leases), charge=charge)
            self._release(leases, delay_seconds=None, charge=charge, failure=failure)

    def _send_checkpoints(self, tasks: Sequence[Task]) -> None:
        """Send what handlers saved last: the next leases of their tasks, which are released at once, begin there."""
        news = [renewal for task in tasks if (renewal := task.news()) is not None]
        unsent = [renewal for renewal in news if renewal.checkpoint is not None]
        for start in range(0, len(unsent), MAX_TOKENS_PER_CALL):
            self._persist(partial(self._renew_with, unsent[start : start + MAX_TOKENS_PER_CALL]))

    def _renew_with(self, news: Sequence[Renewal], _attempt: int, *, seconds: float | None = None) -> None:
        try:
            self._queue.renew(news, seconds=seconds)
        except LeaseLostError as error:
            self._lifecycle.log.debug(events.LEASE_LOST, reason="ended before its checkpoint", count=len(error.tokens))
        except (InvalidLeaseTimeError, UnknownQueueError) as error:
            if len(news) > 1:  # the whole call was refused for one of them, which is near the queue's max_lease
                for one in news:
                    self._renew_with([one], _attempt)
            elif seconds is None and isinstance(error, InvalidLeaseTimeError):
                self._renew_with(news, _attempt, seconds=LAST_RENEWAL_SECONDS)
            else:
                self._lifecycle.log.warning(events.CHECKPOINT_LOST, reason=str(error))

    def _release(
        self,
        leases: Sequence[Lease],
        *,
        failure: Failure,
        delay_seconds: float | None,
        charge: Literal["counted", "uncounted"] = "counted",
        dead_reason: str = "",
    ) -> None:
        if not leases:
            return

        def release(_attempt: int) -> None:
            try:
                self._queue.release(
                    leases, delay_seconds=delay_seconds, charge=charge, dead_reason=dead_reason, error=failure
                )
            except LeaseLostError as error:
                self._lifecycle.log.debug(
                    events.LEASE_LOST, reason="ended before it was released", count=len(error.tokens)
                )
            except UnknownQueueError as error:  # the queue was dropped or moved: there is no task to release
                self._lifecycle.log.warning(events.LEASE_LOST, reason=str(error), count=len(leases))

        self._persist(release)

    def _persist(self, verb: Callable[[int], None]) -> None:
        """Call until the queue replies, or until the drain is over: then the leases expire."""
        attempt = 0
        while True:
            try:
                verb(attempt)
            except StoreUnavailableError as error:
                attempt += 1
                self._lifecycle.queue_unreached(error)
                if self._lifecycle.over.wait(retry_seconds(attempt, jitter=self._jitter())):
                    return
            except WorkerRetiredError:
                return
            else:
                self._lifecycle.queue_reached()
                return

    def _give_up(self, error: QueueError) -> None:
        self._lifecycle.log.error(events.WORKER_REFUSED, error=type(error).__name__, reason=str(error))
        self._lifecycle.end(LifecycleEnd(events.WORKER_REFUSED, str(error), EXIT_MISCONFIGURED))

    def _refuse(self, done: InvocationDone, error: QueueError) -> None:
        """Handle a refused deletion: release the task as failed, because its follow-up tasks can't be added.

        Without follow-up tasks its own queue is gone: it was dropped, or moved to another store, where the task runs
        again.
        """
        if isinstance(error, UnknownQueueError) and not done.deletion.then:
            lost = done.task
            self._lifecycle.log.warning(
                events.LEASE_LOST, task=lost.name, tag=lost.tag, lease_number=lost.lease_number, reason=str(error)
            )
            return
        self._lifecycle.log.error(
            events.HANDLER_FAILED,
            task=done.task.name,
            tag=done.task.tag,
            lease_number=done.task.lease_number,
            error=type(error).__name__,
            reason=str(error),
        )
        handler = done.handler
        failure = failure_of(error, payloads=[done.task.payload])
        message = failure_message(f"its follow-up tasks can't be added: {failure.message}")
        failure = replace(failure, message=message, place="" if handler is None else handler.place)
        self.fail(InvocationFailed((done.task,), backoff=None if handler is None else handler.retry, failure=failure))

    def _log_refused(self, tokens: Sequence[str], finished: Sequence[InvocationDone]) -> None:
        if not tokens:
            return
        by_token = {done.task.lease.token: done.task for done in finished}
        lost = [by_token[token] for token in tokens]
        removals = removals_of(self._queue, lost, worker=self._lifecycle.settings.worker)
        for task in lost:
            if self._was_deleted(task):  # by its handler, with rows of its own in one transaction
                continue
            self._lifecycle.log.warning(
                events.LEASE_LOST,
                task=task.name,
                tag=task.tag,
                lease_number=task.lease_number,
                reason=removals.get(task.lease.token, "ended before its deletion arrived"),
            )

    def _was_deleted(self, task: Task) -> bool:
        """Return whether the task was deleted under this very lease; False where no history tells."""
        try:
            leases = self._queue.history(names=task.name, limit=1).leases
        except QueueError:
            return False
        worker = self._lifecycle.settings.worker
        return any(
            (one.outcome, one.worker, one.lease_number) == ("deleted", worker, task.lease_number) for one in leases
        )
