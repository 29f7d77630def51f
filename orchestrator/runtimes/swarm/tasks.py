"""Swarm's tasks and services as values; which worker a task is, and how it ended. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.runtime import Exit, WorkerHandle
from orchestrator.runtimes.docker.container_state import POOL_LABEL, SPEC_LABEL

REF_PREFIX: Final = "swarm:"

_ENDED: Final = frozenset({"complete", "shutdown", "failed", "rejected", "orphaned", "remove"})
_UNPLACED: Final = frozenset({"new", "allocated", "pending"})
_UNWANTED: Final = frozenset({"shutdown", "remove"})
_SIGNALLED_BASE: Final = 128
_LAST_SIGNAL: Final = 64
_EXIT_CODE_TOLD: Final = re.compile(r"^task: non-zero exit \(\d+\)$")


@dataclass(frozen=True, slots=True)
class SwarmTask:
    """A task of a service. `created_seconds` is on the managers' wall clock, since the epoch.

    `node` and `container` are "" while there is none. `labels` are its container's.
    """

    id: str
    service: str
    slot: int
    node: str
    state: str
    desired: str
    created_seconds: float
    container: str = ""
    code: int = 0
    message: str = ""
    error: str = ""
    stop_signal: str = ""
    labels: Mapping[str, str] | None = None

    @property
    def is_ended(self) -> bool:
        """Return whether its container has ended, or will never exist."""
        return self.state in _ENDED or (self.is_unwanted and self.state in _UNPLACED)

    @property
    def is_running(self) -> bool:
        """Return whether Swarm counts it as running when it chooses slots to remove."""
        return self.state == "running"

    @property
    def is_unwanted(self) -> bool:
        """Return whether Swarm has asked it to end, or knows that it has."""
        return self.desired in _UNWANTED

    @property
    def is_being_removed(self) -> bool:
        """Return whether its slot was removed from the service; it counts as one until it is gone."""
        return self.desired == "remove"


@dataclass(frozen=True, slots=True)
class SwarmService:
    """A service of ours. `version` makes an update fail if another update came first.

    `spec` is its whole specification, as Swarm returns it.
    """

    id: str
    name: str
    version: int
    replicas: int
    pool: str
    spec_digest: str
    spec: Mapping[str, object] = field(default_factory=dict)


def read_task(data: object) -> SwarmTask:
    """Read one element of the answer to `GET /tasks`; missing fields are empty."""
    status, spec = _mapping(data, "Status"), _mapping(_mapping(data, "Spec"), "ContainerSpec")
    container = _mapping(status, "ContainerStatus")
    labels = _mapping(spec, "Labels")
    return SwarmTask(
        id=_text(data, "ID"),
        service=_text(data, "ServiceID"),
        slot=_number(data, "Slot"),
        node=_text(data, "NodeID"),
        state=_text(status, "State"),
        desired=_text(data, "DesiredState"),
        created_seconds=_instant(_text(data, "CreatedAt")),
        container=_text(container, "ContainerID"),
        code=_number(container, "ExitCode"),
        message=_text(status, "Message"),
        error=_text(status, "Err"),
        stop_signal=_text(spec, "StopSignal"),
        labels={str(key): str(value) for key, value in labels.items()},
    )


def read_service(data: object) -> SwarmService:
    """Read one element of the answer to `GET /services`."""
    spec = _mapping(data, "Spec")
    labels = _mapping(spec, "Labels")
    return SwarmService(
        id=_text(data, "ID"),
        name=_text(spec, "Name"),
        version=_number(_mapping(data, "Version"), "Index"),
        replicas=_number(_mapping(_mapping(spec, "Mode"), "Replicated"), "Replicas"),
        pool=_text(labels, POOL_LABEL),
        spec_digest=_text(labels, SPEC_LABEL),
        spec=spec,
    )


def down_nodes(nodes: Iterable[object]) -> Mapping[str, str]:
    """Read the answer to `GET /nodes`: return the names of the nodes that the managers have lost, by id."""
    return {
        _text(node, "ID"): _text(_mapping(node, "Description"), "Hostname")
        for node in nodes
        if _text(_mapping(node, "Status"), "State") == "down"
    }


def worker_of(pool: str, task: SwarmTask) -> str:
    """Return the name of the worker that a task is; `service.worker_template` gives its container the same."""
    return f"{pool}.{task.slot}.{task.id}"


def handle_of(task: SwarmTask, *, now: Monotonic, wall_seconds: float) -> WorkerHandle | None:
    """Return the handle of the worker that a task is; None when its labels don't tell."""
    labels = task.labels or {}
    pool = labels.get(POOL_LABEL, "")
    if not pool:
        return None
    spawned_at = Monotonic(now - max(0.0, wall_seconds - task.created_seconds))
    return WorkerHandle(worker_of(pool, task), pool, REF_PREFIX + task.id, labels.get(SPEC_LABEL, ""), spawned_at)


def exit_of(handle: WorkerHandle, task: SwarmTask, *, at: Monotonic) -> Exit:
    """Return how a worker ended, from its ended task.

    An exit code above 128 is the signal that ended it, as everywhere in Docker. Neither is set if its container never
    ran.
    """
    code, number = _code_and_signal(task)
    is_stopped = task.state == "shutdown"  # a state of tasks that Swarm itself has ended
    return Exit(
        *(handle.worker, handle.pool, handle.ref, at),
        code=code,
        signal=number,
        reason=_reason(task),
        is_stopped=is_stopped,
    )


def vanished(handle: WorkerHandle, *, at: Monotonic) -> Exit:
    """Return the exit of a worker whose task Swarm no longer knows."""
    return Exit(handle.worker, handle.pool, handle.ref, at, reason="its task is gone from the swarm")


def lost(handle: WorkerHandle, node: str, *, at: Monotonic) -> Exit:
    """Return the exit of a worker whose node the managers lost; it is told to end should the node return."""
    return Exit(handle.worker, handle.pool, handle.ref, at, reason=f"its node {node} is down")


def _code_and_signal(task: SwarmTask) -> tuple[int | None, int | None]:
    if not task.container or (task.state not in {"complete", "shutdown", "failed"}):
        return None, None
    if task.state == "failed" and task.code == 0:  # the container was created, and could not be started
        return None, None
    if _SIGNALLED_BASE < task.code <= _SIGNALLED_BASE + _LAST_SIGNAL:
        return None, task.code - _SIGNALLED_BASE
    return task.code, None


def _reason(task: SwarmTask) -> str:
    if task.error and not _EXIT_CODE_TOLD.fullmatch(task.error):
        return task.error
    if task.state == "shutdown":
        return "by Swarm, as when its node is drained"
    if task.state == "orphaned":
        return "its node was unavailable for too long"
    if task.state in _UNPLACED:
        return "it was never placed on a node"
    return ""


def _mapping(data: object, key: str) -> Mapping[str, object]:
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _text(data: object, key: str) -> str:
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else ""


def _number(data: object, key: str) -> int:
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, int) else 0


def _instant(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def by_service(tasks: Iterable[SwarmTask]) -> Mapping[str, Sequence[SwarmTask]]:
    """Group tasks by their service's id."""
    found: dict[str, list[SwarmTask]] = {}
    for task in tasks:
        found.setdefault(task.service, []).append(task)
    return found
