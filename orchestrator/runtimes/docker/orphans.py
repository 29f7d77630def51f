"""Containers of other supervisors of this host that are gone for good: found on the engine, judged, ended.

Whether a supervisor lives is told by the lock in its folder. Only what has been without one for as long as its own
label says is ended; of a folder that cannot be looked into nothing is known, and nothing done.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

import docker
import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.runtimes.docker.container_state import HOST_LABEL, KnownContainer, known_of
from orchestrator.runtimes.docker.engine import WORK_SECONDS, DockerEngine, answering
from orchestrator.runtimes.docker.identity import identity_in
from orchestrator.runtimes.docker.thread_pool import EngineThreads
from orchestrator.runtimes.warden import is_held
from orchestrator.runtimes.warden_process import WatchdogProcess
from orchestrator.values import value

LOOK_SECONDS: Final = 60.0
MARGIN_SECONDS: Final = 10.0
"""A container's own warden, and the worker itself, come first."""

Verdict = Literal["kill", "remove"]
Supervision = Literal["alive", "away", "gone", "unknown"]


@value
class OrphanVerdict:
    """What is done to one container, and why."""

    container: KnownContainer
    verdict: Verdict
    why: str


class OrphanJudge:
    """Remembers since when each supervisor has been away, as far as looks of its own have seen."""

    def __init__(self, look: Callable[[str], Supervision] | None = None) -> None:
        self._look = look or supervision_of
        self._away_since: dict[str, Monotonic] = {}

    def judged(
        self, containers: Iterable[KnownContainer], *, own_state: str, host: str, now: Monotonic
    ) -> list[OrphanVerdict]:
        """Those to be ended or removed now. A container of this state, or of another host, is none of our business."""
        others = [one for one in containers if one.state != own_state and one.host == host]
        found = {state: self._look(state) for state in {one.state for one in others}}
        self._away_since = {
            state: self._away_since.get(state, now) for state, how in found.items() if how in {"away", "gone"}
        }
        sentences = []
        for one in others:
            since = self._away_since.get(one.state)
            if since is None or now - since < one.orphan_seconds + MARGIN_SECONDS:
                continue
            folder = one.state.partition(":")[2]
            if found[one.state] == "gone":
                sentences.append(OrphanVerdict(one, "remove", f"its supervisor's folder {folder} is gone"))
            elif one.phase in {"running", "paused"}:
                sentences.append(OrphanVerdict(one, "kill", f"its supervisor in {folder} has been gone for too long"))
        return sentences


def supervision_of(state: str) -> Supervision:
    """How the supervisor of a state directory is: `gone` when its folder is no more, or is another one's by now."""
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
    try:
        lock = os.open(folder / "supervisor.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return "away"
    except OSError:
        return "unknown"
    try:
        return "alive" if is_held(lock) else "away"
    finally:
        os.close(lock)


log = structlog.get_logger()


class OrphanCollector:
    """Of one supervisor on one engine. Belongs to the supervisor's thread; no answer of the engine is waited for."""

    def __init__(
        self, engine: DockerEngine, hands: EngineThreads, state_dir: Path, *, state: str, host: str, lock: Path | None
    ) -> None:
        self._engine = engine
        self._hands = hands
        self._state = state
        self._host = host
        self._lock = lock
        self._judge = OrphanJudge()
        self._judge_at = Monotonic(float("-inf"))
        self._duty = state_dir / "containers.lock"
        self._warden = WatchdogProcess("orchestrator.runtimes.docker.warden", self._duty)

    def keep_warden(self) -> None:
        """Start the warden unless it is there; only for an engine on a socket, as it reaches no other.

        Without a lock nobody can tell whether we live, and there is none.
        """
        if self._lock is None or self._engine.socket_path is None:
            return
        try:
            self._warden.keep(self._engine.socket_path, self._state, str(self._duty), str(self._lock))
        except OSError as error:
            log.warning(events.WATCHDOG_MISSING, error=error.strerror)

    def look(self, *, now: Monotonic) -> None:
        """Judge, once a minute, what supervisors of this host that are gone have left."""
        if now >= self._judge_at:
            self._judge_at = Monotonic(now + LOOK_SECONDS)
            self._hands.do("", lambda: self._judge_all(now))

    def leave(self) -> None:
        """Let the warden go on without us, as long as there is a container to look after."""
        self._warden.leave()

    def _judge_all(self, now: Monotonic) -> None:
        with answering(self._engine.url):
            listed = self._engine.api().containers(all=True, filters={"label": f"{HOST_LABEL}={self._host}"})
        known = [one for entry in listed if (one := known_of(entry)) is not None]
        for sentence in self._judge.judged(known, own_state=self._state, host=self._host, now=now):
            self._execute(sentence)

    def _execute(self, sentence: OrphanVerdict) -> None:
        container = sentence.container
        log.warning(
            events.CONTAINER_DISCARDED, worker=container.worker, container=container.container[:12], why=sentence.why
        )
        api = self._engine.api(seconds=WORK_SECONDS)
        try:
            with answering(self._engine.url):
                if sentence.verdict == "remove":
                    api.remove_container(container.container, v=True, force=True)
                else:
                    api.kill(container.container, "SIGKILL")
        except docker.errors.APIError:
            return  # it is another way gone
