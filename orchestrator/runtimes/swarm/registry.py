"""The workers that a swarm runtime believes in, and the exits that nobody has collected yet; for several threads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Condition
from typing import Final, Literal

from orchestrator.clock import Monotonic
from orchestrator.runtime import Exit, WorkerHandle
from orchestrator.runtimes.swarm.tasks import REF_PREFIX, SwarmTask

NEVER: Final = Monotonic(float("-inf"))

Asked = Literal["", "drain", "kill"]
_URGENCY: Mapping[Asked, int] = {"": 0, "drain": 1, "kill": 2}


@dataclass(frozen=True, slots=True)
class SwarmWorker:
    """One worker. `task` is what Swarm told of it last, None before.

    `signalled` is what of `asked` it was sent; `is_out_of_reach`: no engine in reach has its container;
    `is_disowned`: the queue was told to take back what it holds.
    """

    handle: WorkerHandle
    stop_signal: str = "SIGTERM"
    task: SwarmTask | None = None
    asked: Asked = ""
    asked_at: Monotonic = NEVER
    signalled: Asked = ""
    is_out_of_reach: bool = False
    is_disowned: bool = False

    @property
    def task_id(self) -> str:
        """The id of the task it is."""
        return self.handle.ref.removeprefix(REF_PREFIX)


class SwarmRegistry:
    """Who is there. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._members: dict[str, SwarmWorker] = {}
        self._exits: list[Exit] = []
        self._buried: set[str] = set()
        self._is_woken = False

    def join(self, member: SwarmWorker) -> bool:
        """A worker is known from now on; False when it was before."""
        with self._changed:
            if member.handle.worker in self._members:
                return False
            self._members[member.handle.worker] = member
            return True

    def members(self) -> Mapping[str, SwarmWorker]:
        """The workers as they are now, by name."""
        with self._changed:
            return dict(self._members)

    def knows(self, task_id: str) -> bool:
        """Whether a task is, or was, a worker that we believe or believed in."""
        with self._changed:
            return task_id in self._buried or any(one.task_id == task_id for one in self._members.values())

    def ask(self, worker: str, what: Asked, *, at: Monotonic) -> None:
        """A worker is to go; unknown: no effect. A kill that is asked again is sent again."""
        with self._changed:
            member = self._members.get(worker)
            if member is None or _URGENCY[what] < _URGENCY[member.asked]:
                return
            again = what == "kill" and member.signalled == "kill"
            self._members[worker] = replace(
                member,
                asked=what,
                asked_at=member.asked_at if member.asked else at,
                signalled="" if again else member.signalled,
            )

    def signalled(self, worker: str, what: Asked) -> None:
        """A worker was sent what it was asked."""
        self._change(worker, lambda member: replace(member, signalled=what, is_out_of_reach=False))

    def not_reached(self, worker: str) -> None:
        """A worker's container can't be sent a signal."""
        self._change(worker, lambda member: replace(member, is_out_of_reach=True))

    def disowned(self, worker: str) -> None:
        """The queue has taken back what a worker holds, and refuses it."""
        self._change(worker, lambda member: replace(member, is_disowned=True))

    def saw(self, worker: str, task: SwarmTask) -> None:
        """What Swarm told of a worker's task."""
        self._change(worker, lambda member: replace(member, task=task))

    def bury(self, ended: Exit) -> None:
        """A worker has ended: it is told to whoever reaps next, once."""
        with self._changed:
            member = self._members.pop(ended.worker, None)
            if member is None:
                return
            self._buried.add(member.task_id)
            self._exits.append(ended)
            self._changed.notify_all()

    def forget_buried(self, known: Sequence[SwarmTask]) -> None:
        """Keep of the ended only those whose tasks Swarm still tells of."""
        ids = {task.id for task in known}
        with self._changed:
            self._buried &= ids

    def collect(self, *, at: Monotonic) -> list[Exit]:
        """The exits since the last call."""
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
