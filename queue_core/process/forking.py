"""Renew in the child of a fork all that a process can't share with its parent. The one place that hooks into forks.

A child inherits copies: sockets and sessions that the parent goes on using, locks whose holders are threads that it
has not. Each client and each store registers here, weakly; in the child it lets go of what is the parent's without a
word to anybody, and connects anew when it is next used. Hooks open nothing: many a child only wants to `exec`.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Lock, RLock
from typing import Protocol, runtime_checkable
from weakref import ref

from queue_core.clock import SystemClock

PAUSE_SECONDS = 5.0
"""How long a fork waits for calls that hold a library's locks. Those last milliseconds, but for a check of a store."""
FEWEST_TO_PRUNE = 64


class Renewable(Protocol):
    """Holds sockets, sessions, threads or locks."""

    def renew_after_fork(self) -> None:
        """In the child, where no other thread is: replace locks, close descriptors without a word to the other end."""


@runtime_checkable
class Pausable(Renewable, Protocol):
    """Has a library beneath whose locks must be free at the fork, as nobody can free them in the child."""

    def pause_for_fork(self, seconds: float) -> None:
        """Return when no thread is in the library and none comes in; give up after so many seconds."""

    def resume_after_fork(self) -> None:
        """In the parent, or after a fork that failed: let them in again."""


class _Forks:
    """All that is registered, and the fork under way."""

    def __init__(self) -> None:
        self._registering = Lock()
        self._known: list[ref[Renewable]] = []
        self._prune_at = FEWEST_TO_PRUNE
        self._forking = RLock()
        self._depth = 0
        self._paused: list[Pausable] = []
        self._monotonic = SystemClock().monotonic

    def register(self, holder: Renewable) -> None:
        with self._registering:
            if len(self._known) >= self._prune_at:
                self._known = [each for each in self._known if each() is not None]
                self._prune_at = max(FEWEST_TO_PRUNE, 2 * len(self._known))
            self._known.append(ref(holder))

    def before(self) -> None:
        """One fork at a time; one from a signal handler while this waits finds all paused that is."""
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
        with ExitStack() as each:  # one that fails keeps none from being renewed
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
    """Have `holder` renewed in every child that is forked from now on, while somebody else keeps it."""
    _FORKS.register(holder)
