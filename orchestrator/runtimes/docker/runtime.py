"""Run workers as containers of a Docker Engine: found again by their labels, watched through one stream of events.

No verb waits longer than `ANSWER_SECONDS`, a pool's first start `EXAMINED_SECONDS` more, whatever the engine does; long
calls are made by a few threads, as many for one container as for hundreds. While the engine is unavailable all workers
are assumed to live.
"""

import hashlib
import os
import select
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import docker

from orchestrator.base.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError, SpawnError, StartPendingError
from orchestrator.config.containers import ContainerSettings
from orchestrator.runtime import Exit, SpawnRequest, Usage, WorkerHandle
from orchestrator.runtimes.docker import container_state as docker_state
from orchestrator.runtimes.docker import identity
from orchestrator.runtimes.docker.container_state import KnownContainer, known_of
from orchestrator.runtimes.docker.create import HostPaths, command_of, container_body
from orchestrator.runtimes.docker.engine import WORK_SECONDS, DockerEngine, error_text, translated_errors
from orchestrator.runtimes.docker.events import EngineWatch
from orchestrator.runtimes.docker.foreign_locks import ForeignLocks
from orchestrator.runtimes.docker.images import Images
from orchestrator.runtimes.docker.logs import LogFollower
from orchestrator.runtimes.docker.orphans import OrphanCollector
from orchestrator.runtimes.docker.own_container import OwnPlaces
from orchestrator.runtimes.docker.registry import STOP, Container, ContainerRegistry
from orchestrator.runtimes.elsewhere import WorkersElsewhere
from orchestrator.runtimes.thread_pool import EngineThreads
from orchestrator.runtimes.worker_logs import WorkerLogs

ANSWER_SECONDS: Final = 5.0
"""How long a verb waits for an engine; one that has not answered by then counts as unavailable."""
EXAMINED_SECONDS: Final = 1.0
"""How long a pool's first start waits for the examination of its image, a dozen calls to the engine; with a slow one
it goes on beside the next turns, and holds none of them up."""
CLOSE_SECONDS: Final = 2.0
"""How long `close` waits for pending calls, such as the removal of ended containers."""
UPKEEP_SECONDS: Final = 10.0
"""Interval at which logs are trimmed and the watchdog is checked."""
REF: Final = "docker:"
_EXAMINATIONS: Final = "examinations"
"""The key by which one thread makes all of them, in order."""


