"""Keeps others from being left alone: starts the warden of our containers, and judges those of supervisors gone."""

from pathlib import Path

import docker
import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.runtimes.docker.engine import WORK_SECONDS, DockerEngine, answering
from orchestrator.runtimes.docker.hands import Hands
from orchestrator.runtimes.docker.orphans import LOOK_SECONDS, Judge, Sentence
from orchestrator.runtimes.docker.state import HOST_LABEL, known_of
from orchestrator.runtimes.warden_duty import WardenDuty

log = structlog.get_logger()


class Guardians:
    """Of one supervisor on one engine. Belongs to the supervisor's thread; no answer of the engine is waited for."""

    def __init__(
        self, engine: DockerEngine, hands: Hands, state_dir: Path, *, state: str, host: str, lock: Path | None
    ) -> None:
        self._engine = engine
        self._hands = hands
        self._state = state
        self._host = host
        self._lock = lock
        self._judge = Judge()
        self._judge_at = Monotonic(float("-inf"))
        self._duty = state_dir / "containers.lock"
        self._warden = WardenDuty("orchestrator.runtimes.docker.warden", self._duty)

    def keep_warden(self) -> None:
        """Start the warden unless it is there; only for an engine on a socket, as it reaches no other.

        Without a lock nobody can tell whether we live, and there is none.
        """
        if self._lock is None or self._engine.socket_path is None:
            return
        try:
            self._warden.keep(self._engine.socket_path, self._state, str(self._duty), str(self._lock))
        except OSError as error:
            log.warning(events.WARDEN_MISSING, error=error.strerror)

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

    def _execute(self, sentence: Sentence) -> None:
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
