"""Collect containers that dead supervisors of this host left on the engine.

The lock in a supervisor's folder shows whether it lives. A container is ended only after it has been without one for as
long as its label says; where the folder can't be read nothing is known, and nothing is done.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

import docker

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value
from orchestrator.runtimes.docker.container_state import HOST_LABEL, KnownContainer, known_of
from orchestrator.runtimes.docker.engine import WORK_SECONDS, DockerEngine, translated_errors
from orchestrator.runtimes.docker.identity import identity_in
from orchestrator.runtimes.thread_pool import EngineThreads
from orchestrator.runtimes.watchdog import is_held
from orchestrator.runtimes.watchdog_process import WatchdogProcess
from queue_core.log import get_logger

log = get_logger()

SEARCH_SECONDS: Final = 60.0
"""Interval between two searches for orphans."""
LOCKS: Final = ("supervisor.lock", "workers.lock")
"""Held by the supervisor of a folder; the second by another one that leads its containers."""
MARGIN_SECONDS: Final = 10.0
"""Extra time for a container's own watchdog and for the worker itself, which come first."""

OrphanAction = Literal["kill", "remove"]
Supervision = Literal["alive", "away", "gone", "unknown"]


@value
class OrphanVerdict:
    """A decision about one container, and its reason."""

    container: KnownContainer
    action: OrphanAction
    why: str


class OrphanJudge:
    """Remembers since when each supervisor has been seen away."""

    def __init__(self, supervision: Callable[[str], Supervision] | None = None) -> None:
        self._supervision = supervision or supervision_of
        self._away_since: dict[str, Monotonic] = {}

    def verdicts(
        self, containers: Iterable[KnownContainer], *, own_state: str, host: str, now: Monotonic
    ) -> list[OrphanVerdict]:
        """Return the containers to end or remove now, never any of `own_state` or of other hosts."""
        others = [one for one in containers if one.state != own_state and one.host == host]
        found = {state: self._supervision(state) for state in {one.state for one in others}}
        self._away_since = {
            state: self._away_since.get(state, now) for state, how in found.items() if how in {"away", "gone"}
        }
        verdicts = []
        for one in others:
            since = self._away_since.get(one.state)
            if since is None or now - since < one.orphan_seconds + MARGIN_SECONDS:
                continue
            folder = one.state.partition(":")[2]
            if found[one.state] == "gone":
                verdicts.append(OrphanVerdict(one, "remove", f"its supervisor's folder {folder} is gone"))
            elif one.phase in {"running", "paused"}:
                verdicts.append(OrphanVerdict(one, "kill", f"its supervisor in {folder} has been gone for too long"))
        return verdicts


def supervision_of(state: str) -> Supervision:
    """Return the state of a state directory's supervisor: `gone` if its folder is gone, or is now another one's."""
    identity, _, path = state.partition(":")
    folder = Path(path)
    try:
        known = identity_in(folder)
    except PermissionError:
        return "unknown"
    except OSError:
        return "gone"
    if known != identity:
        return "gone"
    for name in LOCKS:
        try:
            lock = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError:
            return "unknown"
        try:
            if is_held(lock):
                return "alive"
        finally:
            os.close(lock)
    return "away"


class OrphanCollector:
    """Collects orphans on one engine. Belongs to the supervisor's thread, and never waits for the engine."""

    def __init__(
        self,
        engine: DockerEngine,
        threads: EngineThreads,
        state_dir: Path,
        *,
        state: str,
        host: str,
        lock: Path | None,
        is_ours: Callable[[str], bool],
    ) -> None:
        """`is_ours` tells of a worker's name whether we lead it, whoever started it."""
        self._is_ours = is_ours
        self._engine = engine
        self._threads = threads
        self._state = state
        self._host = host
        self._lock = lock
        self._judge = OrphanJudge()
        self._search_at = Monotonic(float("-inf"))
        self._watchdog_lock = state_dir / "containers.lock"
        self._watchdog = WatchdogProcess("orchestrator.runtimes.docker.watchdog", self._watchdog_lock)

    def keep_watchdog(self) -> None:
        """Start the watchdog unless one runs; it reaches only an engine on a socket.

        Without a lock nobody could tell whether we live, so there is no watchdog.
        """
        if self._lock is None or self._engine.socket_path is None:
            return
        try:
            self._watchdog.keep(self._engine.socket_path, self._state, str(self._watchdog_lock), str(self._lock))
        except OSError as error:
            log.warning(events.WATCHDOG_MISSING, error=error.strerror)

    def collect(self, *, now: Monotonic) -> None:
        """Look for orphans, at most once a minute."""
        if now >= self._search_at:
            self._search_at = Monotonic(now + SEARCH_SECONDS)
            self._threads.do("", lambda: self._collect_all(now))

    def leave(self) -> None:
        """Leave the watchdog running without us, as long as it has containers to watch."""
        self._watchdog.leave()

    def _collect_all(self, now: Monotonic) -> None:
        with translated_errors(self._engine.url):
            listed = self._engine.api().containers(all=True, filters={"label": f"{HOST_LABEL}={self._host}"})
        known = [one for entry in listed if (one := known_of(entry)) is not None and not self._is_ours(one.worker)]
        for verdict in self._judge.verdicts(known, own_state=self._state, host=self._host, now=now):
            self._execute(verdict)

    def _execute(self, verdict: OrphanVerdict) -> None:
        container = verdict.container
        log.warning(
            events.CONTAINER_DISCARDED, worker=container.worker, container=container.container[:12], why=verdict.why
        )
        api = self._engine.api(seconds=WORK_SECONDS)
        try:
            with translated_errors(self._engine.url):
                if verdict.action == "remove":
                    api.remove_container(container.container, v=True, force=True)
                else:
                    api.kill(container.container, "SIGKILL")
        except docker.errors.APIError:
            return  # it is gone already
