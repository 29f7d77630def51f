"""Timeouts: end the calls of handlers that run beyond their timeout, and the worker where a call can't be ended.

A thread of its own, so that a renewal without a reply delays no timeout.
"""

from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

from queue_core.worker import events
from queue_core.worker.code_lines import place_of_lines
from queue_core.worker.context import Task, Timeout
from queue_core.worker.invocation import Invocation
from queue_core.worker.lease_client import LeaseClient
from queue_core.worker.lifecycle import EXIT_TIMED_OUT, LifecycleEnd, WorkerLifecycle
from queue_core.worker.renewals import Renewals

CLEAN_UP_SECONDS: Final = 5.0
"""Seconds that a cancelled async handler may take to clean up; after that it is left, as a plain one is at once."""
_NEVER: Final = float("inf")


class Timeouts:
    """The deadlines of running calls. An async handler is cancelled; one that does not end is left to itself.

    The tasks of a call that is left are released, the worker leases no more, and ends once its other calls have.
    """

    def __init__(
        self,
        lifecycle: WorkerLifecycle,
        renewals: Renewals,
        open_client: Callable[[], LeaseClient],
        *,
        clean_up_seconds: float = CLEAN_UP_SECONDS,
    ) -> None:
        """`open_client`: opens a client to release tasks with."""
        self._lifecycle = lifecycle
        self._renewals = renewals
        self._open_client = open_client
        self._clean_up_seconds = clean_up_seconds
        self._changed = Condition()
        self._due_at: dict[Invocation, float] = {}
        self._cancelled: set[Invocation] = set()
        self._left: set[Invocation] = set()
        self._unreleased = 0
        self._next_check_at = _NEVER
        self._closed = False
        self._thread = Thread(target=self._run, name="towline-timeouts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, if it was started."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def track(self, invocation: Invocation) -> None:
        """Bound the time of a call that begins; nothing for a handler without a timeout."""
        seconds = invocation.handler.timeout_seconds
        if seconds is None:
            return
        due_at = invocation.started_at + seconds
        with self._changed:
            self._due_at[invocation] = due_at
            if due_at < self._next_check_at:
                self._next_check_at = due_at
                self._changed.notify()

    def untrack(self, invocation: Invocation) -> bool:
        """Return whether a call that has ended was left before: its tasks are released, its outcome is too late."""
        with self._changed:
            self._due_at.pop(invocation, None)
            self._cancelled.discard(invocation)
            if invocation not in self._left:
                return False
            self._left.discard(invocation)
            return True

    def left(self) -> int:
        """Return the number of calls that were left and still run."""
        return len(self._left)

    def unreleased(self) -> int:
        """Return the number of calls that were left, but whose tasks are not released yet."""
        return self._unreleased

    def end_due(self) -> None:
        """End the calls that are due by now, as the thread does."""
        with self._changed:
            due = self._due_by(self._lifecycle.clock.monotonic())
        for invocation in due:
            self._end(invocation)

    def _run(self) -> None:
        try:
            while (due := self._wait_for_due()) is not None:
                for invocation in due:
                    self._end(invocation)
        except BaseException as error:  # noqa: BLE001  the top of a thread: without it no handler would be bounded
            self._lifecycle.fail(error, thread="timeouts")

    def _wait_for_due(self) -> list[Invocation] | None:
        """Sleep until calls are due and return them; None when closed."""
        with self._changed:
            now = self._lifecycle.clock.monotonic()
            while not self._closed:
                if due := self._due_by(now):
                    return due
                self._next_check_at = min(self._due_at.values(), default=_NEVER)
                left = self._next_check_at - now
                is_notified = self._changed.wait(timeout=None if left == _NEVER else max(0.0, left))
                now = self._lifecycle.clock.monotonic()
                if not is_notified:  # a test's clock may stand still: its handlers take real time
                    now = max(now, self._next_check_at)
            return None

    def _due_by(self, now: float) -> list[Invocation]:
        return [invocation for invocation, due_at in self._due_at.items() if due_at <= now]

    def _end(self, invocation: Invocation) -> None:
        timeout = Timeout(invocation.handler.timeout_seconds or 0.0)
        tasks: tuple[Task, ...] = ()
        with self._changed:
            if invocation not in self._due_at:  # it has ended meanwhile
                return
            is_first = invocation.handler.is_async and invocation not in self._cancelled
            if is_first:
                self._cancelled.add(invocation)
                self._due_at[invocation] = self._lifecycle.clock.monotonic() + self._clean_up_seconds
            else:
                tasks = self._leave(invocation, timeout)
        if is_first:
            invocation.time_out(timeout)
        else:
            self._give_up(invocation, timeout, tasks)

    def _leave(self, invocation: Invocation, timeout: Timeout) -> tuple[Task, ...]:
        """Mark the call's tasks as lost and return them: none if they were lost before, at `max_lease` say."""
        del self._due_at[invocation]
        self._cancelled.discard(invocation)
        tasks = invocation.remaining()
        invocation.timeout, invocation.stood_at = timeout, invocation.lines()
        for task in tasks:
            task.mark_lost(str(timeout))
        self._left.add(invocation)
        self._unreleased += 1
        return tasks

    def _give_up(self, invocation: Invocation, timeout: Timeout, tasks: tuple[Task, ...]) -> None:
        lifecycle = self._lifecycle
        self._renewals.untrack(invocation)
        now = lifecycle.clock.monotonic()
        failed = invocation.timed_out(timeout, tasks, now=now, log=lifecycle.log)
        where = place_of_lines(invocation.stood_at)
        lifecycle.end(
            LifecycleEnd(
                events.HANDLER_TIMED_OUT,
                f"{invocation.handler.display_name} ran for more than its timeout of {timeout.seconds:g} s and can't "
                f"be ended{f', it is at {where}' if where else ''}: another worker takes the place of this one",
                EXIT_TIMED_OUT,
                urgency="finish",
            )
        )
        try:
            if tasks:
                client = self._open_client()
                client.fail(failed)
                client.close()
        finally:
            with self._changed:
                self._unreleased -= 1
            lifecycle.wake()
