"""The supervisors of a store: each registers itself with its address for a while, and anybody may list them.

So one URL of any of them leads to all: which there are, on which hosts, where they listen, and which one leads.
"""

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from pydantic import Field

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.http_api.answers import FleetAnswer
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.leader import holder_of
from orchestrator.supervisor.view import Heartbeat
from queue_core.clock import MICROSECONDS
from queue_core.errors import QueueError
from queue_core.log import get_logger
from queue_core.registrations.registration import Registration
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads
from queue_core.server.options import ServeOptions
from queue_core.server.problems import problem_of

KIND: Final = "supervisors"
LASTING_SECONDS: Final = 60.0
"""How long a supervisor that was killed is still listed, at most."""
RENEW_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 2.0
"""Pause between two looks whether the phase has changed, which is registered at once."""
LEADING: Final = "leading"
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
        self._registered = ("", Monotonic(float("-inf")))
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
        """Register where that is due: at an interval, and when the phase has changed."""
        phase, now = self._heartbeat.view.phase, self._clock.monotonic()
        before, at = self._registered
        if phase == before and 0 <= now - at < RENEW_SECONDS:
            return
        try:
            self._name = self._name or holder_of(self._files.path)
            with self._queues.opened() as queues:
                queues.register(KIND, self._name, self._facts(phase), seconds=LASTING_SECONDS)
        except (QueueError, OSError) as error:
            if not self._is_failing:
                log.warning(events.SUPERVISOR_NOT_REGISTERED, error=str(error))
            self._is_failing = True
            self._registered = (phase, now)  # the next try is at the interval
            return
        self._is_failing = False
        self._registered = (phase, now)

    def _facts(self, phase: str) -> dict[str, str]:
        url, reach = self._address
        return {
            "host": socket.gethostname(),
            "pid": str(os.getpid()),
            "url": url,
            "reach": reach,
            "version": self._version,
            "phase": phase,
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
    leader = max((one for one in found if one.facts.get("phase") == LEADING), key=lambda one: one.until, default=None)
    rows = [listed(one, is_this=one.name == this) for one in found]
    return [
        row if one is leader else row.model_copy(update={"leads": False}) for one, row in zip(found, rows, strict=True)
    ]


def listed(one: Registration, *, is_this: bool) -> ListedSupervisor:
    """Return a registration as it is shown; what another program wrote there is read leniently."""
    facts: Mapping[str, str] = one.facts
    pid = facts.get("pid", "")
    return ListedSupervisor(
        name=one.name,
        host=facts.get("host", ""),
        pid=int(pid) if pid.isdecimal() and len(pid) < 10 else 0,
        url=facts.get("url", ""),
        reach=facts.get("reach", "host"),
        version=facts.get("version", ""),
        phase=facts.get("phase", ""),
        leads=facts.get("phase") == LEADING,
        heard_at=one.until / MICROSECONDS - LASTING_SECONDS,
        is_this=is_this,
    )
