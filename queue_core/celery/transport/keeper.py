"""Keeps the leases of this process alive, and ends them: one thread for all connections to one broker.

A lease outlives its connection: while a task runs, its lease is renewed whatever became of the channel that delivered
it, and its late acknowledgement ends it by its token. So a task runs once across an outage of the server.
"""

import atexit
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from queue_core.celery.transport import events
from queue_core.client.queue import Queues
from queue_core.clock import Clock, SystemClock, seconds_between
from queue_core.errors import LeaseLostError, QueueError, StoreUnavailableError
from queue_core.limits import MAX_TOKENS_PER_CALL
from queue_core.log import get_logger
from queue_core.process import forking
from queue_core.task import Lease
from queue_core.verbs import Deletion

RENEWALS_PER_LEASE = 3.0
RETRY_SECONDS = 1.0
"""Longest pause between two rounds while a lease is held, and after a call that the broker did not answer."""
MISSES = 2
"""Rounds that a kept lease's task must be missing from the worker's running ones: it leaves them just before its
acknowledgement."""

_log = get_logger()


TaskState: TypeAlias = Literal["runs", "ended", "cancelled"]


class WatchedTask(Protocol):
    """A task that runs beyond its acknowledgement."""

    def state(self) -> TaskState:
        """Return whether it runs, has ended, or was given up."""


@dataclass(slots=True)
class HeldLease:
    """A lease of this process.

    Args:
        is_kept: its connection is gone, but its task runs.
        task: acknowledged already; the lease ends when it does.
    """

    queue: str
    token: str
    seconds: float
    renew_at: float
    is_kept: bool = False
    task: WatchedTask | None = None
    misses: int = 0


@dataclass(frozen=True, slots=True)
class GivenBack:
    """How to give a lease back: see `Queue.release`."""

    charge: Literal["counted", "uncounted"] = "counted"
    delay_seconds: float | None = None
    dead_reason: str = ""
    error: str = ""


CUT_SHORT = GivenBack(delay_seconds=0, error="its worker was stopped while the task ran")
ABANDONED = GivenBack(delay_seconds=0, error="its worker lost the broker, and gave the task up")

Ending: TypeAlias = GivenBack | None
"""How a lease ends: given back, or, for None, with its task deleted."""


