"""Registry of a supervisor's containers on one engine, and the calls made for each: start, signal, inspect, remove.

Calls are made by other threads than the supervisor's, in order for one worker. Calls that fail because the engine is
unavailable are repeated when it is back: then each container is inspected.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar

import docker

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.fleet.last_words import last_words_of
from orchestrator.runtime import PAUSED, Exit, Usage, WorkerHandle
from orchestrator.runtimes.docker import container_state as docker_state
from orchestrator.runtimes.docker.container_state import ContainerExit
from orchestrator.runtimes.docker.engine import WORK_SECONDS, DockerEngine, error_text, translated_errors
from orchestrator.runtimes.docker.examination import STACK_SIGNAL_NAME, standstill_in, writes_its_stack
from orchestrator.runtimes.docker.logs import LogFollower
from orchestrator.runtimes.docker.usage import UNKNOWN, ControlGroups, groups_of, peak_of, usage_of
from orchestrator.runtimes.thread_pool import EngineThreads
from orchestrator.runtimes.worker_logs import WorkerLogs
from queue_core.log import get_logger

log = get_logger()

Result = TypeVar("Result")

LAST_OUTPUT_SECONDS: Final = 2.0
"""How long an exit waits for the last output; the engine sends it within milliseconds."""
STOP: Final = ""
"""Stands for the container's own stop signal."""
_NEVER: Final = Monotonic(0.0)
_CANNOT_START: Final = 125
"""The exit code of `docker run` for a container that could not be started."""


@dataclass(eq=False, slots=True)
class Container:
    """A container. `signals` were requested and not delivered yet; `code` is from the engine's `die` event.

    `was_requested`: we requested a signal. `was_signalled`: the engine sent one, for whomever. `is_stopped`: something
    other than the supervisor ended it. `was_missed`: the engine was away, and the container's state since is unknown.
    `is_reported`: its exit is known, and it only remains to be removed. `pid` is that of its first process, 0 if the
    engine runs on another host. `is_examined`: its worker was asked to write its stack.
    """

    handle: WorkerHandle
    id: str
    program: str = ""
    stop_signal: str = ""
    is_started: bool = False
    signals: list[str] = field(default_factory=list)
    is_paused: bool = False
    pid: int = 0
    groups: ControlGroups | None = None
    used: Usage = UNKNOWN
    is_measuring: bool = False
    is_delivering: bool = False
    is_examined: bool = False
    peak_bytes: int | None = None
    saw_out_of_memory: bool = False
    was_requested: bool = False
    was_signalled: bool = False
    is_stopped: bool = False
    was_missed: bool = False
    code: int | None = None
    is_reported: bool = False


