"""Watch an engine: one stream of events for all containers, and a review of all of them when it is opened.

The list of containers is the truth; an event only says where to look, and sooner.
"""

import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Final

import docker

from orchestrator.base import events
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.runtimes.docker import container_state as docker_state
from orchestrator.runtimes.docker.container_state import at
from orchestrator.runtimes.docker.engine import CALL_SECONDS, DockerEngine, Events, error_text, translated_errors
from orchestrator.runtimes.docker.registry import ContainerRegistry
from queue_core.log import get_logger

log = get_logger()

RETRY_SECONDS: Final = 1.0
"""Pause before the stream of events is opened again."""
PING_SECONDS: Final = 5.0
"""Interval at which the engine is pinged: a hung engine keeps its streams open."""
_STOP_SIGNAL: Final = str(int(signal.SIGTERM))
_INSPECTED_ACTIONS: Final = frozenset({"die", "destroy", "start", "pause", "unpause"})


class EngineWatch:
    """A thread for one engine's events, and one that checks now and then whether it answers."""

    def __init__(self, engine: DockerEngine, registry: ContainerRegistry, *, review: Callable[[], None]) -> None:
        """`review` is called in the stream's thread once the stream is open, so that no later event is missed."""
        self._engine = engine
        self._registry = registry
        self._review = review
        self._stream: Events | None = None
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._unavailable_reason = ""
        self._since: int | None = None

    @property
    def unavailable_reason(self) -> str:
        """Why the engine is unavailable; empty while it answers, and before the first try."""
        return self._unavailable_reason

    def start(self) -> None:
        """Start the threads, once."""
        if not self._threads and not self._closed.is_set():
            for target, name in ((self._watch, "docker-events"), (self._ping, "docker-ping")):
                thread = threading.Thread(target=target, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def mark_unavailable(self, reason: str) -> None:
        """Treat the engine as lost after it did not answer in time, until it is reached again."""
        self._lost(reason)
        self._drop_stream()

    def close(self) -> None:
        """End the threads, without waiting for an engine that does not answer."""
        self._closed.set()
        self._drop_stream()

    def _drop_stream(self) -> None:
        stream = self._stream
        if stream is not None:
            # It may have ended already.
            with contextlib.suppress(OSError, AttributeError, docker.errors.DockerException):
                stream.close()

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                self._watch_once()
                reason = f"the engine at {self._engine.url} ended its stream of events"
            except RuntimeUnavailableError as error:
                reason = str(error)
            except docker.errors.APIError as error:
                reason = f"the engine at {self._engine.url} refuses: {error_text(error)}"
            except Exception as error:
                log.exception(events.ENGINE_CALL_FAILED)
                reason = f"the engine at {self._engine.url} sent an invalid answer: {error}"
            if self._closed.is_set():
                return
            self._lost(reason)
            self._closed.wait(RETRY_SECONDS)

    def _watch_once(self) -> None:
        api = self._engine.api()
        with translated_errors(self._engine.url):
            since = None if self._since is None else f"{self._since // 10**9}.{self._since % 10**9:09d}"
            # Those of other supervisors, too: the leader has adopted some, and looks each up by its id.
            filters = {"type": "container", "label": docker_state.STATE_LABEL}
            self._stream = api.events(since=since, filters=filters, decode=True)
            try:
                if self._closed.is_set():
                    return
                if self._unavailable_reason:
                    self._registry.engine_was_away()
                self._review()
                self._found()
                for event in self._stream:
                    self._handle(event)
            finally:
                self._drop_stream()
                self._stream = None

    def _handle(self, event: object) -> None:
        sent_at = at(event, "timeNano")
        if isinstance(sent_at, int):
            self._since = sent_at + 1
        container = self._registry.get_by_id(docker_state.text(at(event, "Actor", "ID")))
        if container is None:
            return
        action = docker_state.text(at(event, "Action")).partition(":")[0]
        if action == "oom":
            container.saw_out_of_memory = True
        if action == "kill":
            container.was_signalled = True
            if docker_state.text(at(event, "Actor", "Attributes", "signal")) == _STOP_SIGNAL:
                container.is_stopped = not container.was_requested
        if action == "die":
            code = docker_state.text(at(event, "Actor", "Attributes", "exitCode"))
            container.code = int(code) if code.isdecimal() else None
        if action in _INSPECTED_ACTIONS:
            self._registry.inspect(container)

    def _ping(self) -> None:
        """Ping the engine: one that hangs keeps its streams open."""
        while not self._closed.wait(PING_SECONDS):
            if self._unavailable_reason:
                continue
            try:
                with translated_errors(self._engine.url):
                    self._engine.api(seconds=CALL_SECONDS).ping()
            except (RuntimeUnavailableError, docker.errors.APIError) as error:
                self._lost(str(error))
                self._drop_stream()

    def _lost(self, reason: str) -> None:
        if not self._unavailable_reason and not self._closed.is_set():
            log.warning(events.ENGINE_LOST, error=reason)
        self._unavailable_reason = reason

    def _found(self) -> None:
        if self._unavailable_reason:
            log.info(events.ENGINE_FOUND, url=self._engine.url)
        self._unavailable_reason = ""
