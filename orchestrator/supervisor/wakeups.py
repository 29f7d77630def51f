"""Wake the supervisor when a task arrives for a pool without workers: zero workers must not mean a slow start."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from orchestrator import events
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.source import WorkSource

log = structlog.get_logger()

SLICE_SECONDS: Final = 1.0
"""Length of one wait at the source: a stop may have to wait for this long."""


class ArrivalWatch:
    """A thread that waits at the source for tasks of the idle pools it was given last."""

    def __init__(self, source: WorkSource, *, on_arrival: Callable[[str], None]) -> None:
        """`on_arrival` is called in the thread with a pool's name; that pool is then no longer waited for."""
        self._source = source
        self._on_arrival = on_arrival
        self._changed = threading.Condition()
        self._pools: tuple[PoolSpec, ...] = ()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_for(self, pools: Sequence[PoolSpec]) -> None:
        """Wait for these pools, which have neither a worker nor a ready task."""
        with self._changed:
            self._pools = tuple(pools)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; return when it has ended, or after two slices if the source blocks it."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * SLICE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pools or self._is_stopping)
                if self._is_stopping:
                    return
                pools = self._pools
            try:
                arrived = self._source.wait_for_arrival(pools, timeout_seconds=SLICE_SECONDS)
            except SourceUnavailableError:  # the turns log it
                self._pause()
                continue
            except Exception:
                log.exception(events.TURN_FAILED, thread="arrivals")
                self._pause()
                continue
            if arrived is not None:
                self._wake_pool(arrived)

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, timeout=SLICE_SECONDS)

    def _wake_pool(self, arrived: str) -> None:
        with self._changed:
            waited_for = any(pool.name == arrived for pool in self._pools)
            self._pools = tuple(pool for pool in self._pools if pool.name != arrived)
        if waited_for:
            self._on_arrival(arrived)