class ContainerRegistry:
    """All containers of one supervisor on one engine. Any thread may call it."""

    def __init__(
        self,
        engine: DockerEngine,
        threads: EngineThreads,
        follower: LogFollower,
        logs: WorkerLogs,
        *,
        on_exit: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._threads = threads
        self._follower = follower
        self._logs = logs
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._containers: dict[str, Container] = {}
        self._by_id: dict[str, Container] = {}
        self._exits: deque[Exit] = deque()

    # -- the containers -------------------------------------------------------------------------------------------

    def add(self, container: Container) -> None:
        """Add a container."""
        with self._lock:
            self._containers[container.handle.worker] = container
            self._by_id[container.id] = container

    def get(self, worker: str) -> Container | None:
        """Return a worker's container."""
        return self._containers.get(worker)

    def get_by_id(self, container: str) -> Container | None:
        """Return the container with this id, if it is ours."""
        return self._by_id.get(container)

    def all(self) -> list[Container]:
        """Return all containers whose exit is not reported yet."""
        with self._lock:
            return [container for container in self._containers.values() if not container.is_reported]

    def engine_was_away(self) -> None:
        """Note that the engine was away: a container that ended meanwhile may have been ended by it."""
        with self._lock:
            for container in self._containers.values():
                container.was_missed = container.is_started

    def exits(self, *, now: Monotonic) -> list[Exit]:
        """Return the exits since the last call."""
        found = []
        while self._exits:
            found.append(replace(self._exits.popleft(), at=now))
        return found

    @property
    def has_exits(self) -> bool:
        """Return whether there are exits to collect."""
        return bool(self._exits)

    # -- calls, each made by another thread -----------------------------------------------------------------------

    def start(self, container: Container) -> "Future[None]":
        """Start a container that was created."""
        return self._do(container, lambda: self._start(container))

    def signal(self, container: Container, name: str) -> None:
        """Send a signal, now or as soon as that is possible."""
        with self._lock:
            container.was_requested = True
            if name not in container.signals:
                container.signals.append(name)
            if container.is_delivering:
                return
            container.is_delivering = True
        self._do(container, lambda: self._deliver_signals(container))

    def inspect(self, container: Container) -> "Future[None]":
        """Inspect a container, and do what follows from its phase."""
        return self._do(container, lambda: self._inspect(container))

    def follow_output(self, container: Container) -> "Future[threading.Event]":
        """Continue to follow a container's output."""
        return self._do(container, lambda: self._follow(container))

    def remove_late(self, container: Container) -> None:
        """Remove a container that was created too late for its caller; its exit is not reported."""
        with self._lock:
            container.is_reported = True
            self._containers.pop(container.handle.worker, None)
            self._by_id.pop(container.id, None)
        self.discard(container.handle.worker, container.id, why="it was created too late")

    def let_go(self, worker: str) -> None:
        """Forget a worker's container, which another supervisor has adopted; it runs on."""
        with self._lock:
            container = self._containers.pop(worker, None)
            if container is not None:
                container.is_reported = True
                self._by_id.pop(container.id, None)
        self._follower.forget(worker)

    def examine(self, container: Container, *, before: Literal["mark", "end"]) -> str:
        """Describe the condition of a worker that hangs; before its end it is also asked to write its stack."""
        if container.is_paused:
            return PAUSED
        condition = standstill_in(container.pid) if container.pid else ""
        if before == "end" and not condition and container.pid and writes_its_stack(container.pid):
            container.is_examined = True
            self._do(container, lambda: self._request_stack(container))
        return condition or last_words_of(self._logs.last_lines(container.handle.worker)).condition

    def close(self) -> None:
        """Close the output streams."""
        self._follower.close()

    def discard(self, worker: str, container: str, *, why: str) -> None:
        """Remove a container of ours that is no known worker."""
        log.warning(events.CONTAINER_DISCARDED, worker=worker, container=container[:12], why=why)
        self._threads.do(worker, lambda: self._remove(container))

    def measure(self) -> None:
        """Measure each container's usage from this host's control groups; for others ask the engine in a thread."""
        for container in self.all():
            groups = container.groups
            used = groups.usage() if groups else None
            if groups is not None and used is not None:
                container.used = used
                container.peak_bytes = groups.peak_bytes() or container.peak_bytes
            elif container.is_started and not container.is_measuring:
                container.is_measuring = True
                self._do(container, lambda container=container: self._fetch_usage(container))  # type: ignore[misc]

    def _do(self, container: Container, call: Callable[[], Result]) -> "Future[Result]":
        return self._threads.do(container.handle.worker, call)

    # -- inside those threads -------------------------------------------------------------------------------------

    def _start(self, container: Container) -> None:
        api = self._engine.api(seconds=WORK_SECONDS)
        try:
            with translated_errors(self._engine.url):
                api.start(container.id)
        except docker.errors.APIError as error:
            inspected = self._inspected(container)
            if inspected is None:
                self._end(container, None)
            else:  # an engine says "not found" of what the container needs, too: a network, another container, a plugin
                self._never_started(container, inspected, error_text(error))
        else:
            container.is_started = True
            self._inspect(container)

    def _never_started(self, container: Container, inspected: Mapping[str, object], message: str) -> None:
        ending = docker_state.ending_of(inspected)
        why = docker_state.failed_start(message, program=container.program, pool=container.handle.pool)
        code = ending.code or _CANNOT_START
        self._report(container, ContainerExit(code, None, memory_limit_bytes=ending.memory_limit_bytes, reason=why))

    def _inspect(self, container: Container) -> None:
        if container.is_reported:
            return
        inspected = self._inspected(container)
        phase = docker_state.phase_of(inspected) if inspected is not None else "ended"
        if phase == "ended":
            self._end(container, inspected)
        elif phase == "created" and not container.is_started:
            if not container.signals:
                self._start(container)
            else:
                self._report(container, ContainerExit(signal=9, reason="ended before it was started"))
        elif phase in {"running", "paused"}:
            container.is_started, container.was_missed = True, False
            container.is_paused = phase == "paused"
            self._follow(container)
            container.stop_signal = docker_state.stop_signal_of(inspected)
            if container.groups is None:
                container.groups = groups_of(docker_state.pid_of(inspected), container.id)
                container.pid = docker_state.pid_of(inspected) if container.groups is not None else 0
            self._deliver(container)

    def _deliver_signals(self, container: Container) -> None:
        container.is_delivering = False
        self._deliver(container)

    def _request_stack(self, container: Container) -> None:
        try:
            with translated_errors(self._engine.url):
                self._engine.api().kill(container.id, STACK_SIGNAL_NAME)
        except docker.errors.APIError as error:
            log.debug(events.ENGINE_CALL_FAILED, container=container.id, error=error_text(error))

    def _deliver(self, container: Container) -> None:
        while container.signals and container.is_started and not container.is_reported:
            name = container.signals[-1] if "SIGKILL" not in container.signals else "SIGKILL"
            try:
                with translated_errors(self._engine.url):
                    self._engine.api().kill(container.id, name or container.stop_signal or "SIGTERM")
            except docker.errors.NotFound:
                self._end(container, None)
                return
            except docker.errors.APIError as error:
                # It has ended, and its exit is about to be reported; or it is paused.
                if "pause" not in error_text(error).lower():
                    container.signals.clear()
                    return
                with translated_errors(self._engine.url):
                    self._engine.api().unpause(container.id)
                continue
            container.signals.clear()

    def _follow(self, container: Container) -> threading.Event:
        handle = container.handle
        return self._follower.follow(worker=handle.worker, pool=handle.pool, container=container.id)

    def _fetch_usage(self, container: Container) -> None:
        try:
            with translated_errors(self._engine.url):
                found = self._engine.api().stats(container.id, stream=False, one_shot=True)
        except docker.errors.APIError:
            return
        finally:
            container.is_measuring = False
        container.used = usage_of(found)
        container.peak_bytes = max(peak_of(found) or 0, container.peak_bytes or 0) or None

    def _inspected(self, container: Container) -> Mapping[str, object] | None:
        """Return the engine's inspection of a container; None when it is gone."""
        try:
            with translated_errors(self._engine.url):
                return self._engine.api().inspect_container(container.id)
        except docker.errors.NotFound:
            return None

    def _end(self, container: Container, inspected: Mapping[str, object] | None) -> None:
        if inspected is None:
            ending = replace(docker_state.ending_by_code(container.code), is_removed=True)
        else:
            self._follow(container).wait(LAST_OUTPUT_SECONDS)
            # While the engine was away it may have been asked to end the container, or have done so by itself.
            was_requested = container.was_requested or container.was_signalled or container.was_missed
            ending = docker_state.ending_of(
                inspected, saw_out_of_memory=container.saw_out_of_memory, was_requested=was_requested
            )
            if container.was_missed and not container.was_requested:
                container.is_stopped = True
                ending = replace(ending, reason=ending.reason or "it ended while its engine was unavailable")
        container.is_stopped = container.is_stopped or (ending.is_removed and not container.was_requested)
        self._report(container, ending)

    def _report(self, container: Container, ending: ContainerExit) -> None:
        with self._lock:
            if container.is_reported:
                return
            container.is_reported = True
        handle = container.handle
        peak = container.peak_bytes
        if ending.out_of_memory and ending.memory_limit_bytes is not None:
            peak = max(peak or 0, ending.memory_limit_bytes)  # it reached its limit
        self._exits.append(
            Exit(
                handle.worker,
                handle.pool,
                handle.ref,
                _NEVER,
                code=ending.code,
                signal=ending.signal,
                out_of_memory=ending.out_of_memory,
                memory_limit_bytes=ending.memory_limit_bytes,
                memory_peak_bytes=peak,
                reason=ending.reason,
                is_stopped=container.is_stopped,
                is_removed=ending.is_removed,
                last_lines=self._logs.last_lines(handle.worker),
                stack=self._logs.stack(handle.worker) if container.is_examined else (),
            )
        )
        self._on_exit()
        self._follower.forget(handle.worker)
        self._remove(container.id)
        with self._lock:
            self._containers.pop(handle.worker, None)
            self._by_id.pop(container.id, None)

    def _remove(self, container: str) -> None:
        try:
            with translated_errors(self._engine.url):
                self._engine.api(seconds=WORK_SECONDS).remove_container(container, v=True, force=True)
        except docker.errors.APIError as error:
            log.debug(events.ENGINE_CALL_FAILED, container=container, error=error_text(error))
        except RuntimeUnavailableError:
            return  # removed at the next review, when the engine is back
