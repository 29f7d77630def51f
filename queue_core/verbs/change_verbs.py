"""The verbs that change tasks without their leases' tokens, once for all stores: see `ChangeVerbs`.

Each says which tasks it means (a `Selector`) and what becomes of one (a function of `semantics`). A store brings two
primitives, `hold` and `change`, and keeps counters, lanes, names and samples in the second alone (ADR 124).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from queue_core import semantics
from queue_core.attempts.attempt import WORKER_DIED, Failure
from queue_core.clock import NEVER, Instant
from queue_core.errors import QueueMovedError, StoreUnavailableError, UnknownQueueError
from queue_core.fast_values import value
from queue_core.limits import FARTHEST_ETA_SECONDS, check_eta
from queue_core.semantics import LeaseEnd
from queue_core.stats import DELETED_BY_NAME, PURGED, FinishedLease, TaskRemoval
from queue_core.task import QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.verbs import NameOutcome

RecordT = TypeVar("RecordT")
_BEFORE_ID = attrgetter("before.id")
_FIRST = itemgetter(0)

UNLEASED = (TaskState.READY, TaskState.HELD, TaskState.DELAYED)
"""The states of living tasks that nobody has leased, in the order in which a purge removes them."""
READY_OR_HELD = frozenset({TaskState.READY, TaskState.HELD})
PIECE_TASKS = 1000
"""Tasks that one piece of a purge or a redrive handles: more keep other callers waiting for longer."""
MAX_TRIES = 20
"""How often a change is tried again whose tasks were changed by others between `hold` and `change`."""


# -- which tasks ------------------------------------------------------------------------------------------------------


Depth: TypeAlias = Literal["id", "task", "whole"]
"""How much `hold` reads of a task: enough to remove it, all but the payload and what goes with it, or all.

