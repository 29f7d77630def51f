"""Add a worker to a pool's service: raise its replicas, and find the task that Swarm creates."""

from collections.abc import Callable, Sequence
from threading import Event, RLock
from typing import Final, Protocol

from orchestrator.base.errors import SpawnError
from orchestrator.runtimes.swarm import slots as swarm_slots
from orchestrator.runtimes.swarm.manager import ChangedMeanwhileError
from orchestrator.runtimes.swarm.service import ServiceBody
from orchestrator.runtimes.swarm.tasks import SwarmService, SwarmTask
from queue_core.process.wording import counted

TASK_SECONDS: Final = 2.0
"""How long Swarm may take to create a task: usually 20 ms, longer only when it has no leader."""
SETTLE_SECONDS: Final = 0.5
"""How long ended tasks may take to disappear after their slots are removed: Swarm checks every 0.25 s."""

_CHECK_SECONDS: Final = 0.01
_MAX_TRIES: Final = 5
_MAX_GENERATIONS: Final = 100


class Manager(Protocol):
    """The part of a manager that growing needs: see `SwarmManager`."""

    def services(self, *, digest: str = "") -> list[SwarmService]: ...
    def tasks(self, *, service: str = "") -> list[SwarmTask]: ...
    def create(self, body: ServiceBody, *, generation: int, replicas: int) -> str: ...
    def scale(self, service: SwarmService, replicas: int) -> None: ...
    def remove(self, service: SwarmService) -> None: ...


class ScaleUp:
    """Grows services, one worker at a time. `changing` is held while any service's replicas change."""

    def __init__(self, manager: Manager, *, knows: Callable[[str], bool], task_seconds: float = TASK_SECONDS) -> None:
        """Args:
        knows: tells whether a task is, or was, one of our workers.
        task_seconds: how long Swarm may take to create a task.
        """
        self._manager = manager
        self._task_seconds = task_seconds
        self._knows = knows
        self._pause = Event()
        self.changing = RLock()
        self.changes = 0
        """Changes before a service is grown and again afterwards: a list of tasks that was read under another number
        may lack one."""
        self.current: dict[str, str] = {}
        """The service that each pool's last worker went to, by the pool's name."""

    def one_more(self, body: ServiceBody) -> SwarmTask:
        """Return a new worker's task, in a service with this body.

        An existing task that is no worker is taken first: Swarm created it after a call whose answer was lost.
        Raises `SpawnError`, with the service as it was, and `RuntimeUnavailableError`.
        """
        with self.changing:
            error_text = ""
            self.changes += 1
            try:
                for _ in range(_MAX_TRIES):
                    try:
                        return self._task_in(body, self._manager.services(digest=body.digest))
                    except ChangedMeanwhileError as error:
                        error_text = str(error)
            finally:
                self.changes += 1
        raise SpawnError(f"can't grow the service of pool {body.pool}, {_MAX_TRIES} times in a row: {error_text}")

    def _task_in(self, body: ServiceBody, services: Sequence[SwarmService]) -> SwarmTask:
        """Return a task of the first of its services that can grow, else of a new one."""
        for service in services:
            tasks = self._settled_tasks(service)
            if tasks is not None:
                self.current[body.pool] = service.id
                return self._free(tasks) or self._grow(service, slots=swarm_slots.slots(tasks))
        taken = {service.name for service in services}
        for generation in range(1, _MAX_GENERATIONS + 1):
            if body.name(generation) not in taken:
                return self._create(body, generation=generation)
        raise SpawnError(f"pool {body.pool} is emptying {counted(len(taken), 'service')}; see `docker service ls`")

    def _create(self, body: ServiceBody, *, generation: int) -> SwarmTask:
        made = self._manager.create(body, generation=generation, replicas=1)
        self.current[body.pool] = made
        try:
            return self._new_task(made)
        except SpawnError:
            for found in self._manager.services(digest=body.digest):
                if found.id == made:
                    self._manager.remove(found)
            raise

    def _settled_tasks(self, service: SwarmService) -> Sequence[SwarmTask] | None:
        """Return the tasks of a service that can grow, after a short wait if need be; None while workers leave it."""
        for _ in range(int(SETTLE_SECONDS / _CHECK_SECONDS)):
            tasks = self._manager.tasks(service=service.id)
            if swarm_slots.is_settled(tasks):
                return tasks
            if not all(task.is_ended for task in tasks if task.is_being_removed):
                return None
            self._pause.wait(_CHECK_SECONDS)
        return None

    def _grow(self, service: SwarmService, *, slots: int) -> SwarmTask:
        self._manager.scale(service, slots + 1)  # even if it is the same number: only an update makes Swarm check again
        try:
            return self._new_task(service.id)
        except SpawnError:
            self._undo(service.id, slots)
            raise

    def _new_task(self, service: str) -> SwarmTask:
        for _ in range(int(self._task_seconds / _CHECK_SECONDS)):
            free = self._free(self._manager.tasks(service=service))
            if free is not None:
                return free
            self._pause.wait(_CHECK_SECONDS)
        raise SpawnError(
            f"Swarm created no task within {self._task_seconds:g} s; see `docker node ls` and the manager's log"
        )

    def _undo(self, service: str, slots: int) -> None:
        for found in self._manager.services():
            if found.id == service and swarm_slots.slots(self._manager.tasks(service=service)) == slots:
                self._manager.scale(found, slots)

    def _free(self, tasks: Sequence[SwarmTask]) -> SwarmTask | None:
        """Return the newest task that is no worker yet."""
        free = [task for task in tasks if not (task.is_ended or task.is_unwanted or self._knows(task.id))]
        return max(free, key=lambda task: task.created_seconds, default=None)
