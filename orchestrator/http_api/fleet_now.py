"""The fleet with the figures of now, for all readers of an API together: asked of the queues once a second at most."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.json_fields import Json, mapping_of, mappings_of
from orchestrator.sources.live_fleet import observed_now, outside_pools, refreshed
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.queue import Queues
from queue_core.errors import QueueError, StoreUnavailableError

FRESH_SECONDS: Final = 1.0
"""For so long the same figures answer everybody."""
DEAR: Final = 20.0
"""Figures that took long to ask for are used for so many times their duration: a large fleet is asked less often."""
LONGEST_SECONDS: Final = 10.0
"""The same, at most."""
CALL_SECONDS: Final = 3.0
"""Timeout of one call to the queues: a person waits for the figures."""


class OwnQueues:
    """The queues of the supervisor that serves the API; known once its server listens. Thread-safe."""

    def __init__(self) -> None:
        self._open: Callable[[], Queues] | None = None
        self._queues: Queues | None = None
        self._lock = Lock()

    def locate(self, url: str, *, token: str | None) -> None:
        """Say where the queues are."""
        retries = Retries(tries=1, timeouts=1)
        self._open = lambda: open_queues(url, token=token, retries=retries, timeout_seconds=CALL_SECONDS)

    @contextmanager
    def opened(self) -> Iterator[Queues]:
        """Use the queues, one thread at a time. Raises `QueueError`."""
        with self._lock:
            if self._open is None:
                raise StoreUnavailableError("the supervisor's queues are not known yet")
            if self._queues is None:
                self._queues = self._open()
            yield self._queues

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._open = None
            if self._queues is not None:
                with suppress(QueueError):
                    self._queues.close()
            self._queues = None


@dataclass(frozen=True, slots=True)
class FreshFleet:
    """A supervisor's snapshot with the figures of now; `trouble`: why they are the published ones instead.

    `age_seconds` is the age of the snapshot; `shown_at` is now, in seconds since the epoch.
    """

    snapshot: Json
    is_alive: bool
    age_seconds: float
    shown_at: float
    trouble: str = ""


class FleetNow:
    """Reads the fleet of a state directory, once for all that ask within a second."""

    def __init__(self, files: StateDir, clock: MonotonicClock, queues: OwnQueues | None = None) -> None:
        """`queues`: where the figures of now come from; without it they are the published ones."""
        self._files = files
        self._clock = clock
        self._queues = queues
        self._lock = Lock()
        self._read_at = Monotonic(float("-inf"))
        self._fresh_seconds = FRESH_SECONDS
        self._fleet: FreshFleet | None = None

    def read(self, pool: str | None = None) -> FreshFleet | None:
        """Return the fleet, or only what is of one pool, which costs little; None before one was published."""
        with self._lock:
            now = self._clock.monotonic()
            if self._fleet is not None and 0 <= now - self._read_at < self._fresh_seconds:
                return self._fleet
            if pool is not None:
                return self._read(pool)
            self._fleet, self._read_at = self._read(), now
            cost_seconds = self._clock.monotonic() - now
            self._fresh_seconds = min(max(FRESH_SECONDS, cost_seconds * DEAR), LONGEST_SECONDS)
            return self._fleet

    def read_now(self, pool: str | None) -> FreshFleet | None:
        """Return the same, asked for at this instant: for an order, which says what it ends.

        The next reader asks anew too: a worker that started after the figures in use is not to look gone by the order.
        """
        with self._lock:
            self._read_at = Monotonic(float("-inf"))
            return self._read(pool)

    def _read(self, pool: str | None = None) -> FreshFleet | None:
        published = self._files.shared_snapshot()
        if published is None:
            return None
        snapshot: Json = {**published} if pool is None else _only(published, pool)
        now, shown_at = self._clock.wall_seconds(), snapshot.get("shown_at")
        age_seconds = max(0.0, now - shown_at) if isinstance(shown_at, int | float) else 0.0
        is_alive, trouble = self._files.is_supervised(), ""
        if self._queues is not None:
            try:
                with self._queues.opened() as queues:
                    fresh = refreshed(snapshot, observed_now(queues, snapshot), now_seconds=now)
                    snapshot = fresh if pool is not None else fresh | outside_pools(queues, snapshot)
            except (QueueError, OSError) as error:
                trouble = str(error)
        return FreshFleet(snapshot, is_alive, round(age_seconds, 3), now, trouble)


def _only(snapshot: Mapping[str, object], pool: str) -> Json:
    """Return a snapshot of one pool and its workers."""
    pools = {name: found for name, found in mapping_of(snapshot.get("pools")).items() if name == pool}
    workers = [one for one in mappings_of(snapshot.get("workers")) if one.get("pool") == pool]
    return {**snapshot, "pools": pools, "workers": workers}
