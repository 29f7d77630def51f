"""Combine several runtimes into one: each call goes to the runtime of the worker's pool, created when first needed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.config.containers import RuntimeKind
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.placement import Placement
from orchestrator.runtime import (
    NOTHING_KNOWN,
    ApplicationReport,
    Exit,
    Runtime,
    SpawnRequest,
    Usage,
    WorkerHandle,
)
from queue_core.log import get_logger

log = get_logger()

Result = TypeVar("Result")

ENGINE_SEPARATOR: Final = " at "
"""Separates kind and engine in a runtime's key."""


class CompositeRuntime:
    """A `Runtime` of processes and of all other kinds in the settings. All but `wake` belong to one thread.

    Sleeps in the process runtime; the others wake it when one of their workers ends. Each engine is a runtime of its
    own.
    """

    def __init__(
        self,
        sleeper: Runtime,
        factories: Mapping[RuntimeKind, Callable[[str | None, PoolSpec | None], Runtime]],
        *,
        pools: Iterable[PoolSpec] = (),
    ) -> None:
        """Args:
        sleeper: runs processes; `wait_for_exit` sleeps in it.
        factories: create a runtime of a kind on an engine (None: the default one), for a pool if that is known; the
            runtime must wake us when there is something to reap.
        pools: the pools of the settings: their runtimes are searched for workers of other supervisors.
        """
        self._sleeper = sleeper
        self._factories = factories
        self._runtimes: dict[str, Runtime] = {"process": sleeper}
        self._runtime_of: dict[str, Runtime] = {}
        self._pools = tuple(pools)
        self._has_adopted = False

    def set_pools(self, pools: Iterable[PoolSpec]) -> None:
        """Take the pools of the settings as they are now: `adopt` searches the runtimes that they name."""
        self._pools = tuple(pools)

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """See `Runtime.spawn`."""
        runtime = self._runtime(key_of(request.pool), request.pool, now=now)
        handle = runtime.spawn(request, now=now)
        self._runtime_of[handle.worker] = runtime
        return handle

    def forks(self, pool: PoolSpec) -> bool:
        """See `Runtime.forks`."""
        return any(runtime.forks(pool) for runtime in self._runtimes.values())

    def application(self, request: SpawnRequest, *, since: Monotonic, now: Monotonic) -> ApplicationReport | None:
        """See `Runtime.application`; nothing is known of a runtime that no worker has needed yet."""
        runtime = self._runtimes.get(key_of(request.pool))
        return NOTHING_KNOWN if runtime is None else runtime.application(request, since=since, now=now)

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`."""
        if worker in self._runtime_of:
            self._runtime_of[worker].drain(worker)

    def insist(self, worker: str, signal: str) -> None:
        """See `Runtime.insist`."""
        if worker in self._runtime_of:
            self._runtime_of[worker].insist(worker, signal)

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`."""
        if worker in self._runtime_of:
            self._runtime_of[worker].kill(worker)

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        """See `Runtime.examine`."""
        return self._runtime_of[worker].examine(worker, before=before) if worker in self._runtime_of else ""

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """See `Runtime.reap`."""
        exits = [ended for runtime in self._runtimes.values() for ended in runtime.reap(now=now)]
        for ended in exits:
            self._runtime_of.pop(ended.worker, None)
        return exits

    def adopt_own(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt_own`: asks the runtimes of all pools and of all remembered workers."""
        return self._adopted(lambda runtime, ours: runtime.adopt_own(remembered=ours, now=now), remembered)

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt`: asks the runtimes of all pools and of all remembered workers."""
        return self._adopted(lambda runtime, ours: runtime.adopt(remembered=ours, now=now), remembered)

    def let_go(self, workers: Collection[str]) -> None:
        """See `Runtime.let_go`."""
        for runtime in self._runtimes.values():
            runtime.let_go([worker for worker in workers if self._runtime_of.get(worker) is runtime])
        for worker in workers:
            self._runtime_of.pop(worker, None)

    def _adopted(
        self,
        adopt: Callable[[Runtime, Sequence[WorkerHandle]], Sequence[WorkerHandle]],
        remembered: Sequence[WorkerHandle],
    ) -> Sequence[WorkerHandle]:
        needed: dict[str, PoolSpec | None] = {key_of(pool): pool for pool in self._pools}
        swarm = next((key for key in needed if key.startswith("swarm")), "swarm")
        ours: dict[str, list[WorkerHandle]] = {}
        for handle in remembered:
            key = key_of_ref(handle.ref)
            if key.startswith("kubernetes"):
                key = _cluster_among(needed, key)
            ours.setdefault(swarm if key == "swarm" else key, []).append(handle)
        for key in ours:
            needed.setdefault(key, None)
        for key, pool in needed.items():
            if key.partition(ENGINE_SEPARATOR)[0] in self._factories:
                self._get_or_create(key, pool)
        self._has_adopted = True
        adopted: list[WorkerHandle] = []
        for key, runtime in self._runtimes.items():
            for handle in adopt(runtime, ours.get(key, [])):
                self._runtime_of[handle.worker] = runtime
                adopted.append(handle)
        return sorted(adopted, key=lambda handle: handle.spawned_at)

    def runs(self, worker: str) -> bool:
        """Return whether any of the runtimes runs this worker."""
        return worker in self._runtime_of

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`."""
        used: dict[str, Usage] = {}
        for runtime in self._runtimes.values():
            used.update(runtime.usage())
        return used

    def placements(self) -> Mapping[str, Placement]:
        """See `Runtime.placements`."""
        places: dict[str, Placement] = {}
        for runtime in self._runtimes.values():
            places.update(runtime.placements())
        return places

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        is_ended = self._others_ended()
        slept = self._sleeper.wait_for_exit(timeout_seconds=0.0 if is_ended else timeout_seconds)
        return slept or is_ended or self._others_ended()

    def wake(self) -> None:
        """See `Runtime.wake`."""
        self._sleeper.wake()

    def close(self) -> None:
        """See `Runtime.close`. The process runtime, which the others wake, goes last."""
        for runtime in reversed(list(self._runtimes.values())):
            runtime.close()

    def _others_ended(self) -> bool:
        is_ended = False
        for runtime in self._runtimes.values():
            if runtime is not self._sleeper:  # call each: it clears its own wake-up
                is_ended |= runtime.wait_for_exit(timeout_seconds=0.0)
        return is_ended

    def _runtime(self, key: str, pool: PoolSpec, *, now: Monotonic) -> Runtime:
        if key in self._runtimes:
            return self._runtimes[key]
        runtime = self._get_or_create(key, pool)
        if self._has_adopted and pool.runtime_kind != "kubernetes":  # its own are given to new starts, or fenced first
            # Workers found there belong to no pool of ours: adoption is over.
            for handle in runtime.adopt_own(now=now):
                why = "it belongs to no pool of the settings"
                log.warning(events.WORKER_KILLED, worker=handle.worker, pool=handle.pool, why=why)
                runtime.kill(handle.worker)
        return runtime

    def _get_or_create(self, key: str, pool: PoolSpec | None) -> Runtime:
        if key not in self._runtimes:
            kind, _, engine = key.partition(ENGINE_SEPARATOR)
            make = next((make for known, make in self._factories.items() if known == kind), None)
            if make is None:
                raise RuntimeUnavailableError(f"this supervisor can't run workers of kind {kind}")
            self._runtimes[key] = make(engine or None, pool)
        return self._runtimes[key]


def key_of(pool: PoolSpec) -> str:
    """Return the key of the runtime that runs a pool's workers: its kind, and its engine if it names one."""
    engine = pool.runtime.engine
    return f"{pool.runtime_kind}{ENGINE_SEPARATOR}{engine}" if engine else pool.runtime_kind


def key_of_ref(ref: str) -> str:
    """Return the key of the runtime that runs the worker with this `ref`."""
    kind, _, rest = ref.partition(":")
    if kind == "pid":
        return "process"
    engine, found, _ = rest.rpartition("#")
    return f"{kind}{ENGINE_SEPARATOR}{engine}" if found and kind in {"docker", "kubernetes"} else kind


def _cluster_among(known: Iterable[str], key: str) -> str:
    """Return which of the known runtimes runs a Pod; a setting without context or namespace means the present ones."""
    context, _, namespace = key.partition(ENGINE_SEPARATOR)[2].partition("/")
    for one in known:
        kind, _, engine = one.partition(ENGINE_SEPARATOR)
        its_context, _, its_namespace = engine.partition("/")
        if kind == "kubernetes" and its_context in {"", context} and its_namespace in {"", namespace}:
            return one
    return key
