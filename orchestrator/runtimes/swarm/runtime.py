"""Run workers as tasks of Swarm services: a pool is a service, and we set its replicas (ADR 13).

Swarm creates, places and removes tasks; which worker ends, and when, is our decision (see docs/how-to/swarm.md).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from orchestrator.base.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError, SourceUnavailableError, SpawnError
from orchestrator.runtime import PAUSED, Exit, SpawnRequest, Usage, WorkerHandle
from orchestrator.runtimes.docker.container_state import phase_of, pid_of
from orchestrator.runtimes.docker.examination import standstill_in
from orchestrator.runtimes.docker.usage import groups_of
from orchestrator.runtimes.elsewhere import WorkersElsewhere
from orchestrator.runtimes.swarm.manager import TIMEOUT_SECONDS, SwarmManager
from orchestrator.runtimes.swarm.registry import SwarmRegistry, SwarmWorker
from orchestrator.runtimes.swarm.scale_up import ScaleUp
from orchestrator.runtimes.swarm.service import service_body
from orchestrator.runtimes.swarm.tasks import REF_PREFIX, handle_of, worker_of
from orchestrator.runtimes.swarm.watch import SwarmWatch


def _no_disown(_worker: str) -> None:
    return None


class SwarmRuntime(WorkersElsewhere):
    """A `Runtime` of a swarm's tasks. All but `wake` belong to one thread; another thread watches the tasks.

    A worker on the manager's node, or on a node whose engine is in `nodes`, can be signalled. Elsewhere an idle worker
    ends because the queue refuses it, a busy one goes when its slot can be removed without another's, and the leases of
    an overdue one are released.
    """

    def __init__(
        self,
        state: str,
        *,
        engine: str | None = None,
        fleet: Callable[[], str] = lambda: "",
        nodes: Mapping[str, str] | None = None,
        disown: Callable[[str], object] = _no_disown,
        on_exit: Callable[[], None] | None = None,
        clock: MonotonicClock | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Args:
        state: the identity of the state directory; of others only workers of the fleet are touched, once ours leads.
        fleet: returns the id of the store's fleet, as far as that is known.
        engine: the URL of a manager's engine; None for DOCKER_HOST, or the local one.
        nodes: URLs of other nodes' engines, by hostname or id.
        disown: makes the queue take back a worker's leases and refuse it; may raise `SourceUnavailableError`.
        on_exit: called from another thread when there is an exit to reap.
        timeout_seconds: the time limit of a call to an engine.
        """
        self._state = state
        self._fleet = fleet
        self._disown = disown
        self._clock = clock or SystemMonotonicClock()
        self._registry = SwarmRegistry()
        self._manager = SwarmManager(engine, state=state, fleet=fleet, nodes=nodes, timeout_seconds=timeout_seconds)
        self._watch_manager = SwarmManager(
            engine, state=state, fleet=fleet, nodes=nodes, timeout_seconds=timeout_seconds
        )
        self._scale_up = ScaleUp(self._manager, knows=self._registry.knows)
        self._watch = SwarmWatch(
            self._watch_manager, self._registry, self._scale_up, clock=self._clock, on_exit=on_exit or (lambda: None)
        )

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """See `Runtime.spawn`: adds a replica, and returns the task that Swarm creates for it.

        The worker's name is made from the task's: `resize.3.xoyyzpafcv3nmhi5p62qjgggu`. Raises
        `RuntimeUnavailableError`.
        """
        pool, settings = request.pool, request.pool.runtime.swarm
        if settings is None:
            raise SpawnError(f"pool {pool.name} is not of runtime swarm: its runtime is {pool.runtime.kind}")
        for manager in (self._manager, self._watch_manager):
            manager.add_nodes(settings.nodes)
        task = self._scale_up.one_more(service_body(request, settings, state=self._state, fleet=self._fleet()))
        digest = request.environment["TOWLINE_SPEC"]
        handle = WorkerHandle(worker_of(pool.name, task), pool.name, REF_PREFIX + task.id, digest, now)
        self._registry.join(SwarmWorker(handle, settings.stop_signal, task))
        self._watch.start()
        self._watch.nudge()
        return handle

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`."""
        self._registry.request(worker, "drain", at=self._clock.monotonic())
        self._watch.nudge()

    def insist(self, worker: str, signal: str) -> None:
        """See `Runtime.insist`: no effect; a container of Celery's gives its tasks back by itself (`soft_seconds`)."""

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`: SIGKILL to its container if its engine is reachable.

        Elsewhere its leases are released and the queue refuses it, so that it does no harm and ends by itself.
        """
        self._registry.request(worker, "kill", at=self._clock.monotonic())
        self._watch.nudge()

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:  # noqa: ARG002  as the protocol has it
        """See `Runtime.examine`: whether its container is paused; on this host, whether its processes are stopped."""
        member = self._registry.members().get(worker)
        if member is None or member.task is None:
            return ""
        found = self._manager.inspected(member.task)
        if phase_of(found) == "paused":
            return PAUSED
        pid = pid_of(found)
        return standstill_in(pid) if pid and groups_of(pid, member.task.container) is not None else ""

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """See `Runtime.reap`. Also releases the leases of killed workers that can't be signalled."""
        for worker, member in self._registry.members().items():
            if member.requested == "kill" and member.is_unreachable and not member.is_disowned:
                try:
                    self._disown(worker)
                except SourceUnavailableError:
                    break
                self._registry.mark_disowned(worker)
        return self._registry.collect(at=now)

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt`. While no manager answers, all remembered workers are assumed to live."""
        ours = [handle for handle in remembered if handle.ref.startswith(REF_PREFIX)]
        try:
            tasks = [task for task in self._manager.tasks() if not task.is_ended]
        except RuntimeUnavailableError:
            found = [SwarmWorker(handle) for handle in ours]
        else:
            wall_seconds = self._clock.wall_seconds()
            pairs = [(task, handle_of(task, now=now, wall_seconds=wall_seconds)) for task in tasks]
            found = [
                SwarmWorker(handle, task.stop_signal or "SIGTERM", task) for task, handle in pairs if handle is not None
            ]
        adopted = [member.handle for member in found if self._registry.join(member)]
        self._watch.leads = True
        self._watch.start()
        return sorted(adopted, key=lambda handle: handle.spawned_at)

    def let_go(self, workers: Collection[str]) -> None:
        """See `Runtime.let_go`: the leader also removes slots, and ends tasks that are no worker."""
        self._watch.leads = False
        for worker in workers:
            self._registry.let_go(worker)

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`: empty, as the workers use other hosts."""
        return {}

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        return self._registry.wait(timeout_seconds=timeout_seconds)

    def wake(self) -> None:
        """See `Runtime.wake`."""
        self._registry.wake()

    def close(self) -> None:
        """See `Runtime.close`."""
        self._watch.stop()
        self._manager.close()
        self._watch_manager.close()
