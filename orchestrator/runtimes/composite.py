"""One runtime out of several: each verb goes to the kind of the worker's pool. Each kind is made when it is needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.config.containers import RuntimeKind
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.runtime import Exit, Runtime, SpawnRequest, Usage, WorkerHandle

log = structlog.get_logger()

Result = TypeVar("Result")

PLACE: Final = " at "


class CompositeRuntime:
    """A `Runtime` of processes and of whatever else the settings ask for. All but `wake` belong to one thread.

    Sleeps with the first runtime; the others wake it whenever one of their workers ends. An engine of its own for a
    pool is a runtime of its own.
    """

    def __init__(
        self,
        sleeper: Runtime,
        makers: Mapping[RuntimeKind, Callable[[str | None, PoolSpec | None], Runtime]],
        *,
        pools: Iterable[PoolSpec] = (),
    ) -> None:
        """Args:
        sleeper: runs processes, and is slept with.
        makers: make a runtime of a kind on an engine (None: the usual one), for this pool where it is known; it has to
            wake us whenever there is something to reap.
        pools: those of the settings: what they need is looked for workers of an earlier supervisor.
        """
        self._sleeper = sleeper
        self._makers = makers
        self._runtimes: dict[str, Runtime] = {"process": sleeper}
        self._homes: dict[str, Runtime] = {}
        self._pools = tuple(pools)
        self._has_adopted = False

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """See `Runtime.spawn`."""
        runtime = self._of(key_of(request.pool), request.pool, now=now)
        handle = runtime.spawn(request, now=now)
        self._homes[handle.worker] = runtime
        return handle

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`."""
        if worker in self._homes:
            self._homes[worker].drain(worker)

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`."""
        if worker in self._homes:
            self._homes[worker].kill(worker)

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        """See `Runtime.examine`."""
        return self._homes[worker].examine(worker, before=before) if worker in self._homes else ""

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """See `Runtime.reap`."""
        exits = [ended for runtime in self._runtimes.values() for ended in runtime.reap(now=now)]
        for ended in exits:
            self._homes.pop(ended.worker, None)
        return exits

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt`: of every kind that the settings or those remembered are of."""
        needed: dict[str, PoolSpec | None] = {key_of(pool): pool for pool in self._pools}
        swarm = next((key for key in needed if key.startswith("swarm")), "swarm")
        ours: dict[str, list[WorkerHandle]] = {}
        for handle in remembered:
            key = key_of_ref(handle.ref)
            ours.setdefault(swarm if key == "swarm" else key, []).append(handle)
        for key in ours:
            needed.setdefault(key, None)
        for key, pool in needed.items():
            if key.partition(PLACE)[0] in self._makers:
                self._made(key, pool)
        self._has_adopted = True
        adopted: list[WorkerHandle] = []
        for key, runtime in self._runtimes.items():
            for handle in runtime.adopt(remembered=ours.get(key, []), now=now):
                self._homes[handle.worker] = runtime
                adopted.append(handle)
        return sorted(adopted, key=lambda handle: handle.spawned_at)

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`."""
        used: dict[str, Usage] = {}
        for runtime in self._runtimes.values():
            used.update(runtime.usage())
        return used

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        is_ended = self._others_ended()
        slept = self._sleeper.wait_for_exit(timeout_seconds=0.0 if is_ended else timeout_seconds)
        return slept or is_ended or self._others_ended()

    def wake(self) -> None:
        """See `Runtime.wake`."""
        self._sleeper.wake()

    def close(self) -> None:
        """See `Runtime.close`. The one that the others wake goes last."""
        for runtime in reversed(list(self._runtimes.values())):
            runtime.close()

    def _others_ended(self) -> bool:
        is_ended = False
        for runtime in self._runtimes.values():
            if runtime is not self._sleeper:  # each is asked, and takes note that it was woken
                is_ended |= runtime.wait_for_exit(timeout_seconds=0.0)
        return is_ended

    def _of(self, key: str, pool: PoolSpec, *, now: Monotonic) -> Runtime:
        if key in self._runtimes:
            return self._runtimes[key]
        runtime = self._made(key, pool)
        if self._has_adopted:
            # What an earlier supervisor left there was in no pool of ours until now: nobody counts on it.
            for handle in runtime.adopt(now=now):
                why = "nobody knows it any more"
                log.warning(events.WORKER_KILLED, worker=handle.worker, pool=handle.pool, why=why)
                runtime.kill(handle.worker)
        return runtime

    def _made(self, key: str, pool: PoolSpec | None) -> Runtime:
        if key not in self._runtimes:
            kind, _, engine = key.partition(PLACE)
            make = next((make for known, make in self._makers.items() if known == kind), None)
            if make is None:
                raise RuntimeUnavailableError(f"workers of kind {kind} are not run by this supervisor")
            self._runtimes[key] = make(engine or None, pool)
        return self._runtimes[key]


def key_of(pool: PoolSpec) -> str:
    """Which runtime a pool's workers belong to."""
    engine = pool.containers.engine if pool.containers is not None else None
    return f"{pool.runtime_kind}{PLACE}{engine}" if engine else pool.runtime_kind


def key_of_ref(ref: str) -> str:
    """Which runtime the worker of this `ref` belongs to."""
    kind, _, rest = ref.partition(":")
    if kind == "pid":
        return "process"
    engine, found, _ = rest.rpartition("#")
    return f"{kind}{PLACE}{engine}" if found and kind == "docker" else kind