class DockerRuntime(WorkersElsewhere):
    """A `Runtime` of containers on one engine. All but `wake` belong to one thread."""

    def __init__(
        self,
        state_dir: Path,
        *,
        lock: Path | None = None,
        engine: str | None = None,
        fleet: Callable[[], str] = lambda: "",
        clock: MonotonicClock | None = None,
        on_exit: Callable[[], None] = lambda: None,
        logs: WorkerLogs | None = None,
    ) -> None:
        """Args:
        state_dir: identifies the supervisor; of other state directories only containers of its fleet are touched, once
            it leads.
        fleet: returns the id of the store's fleet, as far as that is known.
        lock: a file that a living supervisor holds locked: with it, a watchdog ends orphans. It is mounted in
            containers (without one: that of `state_dir`).
        engine: its URL; None for DOCKER_HOST, or the local one.
        on_exit: called from another thread when there is an exit to reap.
        logs: the workers' logs; a folder of `state_dir` by default.
        """
        self._state_dir = state_dir.resolve()
        self._lock_path = lock or self._state_dir / "supervisor.lock"
        self._fleet = fleet
        self._foreign_locks = ForeignLocks(self._lock_path.name)
        self._foreign: dict[str, str] = {}
        self._let_go: set[str] = set()
        self._state = identity.identity_of(self._state_dir)
        self._clock = clock or SystemMonotonicClock()
        self._engine = DockerEngine(engine)
        self._ref = REF if engine is None else f"{REF}{engine}#"
        self.logs = logs or WorkerLogs(self._state_dir / "workers")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._on_exit = on_exit
        self._create_thread, self._threads = (
            EngineThreads(1, name="docker-make", expected=(docker.errors.APIError,)),
            EngineThreads(name="docker", expected=(docker.errors.APIError,)),
        )
        follower = LogFollower(self._engine, self.logs)
        self._registry = ContainerRegistry(self._engine, self._threads, follower, self.logs, on_exit=self._exited)
        self._watch = EngineWatch(self._engine, self._registry, review=self._review)
        self._images = Images(self._engine)
        self._places = OwnPlaces()
        self._host = identity.host_id()
        self._orphans = OrphanCollector(
            self._engine,
            self._threads,
            self._state_dir,
            state=self._state,
            host=self._host,
            lock=lock,
            is_ours=lambda worker: self._registry.get(worker) is not None,
        )
        self._lock = threading.Lock()
        self._making: set[str] = set()
        self._examinations: dict[str, Future[None]] = {}
        self._has_adopted = False
        self._upkeep_at = Monotonic(float("-inf"))

    # -- verbs ----------------------------------------------------------------------------------------------------

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """See `Runtime.spawn`: the container is created now, and started by another thread.

        Raises `RuntimeUnavailableError` while the engine is unavailable or pulls the image, `StartPendingError` while
        it is asked about the image.
        """
        settings = request.pool.containers
        if settings is None:
            raise SpawnError(f"pool {request.pool.name} has no containers settings")
        try:
            paths = self._host_paths(request, settings)
        except OSError as error:
            raise RuntimeUnavailableError(
                f"{self._state_dir}: can't prepare the files for a container: {error.strerror}"
            ) from error
        body = container_body(request, settings, paths=paths, spawned_at=self._clock.wall_seconds())
        self._watch.start()
        if self._watch.unavailable_reason:
            raise RuntimeUnavailableError(self._watch.unavailable_reason)
        self._orphans.keep_watchdog()
        try:
            self._examine_image(request, settings, body)
            return self._made_in_time(request, settings, body, now)
        except docker.errors.APIError as error:
            raise SpawnError(
                docker_state.failed_start(error_text(error), program=_program(request), pool=request.pool.name)
            ) from error

    def _examine_image(self, request: SpawnRequest, settings: ContainerSettings, body: Mapping[str, object]) -> None:
        """Make sure, once for a pool's settings, that its image can run the worker; by another thread."""
        pool = request.pool
        if self._images.knows(pool):
            return

        def examine() -> None:
            api = self._engine.api(seconds=WORK_SECONDS)
            with translated_errors(self._engine.url):
                self._images.prepare(api, pool, settings, self._places.placed(api, body))

        digest, seconds = pool.digest(), 0.0
        examined = self._examinations.get(digest)
        if examined is None:
            seconds = 0.0 if self._examinations else EXAMINED_SECONDS  # the turn has waited for another already
            examined = self._examinations[digest] = self._threads.do(_EXAMINATIONS, examine)
        try:
            examined.result(seconds)
        except NotYetError:
            raise StartPendingError(
                f"the engine at {self._engine.url} is slow: it is still asked about the image {settings.image}"
            ) from None
        finally:
            if examined.done():
                del self._examinations[digest]

    def _made_in_time(
        self, request: SpawnRequest, settings: ContainerSettings, body: Mapping[str, object], now: Monotonic
    ) -> WorkerHandle:
        with self._lock:
            self._making.add(request.worker)
        made = self._create_thread.do(request.worker, lambda: self._make(request, settings, body, now))
        try:
            return made.result(ANSWER_SECONDS).handle
        except NotYetError:
            if made.cancel():
                self._made(request.worker)
            else:
                made.add_done_callback(self._remove_late)
            slow = f"the engine at {self._engine.url} has not created a container in {ANSWER_SECONDS:.0f} s"
            self._watch.mark_unavailable(slow)
            raise RuntimeUnavailableError(slow) from None

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`: sends the container's stop signal to its first process."""
        container = self._registry.get(worker)
        if container is not None:
            self._registry.signal(container, STOP)

    def insist(self, worker: str, signal: str) -> None:
        """See `Runtime.insist`: the engine's init passes it on to the worker."""
        container = self._registry.get(worker)
        if container is not None:
            self._registry.signal(container, signal)

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`: SIGKILL to its first process, which ends all others of the container."""
        container = self._registry.get(worker)
        if container is not None:
            self._registry.signal(container, "SIGKILL")

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        """See `Runtime.examine`. Of a container of another host it is only known whether it is paused."""
        container = self._registry.get(worker)
        return "" if container is None else self._registry.examine(container, before=before)

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """See `Runtime.reap`. Also checks logs, the watchdog and orphans now and then."""
        if now >= self._upkeep_at:
            self._upkeep_at = Monotonic(now + UPKEEP_SECONDS)
            living = {container.handle.worker for container in self._registry.all()}
            self.logs.trim(living)
            if living:
                self._orphans.keep_watchdog()
            self._foreign_locks.keep({state for worker, state in self._foreign.items() if worker in living})
        if not self._watch.unavailable_reason:
            self._orphans.collect(now=now)
        return self._registry.exits(now=now)

    def adopt_own(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt_own`. A remembered worker that ended unseen is returned too, then reported by `reap`.

        While the engine is unavailable all remembered workers are assumed to live.
        """
        return self._adopted(remembered, fleet="", now=now)

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt`: also those of the fleet, whose locks are held as far as they are on this host."""
        with self._lock:
            self._let_go.clear()
        adopted = self._adopted(remembered, fleet=self._fleet(), now=now)
        self._foreign_locks.keep(set(self._foreign.values()))
        return adopted

    def let_go(self, workers: Collection[str]) -> None:
        """See `Runtime.let_go`: the next review leaves those containers alone, too."""
        with self._lock:
            self._let_go.update(workers)
        for worker in workers:
            self._foreign.pop(worker, None)
            self._registry.let_go(worker)
        self._foreign_locks.keep(set(self._foreign.values()))

    def _adopted(self, remembered: Sequence[WorkerHandle], *, fleet: str, now: Monotonic) -> Sequence[WorkerHandle]:
        self._watch.start()
        ours = {handle.worker: handle for handle in remembered if _is_of(handle.ref, self._ref)}
        try:
            seconds = 0.0 if self._watch.unavailable_reason else ANSWER_SECONDS
            listed = self._create_thread.do("", lambda: self._listed_of(fleet)).result(seconds)
            found = [
                handle
                for known in listed
                if self._registry.get(known.worker) is None
                and (handle := self._add_known(known, now=now)) is not None
                and (known.phase != "ended" or known.worker in ours)
            ]
        except (NotYetError, RuntimeUnavailableError, docker.errors.APIError):
            found = [self._add(handle) for handle in ours.values() if self._registry.get(handle.worker) is None]
        self._has_adopted = True  # set last: until then the review must not remove unknown containers
        return sorted(found, key=lambda handle: handle.spawned_at)

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`: of all processes of a container; 0 for one that has just started."""
        self._registry.measure()
        return {container.handle.worker: container.used for container in self._registry.all()}

    @property
    def unavailable_reason(self) -> str:
        """Why the engine is unavailable; empty while it answers."""
        return self._watch.unavailable_reason

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        if not self._registry.has_exits:
            ready, _, _ = select.select([self._wake_fd], [], [], max(0.0, timeout_seconds))
            if ready:
                os.eventfd_read(self._wake_fd)
        return self._registry.has_exits

    def wake(self) -> None:
        """See `Runtime.wake`. Safe in other threads and signal handlers; does nothing once closed."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """See `Runtime.close`."""
        self._orphans.leave()
        self._foreign_locks.keep(())
        self._watch.close()
        self._create_thread.close()
        self._threads.close(seconds=0.0 if self._watch.unavailable_reason else CLOSE_SECONDS)
        self._registry.close()
        self._engine.close()
        with self._lock:
            descriptor, self._wake_fd = self._wake_fd, -1
            os.close(descriptor)

    # -- inside the thread that creates containers ----------------------------------------------------------------

    def _make(
        self, request: SpawnRequest, settings: ContainerSettings, body: Mapping[str, object], now: Monotonic
    ) -> Container:
        try:
            api = self._engine.api(seconds=WORK_SECONDS)
            with translated_errors(self._engine.url):
                body = self._places.placed(api, body)
                try:
                    made = api.create_container_from_config(body, self._name_of(request.worker))
                except docker.errors.ImageNotFound:
                    self._images.check_again(request.pool)
                    raise
            container = Container(
                WorkerHandle(
                    request.worker,
                    request.pool.name,
                    f"{self._ref}{made['Id']}",
                    request.environment["TOWLINE_SPEC"],
                    now,
                ),
                str(made["Id"]),
                stop_signal=settings.stop_signal,
                program=_program(request),
            )
            self._registry.add(container)
        finally:
            self._made(request.worker)
        self._registry.start(container)
        return container

    def _listed(self) -> list[KnownContainer]:
        """Return all containers of this supervisor, ended ones too."""
        return [
            known for known in self._with_label(docker_state.STATE_LABEL, self._state) if known.state == self._state
        ]

    def _listed_of(self, fleet: str) -> list[KnownContainer]:
        """Return all containers of this supervisor, and of the fleet if one is named."""
        found = {known.container: known for known in self._listed()}
        if fleet:
            found.update({known.container: known for known in self._with_label(docker_state.FLEET_LABEL, fleet)})
        return list(found.values())

    def _with_label(self, label: str, value: str) -> list[KnownContainer]:
        with translated_errors(self._engine.url):
            listed = self._engine.api().containers(all=True, filters={"label": f"{label}={value}"})
        return [known for entry in listed if (known := known_of(entry)) is not None]

    # -- inside the thread of the events --------------------------------------------------------------------------

    def _review(self) -> None:
        """Inspect all containers, and remove unknown ones, whose creation was given up."""
        before = self._registry.all()
        with self._lock:
            making = self._making | self._let_go
        listed = self._listed()
        running = {known.container for known in listed if known.phase in {"running", "paused"}}
        for container in before:
            if container.id not in running or container.signals or not container.is_started:
                self._registry.inspect(container)
            else:
                self._registry.follow_output(container)
        with self._lock:
            making |= self._making | self._let_go
        if self._has_adopted:
            for known in listed:
                if self._registry.get(known.worker) is None and known.worker not in making:
                    self._registry.discard(known.worker, known.container, why="it is no known worker")

    # -- helpers --------------------------------------------------------------------------------------------------

    def _made(self, worker: str) -> None:
        with self._lock:
            self._making.discard(worker)

    def _remove_late(self, made: "Future[Container]") -> None:
        """Remove a container that was created after its caller had given up."""
        if not made.cancelled() and made.exception() is None:
            self._registry.remove_late(made.result())

    def _add_known(self, known: KnownContainer, *, now: Monotonic) -> WorkerHandle:
        age_seconds = max(0.0, self._clock.wall_seconds() - known.spawned_at)
        handle = WorkerHandle(
            known.worker, known.pool, f"{self._ref}{known.container}", known.spec_digest, Monotonic(now - age_seconds)
        )
        if known.state != self._state:
            self._foreign[known.worker] = known.state
        return self._add(handle)

    def _add(self, handle: WorkerHandle) -> WorkerHandle:
        container = Container(handle, handle.ref.removeprefix(self._ref))
        self._registry.add(container)
        self._registry.inspect(container)
        return handle

    def _host_paths(self, request: SpawnRequest, settings: ContainerSettings) -> HostPaths:
        token = request.environment.get("TOWLINE_TOKEN")
        url = settings.url or request.environment.get("TOWLINE_URL", "")
        if self._engine.socket_path is None:
            return HostPaths(self._state, self._host, fleet=self._fleet())
        return HostPaths(
            self._state,
            self._host,
            fleet=self._fleet(),
            lock=str(identity.readable_lock(self._lock_path)),
            token=str(identity.secret_file(self._state_dir, token)) if token else None,
            url=str(identity.secret_file(self._state_dir, url)) if urlsplit(url).password else None,
            socket_uid=identity.owner_of_socket(url),
        )

    def _name_of(self, worker: str) -> str:
        """Return a name that is unique on the engine, where several supervisors may use the same worker names."""
        return f"towline-{worker}-{hashlib.sha256(self._state.encode()).hexdigest()[:8]}"

    def _exited(self) -> None:
        with self._lock:  # another thread may be closing the descriptor
            self.wake()
        self._on_exit()


def _is_of(ref: str, prefix: str) -> bool:
    """Return whether a worker with this `ref` runs on this engine and not on another named one."""
    return ref.startswith(prefix) and "#" not in ref.removeprefix(prefix)


def _program(request: SpawnRequest) -> str:
    settings = request.pool.containers
    return command_of(request, settings)[0] if settings is not None else ""
