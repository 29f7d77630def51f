"""Renews, in the child of a fork, what can't be shared with the parent: sockets, sessions, threads and locks.

A child inherits sockets that the parent still uses, and locks held by threads that it doesn't have. Clients and stores
register here, by weak reference; in the child they close their copies silently and reconnect at the next use. Fork
hooks open nothing, as many children only `exec`.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Lock, RLock
from typing import Protocol, runtime_checkable
from weakref import ref

from queue_core.clock import SystemClock

PAUSE_SECONDS = 5.0
"""How long a fork waits for calls that hold a library's locks: milliseconds, except for a store's check."""
MIN_PRUNE_SIZE = 64
"""Registrations below this number are not pruned of dead references."""


class Renewable(Protocol):
    """An object with sockets, sessions, threads or locks."""

    def renew_after_fork(self) -> None:
        """Replace locks and close descriptors silently, in the child, where no other thread runs."""


@runtime_checkable
class Pausable(Renewable, Protocol):
    """An object that uses a library whose locks must be free at the fork, as the child can't release them."""

    def pause_for_fork(self, seconds: float) -> None:
        """Keep threads out of the library, and wait up to `seconds` until none is in it."""

    def resume_after_fork(self) -> None:
        """Let threads into the library again, in the parent or after a failed fork."""


class _Forks:
    """The registered objects and the state of a fork."""

    def __init__(self) -> None:
        self._registering = Lock()
        self._known: list[ref[Renewable]] = []
        self._prune_at = MIN_PRUNE_SIZE
        self._forking = RLock()
        self._depth = 0
        self._paused: list[Pausable] = []
        self._monotonic = SystemClock().monotonic

    def register(self, holder: Renewable) -> None:
        with self._registering:
            if len(self._known) >= self._prune_at:
                self._known = [each for each in self._known if each() is not None]
                self._prune_at = max(MIN_PRUNE_SIZE, 2 * len(self._known))
            self._known.append(ref(holder))

    def before(self) -> None:
        """Pause all pausable objects. A nested fork, from a signal handler, relies on the outer one's pauses."""
        self._forking.acquire()
        self._depth += 1
        if self._depth > 1:
            return
        ends_at = self._monotonic() + PAUSE_SECONDS
        for holder in self._living():
            if isinstance(holder, Pausable):
                self._paused.append(holder)
                holder.pause_for_fork(max(0.0, ends_at - self._monotonic()))

    def after_in_parent(self) -> None:
        self._depth -= 1
        try:
            if not self._depth:
                paused, self._paused = self._paused, []
                with ExitStack() as each:
                    for holder in paused:
                        each.callback(holder.resume_after_fork)
        finally:
            self._forking.release()

    def after_in_child(self) -> None:
        self._registering = Lock()
        self._forking = RLock()
        self._depth = 0
        self._paused = []
        with ExitStack() as each:  # a failure must not keep the others from being renewed
            for holder in self._living():
                each.callback(holder.renew_after_fork)

    def _living(self) -> Iterator[Renewable]:
        for each in tuple(self._known):
            holder = each()
            if holder is not None:
                yield holder


_FORKS = _Forks()
os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.after_in_parent, after_in_child=_FORKS.after_in_child)


def renew_after_forks(holder: Renewable) -> None:
    """Renew `holder` in every child forked from now on, as long as it is referenced elsewhere."""
    _FORKS.register(holder)
