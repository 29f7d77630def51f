"""The supervisors of a store: each registers itself with its address for a while, and anybody may list them.

So one URL of any of them leads to all: which there are, on which hosts, where they listen, and which one leads.
"""

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pydantic import Field

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.http_api.answers import FleetAnswer
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.leader import holder_of
from orchestrator.supervisor.view import Heartbeat
from queue_core.config.store_urls import masked
from queue_core.errors import QueueError
from queue_core.log import get_logger
from queue_core.process.process_start import process_start
from queue_core.server.base.options import ServeOptions
from queue_core.server.base.problems import problem_of
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads
from queue_core.unit.supervisors import (
    KIND,
    LASTING_SECONDS,
    leader_among,
    pools_fact,
    supervisor_in,
    supervisor_json,
)
from queue_core.verbs.registration import Registration

RENEW_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 2.0
"""Pause between two looks whether its phase or pools have changed, which is registered at once."""
_NOTHING: Final[tuple[str, tuple[str, ...]]] = ("", ())
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound

log = get_logger()


class ListedSupervisor(FleetAnswer):
    """A supervisor as it registered itself."""

    name: str = Field(description="Its host, and the id of its state folder.")
    host: str
    pid: int
    url: str = Field(description="Where its API listens; empty: it has no listener (`supervisor.listen`).")
    reach: str = Field(description="`network`, or `host`: only programs on its own host reach the URL.")
    version: str
    phase: str
    leads: bool = Field(description="Whether it is the one that starts workers.")
    heard_at: float = Field(description="When it registered last, in seconds since the epoch: every 20 s if it lives.")
    is_this: bool = Field(description="Whether it is the one that answers.")
    pools: list[str] = Field([], description="The pools of its settings; of many, the first ones.")
    since: float = Field(0.0, description="When it started, in seconds since the epoch; 0: unknown.")
    process_start: str = Field(
        "", description="When its process started, as its kernel counts it: with `pid`, which process it is."
    )


class ListedSupervisors(FleetAnswer):
    """All supervisors of a store, by name."""

    supervisors: list[ListedSupervisor]


class SupervisorRegistry:
    """Registers a supervisor at its store from a thread of its own, and lists all. Thread-safe."""

    def __init__(
        self, queues: OwnQueues, heartbeat: Heartbeat, clock: MonotonicClock, files: StateDir, *, version: str
    ) -> None:
        self._queues = queues
        self._heartbeat = heartbeat
        self._clock = clock
        self._files = files
        self._version = version
        self._name = ""
        self._address: tuple[str, str] = ("", "host")
        self._started_at = clock.wall_seconds()
        self._registered = _NOTHING, Monotonic(float("-inf"))
        self._is_failing = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, url: str, options: ServeOptions | None) -> None:
        """Begin to register: with the URL of the API and the options of its listener, as far as there is one."""
        self._address = address_of(url, options)
        self._thread = threading.Thread(target=self._work, name="towline-registry", daemon=True)
        self._thread.start()

    def leave(self) -> bool:
        """Renew it no more, and let it stand: the next program of this folder has the same name."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        return thread is not None

    def stop(self) -> None:
        """End the registration, as far as the store answers."""
        if self.leave():
            with suppress(QueueError, OSError), self._queues.opened() as queues:
                queues.register(KIND, self._name, {}, seconds=0.0)

    def listed(self) -> ListedSupervisors:
        """Return all supervisors of the store. Raises `Problem` when it does not answer."""
        try:
            with self._queues.opened() as queues:
                found = queues.registrations(KIND)
        except QueueError as error:
            raise problem_of(error) from error
        return ListedSupervisors(supervisors=all_listed(found, this=self._name))

    def elsewhere(self) -> Sequence[ListedSupervisor]:
        """Return the other supervisors; none where the store does not answer: it is a hint in an error."""
        try:
            with self._queues.opened() as queues:
                found = queues.registrations(KIND)
        except (QueueError, OSError):
            return ()
        return [one for one in all_listed(found, this=self._name) if not one.is_this]

    def route(self) -> ExtensionRoute:
        """Return the route of the list."""
        return reads(
            "/v1/supervisors",
            "list_supervisors",
            "All supervisors of this store: where each listens, and which one leads.",
            "stats",
            lambda _call: self.listed(),
            ListedSupervisors,
            NoQuery,
        )

    def register(self) -> None:
        """Register where that is due: at an interval, and when the phase or the pools have changed."""
        view, now = self._heartbeat.view, self._clock.monotonic()
        state = view.phase, tuple(view.pools)
        before, at = self._registered
        if state == before and 0 <= now - at < RENEW_SECONDS:
            return
        try:
            self._name = self._name or holder_of(self._files.path)
            with self._queues.opened() as queues:
                queues.register(KIND, self._name, self._facts(*state), seconds=LASTING_SECONDS)
        except (QueueError, OSError) as error:
            if not self._is_failing:
                log.warning(events.SUPERVISOR_NOT_REGISTERED, error=str(error))
            self._is_failing = True
            self._registered = state, now  # the next try is at the interval
            return
        self._is_failing = False
        self._registered = state, now

    def _facts(self, phase: str, pools: Sequence[str]) -> dict[str, str]:
        url, reach = self._address
        return {
            "host": socket.gethostname(),
            "pid": str(os.getpid()),
            "process_start": process_start(os.getpid()),
            "url": masked(url),
            "reach": reach,
            "version": self._version,
            "phase": phase,
            "pools": pools_fact(pools),
            "since": f"{self._started_at:.3f}",
        }

    def _work(self) -> None:
        while not self._stopped.is_set():
            self.register()
            self._stopped.wait(LOOK_SECONDS)


def address_of(url: str, options: ServeOptions | None) -> tuple[str, str]:
    """Return the URL by which others call a listener, and how far it reaches: `network` or `host`."""
    if options is None or options.is_local:
        return url, "host"
    if options.host in _EVERYWHERE:
        return f"http://{socket.gethostname()}:{url.rpartition(':')[2]}", "network"
    return url, "network"


def all_listed(found: Sequence[Registration], *, this: str) -> list[ListedSupervisor]:
    """Return registrations as they are shown; of several that say that they lead, the newest does.

    A leader that was killed still says so until its registration ends, when another one leads already.
    """
    leader = leader_among(found)
    return [
        ListedSupervisor.model_validate(
            supervisor_json(one, leads=leader is not None and one.name == leader.name, is_this=one.name == this)
        )
        for one in map(supervisor_in, found)
    ]