With the payload go attempts, progress and checkpoint. Where a store has not read the attempts of a task, those that a
`LeaseEnd` has follow the ones that are stored.
"""


@dataclass(frozen=True, slots=True)
class Named:
    """The tasks of these given or chosen names, in this order.

    Args:
        settles: whether what is due is expired before.
        depth: what is read of them.
    """

    names: Sequence[str]
    settles: bool = True
    depth: Depth = "task"


@dataclass(frozen=True, slots=True)
class InStates:
    """Up to `limit` tasks of these tags in these states; leased ones by when they end."""

    states: tuple[TaskState, ...]
    tags: TagFilter
    limit: int
    depth: Depth = "task"


@dataclass(frozen=True, slots=True)
class LeasedBy:
    """Up to `limit` tasks under a live lease of a worker, by their ids.

    `begin`: only leases that end then or later, where a store goes on there after the first `limit`.
    """

    worker: str
    limit: int
    begin: Instant = NEVER

    def rest(self, found: int) -> "LeasedBy | None":
        """Return what is left after the first `found` are changed, in a store that finds these first."""
        return self if found >= self.limit else None


Selector: TypeAlias = Named | InStates | LeasedBy


def named(names: Sequence[str], *, depth: Depth = "task") -> Named:
    """Return the tasks of these names, each once."""
    return Named(list(dict.fromkeys(names)), depth=depth)


@dataclass(frozen=True, slots=True)
class HeldTasks(Generic[RecordT]):
    """The tasks that a verb may change, as a store's own records of them; `task_of` reads one (of depth "id": none).

    A record of depth "id" may stand for any task of the selector, so that all are the same. `names`: the name that
    selected each, if names did. `is_repeat`: an earlier try of the same call of a client changed these tasks, and none
    is changed again. `rest`: what else the verb means, which is held after these were changed.
    """

    spec: QueueSpec
    records: Sequence[RecordT]
    task_of: Callable[[RecordT], StoredTask]
    names: Sequence[str] = ()
    is_repeat: bool = False
    rest: Selector | None = None


# -- what becomes of one ----------------------------------------------------------------------------------------------


class Removed(Enum):
    """A task without a lease is removed; `DELETED` counts it as a deletion."""

    UNCOUNTED = "removed"
    DELETED = "deleted"


Outcome: TypeAlias = StoredTask | LeaseEnd | Removed
"""A task as it is afterwards (READY: or HELD, where its tag's lane says so), the end of its lease, or its removal."""
Transition: TypeAlias = Callable[[StoredTask, QueueSpec], Outcome]
"""A function from a task to what becomes of it; one that returns the same object leaves the task as it is."""


@value
class Changed:
    """A task that a verb changed, as it was, and its outcome. `name`: see `HeldTasks.names`."""

    name: str
    before: StoredTask
    outcome: Outcome

    @property
    def task(self) -> StoredTask:
        """The task as it is afterwards. Only for a verb that neither removes tasks nor ends leases."""
        assert isinstance(self.outcome, StoredTask)
        return self.outcome

    @property
    def finished(self) -> FinishedLease:
        """The record of the lease that ended. Only for a verb that ends leases."""
        assert isinstance(self.outcome, LeaseEnd)
        return self.outcome.finished


class ChangeVerbs(Generic[RecordT]):
    """The verbs of `Transaction` over `hold` and `change`; a store's transaction extends it."""

    __slots__ = ()

    leases_per_change: ClassVar[int] = 1000
    """How many leases of a dead worker are released at a time: PostgreSQL ends a connection that stands still in a
    transaction for 5 s, and nobody else is served while Redis changes them."""

    @abstractmethod
    def hold(self, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[RecordT]:
        """Return the tasks that `selector` means.

        Until the transaction ends nobody else changes them, or else `change` finds out. Raises `UnknownQueueError`,
        `QueueMovedError`.
        """

    @abstractmethod
    def change(self, queue: str, changes: Sequence[tuple[RecordT, Outcome]], *, now: Instant) -> bool:
        """Write what became of tasks of `hold`; False: others changed one of them, and nothing is written."""

    @property
    def keeps_answers(self) -> bool:
        """Return whether `change` is to be told even of no changes, as it then does nothing when it is repeated."""
        return False

    @abstractmethod
    def taken_names(self, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
        """Return which of these names refuse an add."""

    @abstractmethod
    def fence_worker(self, worker: str, *, now: Instant) -> list[str]:
        """Retire a worker; return the queues in which it may have live leases, but for those that were moved away."""

    def _write(
        self, queue: str, find: Callable[[], list[tuple[RecordT, Outcome]]], *, now: Instant
    ) -> list[tuple[RecordT, Outcome]]:
        """Write the changes that `find` returns, which it finds anew as long as others change the same tasks."""
        for _ in range(MAX_TRIES):
            changes = find()
            if not (changes or self.keeps_answers) or self.change(queue, changes, now=now):
                return changes
        raise StoreUnavailableError(
            f"queue {queue}: others changed the same tasks {MAX_TRIES} times in a row; nothing was changed: try again"
        )

    def apply(self, queue: str, selector: Selector, transition: Transition, *, now: Instant) -> list[Changed]:
        """See `Transaction.apply`."""
        changed, _ = self._apply_some(queue, selector, transition, now=now)
        return changed if isinstance(selector, Named) else sorted(changed, key=_BEFORE_ID)

    def _apply_some(
        self, queue: str, selector: Selector, transition: Transition, *, now: Instant
    ) -> tuple[list[Changed], Selector | None]:
        """Change the tasks that `selector` means; also return what is left to change: see `HeldTasks.rest`."""
        changed: list[Changed] = []
        rest: Selector | None = None

        def find() -> list[tuple[RecordT, Outcome]]:
            nonlocal rest
            changed.clear()
            held = self.hold(queue, selector, now=now)
            rest = held.rest
            changes: list[tuple[RecordT, Outcome]] = []
            for name, record in zip(held.names or repeat(""), held.records, strict=False):
                before = held.task_of(record)
                outcome = transition(before, held.spec)
                if outcome is not before:
                    changed.append(Changed(name, before, outcome))
                    changes.append((record, outcome))
            return changes

        self._write(queue, find, now=now)
        return changed, rest

    # -- the verbs: see `Transaction` -------------------------------------------------------------------------------

    def delete_by_name(
        self, queue: str, names: Sequence[str], *, removal: TaskRemoval = DELETED_BY_NAME, now: Instant
    ) -> list[NameOutcome]:
        """Delete tasks in any state, without checking leases."""
        unleased = Removed.UNCOUNTED if removal.holder is None else Removed.DELETED

        def remove(task: StoredTask, _: QueueSpec) -> Outcome:
            return semantics.remove(task, removal, now=now) if task.state is TaskState.LEASED else unleased

        gone = {each.name for each in self.apply(queue, named(names), remove, now=now)}
        taken = self.taken_names(queue, names, now=now) if len(gone) < len(names) else set()
        outcomes: list[NameOutcome] = []
        for name in names:
            outcomes.append("deleted" if name in gone else "tombstoned" if name in taken else "unknown")
            gone.discard(name)
        return outcomes

    def purge(self, queue: str, tags: TagFilter, *, limit: int, removal: TaskRemoval = PURGED, now: Instant) -> int:
        """Delete tasks of these tags in any state but dead. Those that nobody has leased are not even read."""

        def find() -> list[tuple[RecordT, Outcome]]:
            held = self.hold(queue, InStates(UNLEASED, tags, limit, depth="id"), now=now)
            changes = _removals(held.records)
            if len(changes) < limit and not held.is_repeat:
                leased = self.hold(queue, InStates((TaskState.LEASED,), tags, limit - len(changes)), now=now)
                ends = (semantics.remove(leased.task_of(record), removal, now=now) for record in leased.records)
                changes += zip(leased.records, ends, strict=True)
            return changes

        return len(self._write(queue, find, now=now))

    def purge_dead(self, queue: str, tags: TagFilter, *, limit: int, now: Instant) -> int:
        """Delete dead tasks of these tags."""
        dead = InStates((TaskState.DEAD,), tags, limit, depth="id")
        return len(self._write(queue, lambda: _removals(self.hold(queue, dead, now=now).records), now=now))

    def postpone(self, queue: str, name: str, *, expected: Instant, eta: Instant, now: Instant) -> bool:
        """Move the eta of a delayed task if it is `expected`."""
        check_eta(eta, now=now, most_seconds=FARTHEST_ETA_SECONDS)

        def postpone(task: StoredTask, _: QueueSpec) -> Outcome:
            is_meant = semantics.is_delayed_until(task, expected, now=now)
            return semantics.postpone(task, eta=eta, now=now) if is_meant else task

        return bool(self.apply(queue, Named([name], settles=False), postpone, now=now))

    def release_worker(self, worker: str, *, failure: Failure = WORKER_DIED, now: Instant) -> list[FinishedLease]:
        """Give back every lease that a dead worker holds, and retire it."""

        def release(task: StoredTask, spec: QueueSpec) -> Outcome:
            return semantics.release(task, spec, delay_seconds=None, now=now, failure=failure)

        released: list[FinishedLease] = []
        for queue in self.fence_worker(worker, now=now):
            ended: list[tuple[int, FinishedLease]] = []
            rest: Selector | None = LeasedBy(worker, self.leases_per_change)
            with suppress(UnknownQueueError, QueueMovedError):  # since it was listed
                while rest is not None:
                    some, rest = self._apply_some(queue, rest, release, now=now)
                    ended += [(each.before.id, each.finished) for each in some]
            released += [finished for _, finished in sorted(ended, key=_FIRST)]
        return released


def _removals(records: Sequence[RecordT]) -> list[tuple[RecordT, Outcome]]:
    return [(record, Removed.UNCOUNTED) for record in records]