class LeaseKeeper:
    """The leases of one process at one broker. Thread-safe."""

    def __init__(
        self,
        queues: Queues,
        *,
        running: Callable[[], frozenset[str]],
        end_lost: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        starts_thread: bool = True,
    ) -> None:
        """Args:
        running: returns the tokens whose tasks run in this process, or are about to be acknowledged.
        end_lost: ends the tasks of this process whose ends were lost.
        starts_thread: False: whoever uses it calls `do_round` (a test).
        """
        self._queues = queues
        self._running = running
        self._end_lost = end_lost
        self._clock = clock or SystemClock()
        self._starts_thread = starts_thread
        self._reset()
        forking.renew_after_forks(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._held: dict[str, HeldLease] = {}
        self._endings: dict[str, tuple[str, Ending]] = {}
        self._is_finished_at_exit = False
        self._wakes_at = math.inf
        """When the thread's next round is due: most leases come and go without one."""
        self._thread: threading.Thread | None = None

    def renew_after_fork(self) -> None:
        """Forget the parent's leases, in the child of a fork: they are the parent's to renew."""
        self._reset()

    def stop(self) -> None:
        """End the thread; leases that are held run out."""
        atexit.unregister(self.finish)
        self._thread = None
        self._changed.set()

    def hold(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        seconds = max(0.001, seconds_between(lease.leased_at, lease.expires_at))
        renew_at = self._clock.monotonic() + seconds / RENEWALS_PER_LEASE
        with self._lock:
            self._held[lease.token] = HeldLease(lease.queue, lease.token, seconds, renew_at)
            is_earlier = renew_at < self._wakes_at
            is_new = self._thread is None and self._starts_thread
            if is_new:
                self._thread = threading.Thread(target=self._keep, name="towline-leases", daemon=True)
        if is_new and self._thread is not None:
            self._thread.start()
        if is_earlier:
            self._changed.set()

    def end(self, token: str, ending: Ending) -> None:
        """End a lease at the next `flush`: delete its task, or give it back. An unknown token is logged."""
        with self._lock:
            held = self._held.pop(token, None)
            if held is not None:
                self._endings[token] = (held.queue, ending)
        if held is None:
            _log.info(events.LEASE_NOT_HELD, token=token)

    def keep(self, token: str) -> None:
        """Go on renewing the lease of a running task whose connection is gone."""
        with self._lock:
            held = self._held.get(token)
            if held is not None:
                held.is_kept = True
        self._changed.set()

    def end_with(self, token: str, task: WatchedTask) -> None:
        """Delete a lease's task when it has ended, and not before; it is given back if it is cancelled."""
        with self._lock:
            held = self._held.get(token)
            if held is not None:
                held.task = task
            is_first, self._is_finished_at_exit = not self._is_finished_at_exit, True
        if is_first:
            # A worker that stops waits for its tasks, and ends before the next round.
            atexit.register(self.finish)

    def finish(self) -> None:
        """End the leases of acknowledged tasks as this process ends: what runs yet is cut short."""
        self._end_watched(of_running=CUT_SHORT)
        with suppress(QueueError):
            self.flush()

    def is_held(self, token: str) -> bool:
        """Return whether this lease is renewed here."""
        with self._lock:
            return token in self._held

    @contextmanager
    def deletions(self, queue: str) -> Iterator[list[Deletion]]:
        """Lend the deletions that wait for a queue; they wait again when the block raises."""
        with self._lock:
            done = [token for token, (of, ending) in self._endings.items() if of == queue and ending is None]
            tokens = done[:MAX_TOKENS_PER_CALL]
            lent = {token: self._endings.pop(token) for token in tokens}
        try:
            yield [Deletion(token) for token in tokens]
        except StoreUnavailableError:
            self._wait_again(lent)
            raise

    def held(self) -> frozenset[str]:
        """Return the tokens of all leases that are renewed here."""
        with self._lock:
            return frozenset(self._held)

    def flush(self, *, spared: frozenset[str] = frozenset()) -> None:
        """End all leases that are to end now, but for those spared: the next call of their queue ends them.

        Raises `StoreUnavailableError`, after which it can be called again.
        """
        with self._lock:
            endings = {token: one for token, one in self._endings.items() if token not in spared}
            for token in endings:
                del self._endings[token]
        groups: dict[tuple[str, Ending], list[str]] = defaultdict(list)
        for token, (queue, ending) in endings.items():
            groups[queue, ending].append(token)
        for (queue, ending), tokens in groups.items():
            for start in range(0, len(tokens), MAX_TOKENS_PER_CALL):
                batch = tokens[start : start + MAX_TOKENS_PER_CALL]
                try:
                    self._end(queue, ending, batch)
                except StoreUnavailableError:
                    self._wait_again(endings)
                    raise
                for token in batch:
                    del endings[token]

    def flush_soon(self) -> None:
        """Have the thread end all leases that are to end."""
        self._changed.set()

    def has_leases(self) -> bool:
        """Return whether leases of this process are held, or are still to end."""
        return bool(self._held or self._endings)

    def has_endings(self) -> bool:
        """Return whether leases are to end."""
        return bool(self._endings)

    def report_lost(self, tokens: Iterable[str]) -> None:
        """Log leases that were not current any more when their tasks were done."""
        for token in tokens:
            _log.warning(events.LEASE_LOST, token=token, note="its task may have run twice")

    def _end(self, queue: str, ending: Ending, tokens: Sequence[str]) -> None:
        try:
            if ending is None:
                self._queues.queue(queue).delete(tokens)
            else:
                self._queues.queue(queue).release(
                    tokens,
                    delay_seconds=ending.delay_seconds,
                    charge=ending.charge,
                    dead_reason=ending.dead_reason,
                    error=ending.error or None,
                )
        except LeaseLostError as error:
            self.report_lost(error.tokens)
        except StoreUnavailableError:
            raise
        except QueueError as error:  # the queue is gone: so are its leases
            _log.warning(events.LEASES_NOT_ENDED, queue=queue, leases=len(tokens), reason=str(error))

    def _wait_again(self, endings: dict[str, tuple[str, Ending]]) -> None:
        with self._lock:
            self._endings = {**endings, **self._endings}
        self._changed.set()

    def _keep(self) -> None:
        thread = threading.current_thread()
        while self._thread is thread:
            seconds = self.do_round()
            self._changed.wait(seconds)
            self._changed.clear()

    def do_round(self) -> float | None:
        """Renew what is due and give back what nobody runs; return the seconds until the next round, None: never."""
        try:
            self._end_lost()
            self._give_back_abandoned()
            self._end_watched()
            if self._endings:
                self.flush()
            self._renew_due()
        except StoreUnavailableError as error:
            _log.warning(events.BROKER_UNAVAILABLE, reason=str(error))
            return RETRY_SECONDS
        except Exception:  # noqa: BLE001 - the top of a thread
            # A round that fails for another reason must not end the thread: all leases would run out.
            _log.exception(events.ROUND_FAILED)
            return RETRY_SECONDS
        return self._pause_seconds()

    def _pause_seconds(self) -> float | None:
        now = self._clock.monotonic()
        with self._lock:
            if not self._held:
                self._wakes_at = math.inf
                return None
            due = min(held.renew_at for held in self._held.values()) - now
            # A worker whose loop has ended, but whose tasks have not, acknowledges without flushing.
            pause = max(0.0, min(due, RETRY_SECONDS))
            self._wakes_at = now + pause
            return pause

    def _give_back_abandoned(self) -> None:
        """Give back kept leases whose tasks ended without an acknowledgement, as one does that Celery cancels."""
        with self._lock:
            kept = [held for held in self._held.values() if held.is_kept]
        if not kept:
            return
        running = self._running()
        for held in kept:
            held.misses = 0 if held.token in running else held.misses + 1
            if held.misses >= MISSES:
                self.end(held.token, ABANDONED)

    def _end_watched(self, *, of_running: GivenBack | None = None) -> None:
        """End the leases of tasks that were acknowledged before they ended; `of_running`: those that run, too."""
        with self._lock:
            watched = [(held.token, held.task) for held in self._held.values() if held.task is not None]
        for token, task in watched:
            state = task.state()
            if state == "ended":
                self.end(token, None)
            elif state == "cancelled":
                self.end(token, CUT_SHORT)
            elif of_running is not None:
                self.end(token, of_running)

    def _renew_due(self) -> None:
        now = self._clock.monotonic()
        due: dict[str, list[HeldLease]] = defaultdict(list)
        with self._lock:
            for held in self._held.values():
                if held.renew_at <= now:
                    due[held.queue].append(held)
        for queue, leases in due.items():
            for start in range(0, len(leases), MAX_TOKENS_PER_CALL):
                self._renew(queue, leases[start : start + MAX_TOKENS_PER_CALL])

    def _renew(self, queue: str, leases: Sequence[HeldLease]) -> None:
        lost: Sequence[str] = ()
        longest = max(held.seconds for held in leases)
        try:
            self._queues.queue(queue).renew([held.token for held in leases], seconds=longest)
        except LeaseLostError as error:
            lost = error.tokens
        except StoreUnavailableError:
            raise
        except QueueError as error:
            _log.warning(events.LEASES_NOT_RENEWED, queue=queue, leases=len(leases), reason=str(error))
            lost = [held.token for held in leases]
        renewed_at = self._clock.monotonic()
        with self._lock:
            for held in leases:
                held.renew_at = renewed_at + held.seconds / RENEWALS_PER_LEASE
            gone = [token for token in lost if self._held.pop(token, None) is not None]
        for token in gone:
            _log.warning(events.LEASE_LOST, token=token, note="its task may run twice")
