"""The workers of a swarm runtime, and their exits that are not collected yet. Thread-safe."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Condition
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.runtime import Exit, WorkerHandle
from orchestrator.runtimes.swarm.tasks import REF_PREFIX, SwarmTask

NEVER: Final = Monotonic(float("-inf"))

ExitRequest = Literal["", "drain", "kill"]
_URGENCY: Mapping[ExitRequest, int] = {"": 0, "drain": 1, "kill": 2}


@dataclass(frozen=True, slots=True)
class SwarmWorker:
    """A worker. `task` is its task as Swarm last described it; None before.

    `signalled` is the part of `requested` that was delivered. `is_unreachable`: no reachable engine has its container.
    `is_disowned`: the queue has taken back its leases and refuses it.
    """

    handle: WorkerHandle
    stop_signal: str = "SIGTERM"
    task: SwarmTask | None = None
    requested: ExitRequest = ""
    requested_at: Monotonic = NEVER
    signalled: ExitRequest = ""
    is_unreachable: bool = False
    is_disowned: bool = False

    @property
    def task_id(self) -> str:
        """The id of its task."""
        return self.handle.ref.removeprefix(REF_PREFIX)


class SwarmRegistry:
    """All workers of one runtime. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._members: dict[str, SwarmWorker] = {}
        self._exits: list[Exit] = []
        self._ended: set[str] = set()
        self._is_woken = False

    def join(self, member: SwarmWorker) -> bool:
        """Add a worker; False when it was known before."""
        with self._changed:
            if member.handle.worker in self._members:
                return False
            self._members[member.handle.worker] = member
            return True

    def let_go(self, worker: str) -> None:
        """Forget a worker, which another supervisor has adopted."""
        with self._changed:
            self._members.pop(worker, None)

    def members(self) -> Mapping[str, SwarmWorker]:
        """Return the current workers by name."""
        with self._changed:
            return dict(self._members)

    def knows(self, task_id: str) -> bool:
        """Return whether a task is, or was, one of our workers."""
        with self._changed:
            return task_id in self._ended or any(one.task_id == task_id for one in self._members.values())

    def request(self, worker: str, what: ExitRequest, *, at: Monotonic) -> None:
        """Request a worker's end; no effect on an unknown one. A repeated kill is delivered again."""
        with self._changed:
            member = self._members.get(worker)
            if member is None or _URGENCY[what] < _URGENCY[member.requested]:
                return
            again = what == "kill" and member.signalled == "kill"
            self._members[worker] = replace(
                member,
                requested=what,
                requested_at=member.requested_at if member.requested else at,
                signalled="" if again else member.signalled,
            )

    def mark_signalled(self, worker: str, what: ExitRequest) -> None:
        """Record that the request was delivered to the worker."""
        self._change(worker, lambda member: replace(member, signalled=what, is_unreachable=False))

    def mark_unreachable(self, worker: str) -> None:
        """Record that the worker's container can't be signalled."""
        self._change(worker, lambda member: replace(member, is_unreachable=True))

    def mark_disowned(self, worker: str) -> None:
        """Record that the queue has taken back the worker's leases and refuses it."""
        self._change(worker, lambda member: replace(member, is_disowned=True))

    def update_task(self, worker: str, task: SwarmTask) -> None:
        """Record the worker's task as Swarm describes it."""
        self._change(worker, lambda member: replace(member, task=task))

    def record_exit(self, ended: Exit) -> None:
        """Move a worker to the exits, once."""
        with self._changed:
            member = self._members.pop(ended.worker, None)
            if member is None:
                return
            self._ended.add(member.task_id)
            self._exits.append(ended)
            self._changed.notify_all()

    def forget_ended(self, known: Sequence[SwarmTask]) -> None:
        """Forget ended workers whose tasks Swarm no longer lists."""
        ids = {task.id for task in known}
        with self._changed:
            self._ended &= ids

    def collect(self, *, at: Monotonic) -> list[Exit]:
        """Return the exits since the last call."""
        with self._changed:
            exits, self._exits = self._exits, []
        return [replace(ended, at=at) for ended in exits]

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until there is an exit to collect (True), `wake` is called, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._exits or self._is_woken, timeout=max(0.0, timeout_seconds))
            self._is_woken = False
            return bool(self._exits)

    def wake(self) -> None:
        """End a `wait` in another thread early."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _change(self, worker: str, change: Callable[[SwarmWorker], SwarmWorker]) -> None:
        with self._changed:
            if worker in self._members:
                self._members[worker] = change(self._members[worker])
