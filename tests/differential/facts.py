"""Facts about every task beside the stub: when it was added, the ends of its leases, when it went."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any  # the stub's tasks have no types

from queue_core.limits import NAME_RETENTION_SECONDS
from tests.differential.google_stub import GoogleStub

RETENTION = round(NAME_RETENTION_SECONDS * 1e6)
MINUTE = 60_000_000


@dataclass(slots=True)
class Known:
    """A task that was added.

    Args:
        sequence: its place in the order of all adds.
        etas: all its etas, in order.
        leased_at: the instant of its last lease, unique; 0: never.
        gone_at: since when only its name is remembered; None while it exists.
    """

    sequence: int
    added_at: int
    is_chosen: bool
    etas: list[int] = field(default_factory=list)
    leased_at: int = 0
    gone_at: int | None = None


@dataclass(slots=True)
class TaskFacts:
    """Facts of all queues; names are the stub's."""

    known: dict[str, dict[bytes, Known]]
    leased_at: dict[str, list[int]]
    ours: dict[str, dict[bytes, bytes]]
    """Names that the stub chose, to those that our queue chose."""
    added: int = 0

    @classmethod
    def of(cls, queues: Mapping[str, int | None]) -> "TaskFacts":
        """Return empty facts for these queues."""
        return cls({name: {} for name in queues}, {name: [] for name in queues}, {name: {} for name in queues})

    def note_added(self, queue: str, name: bytes, *, chosen: bytes | None, now: int) -> None:
        """Record an added task; `chosen`: the name that our queue chose for it."""
        self.known[queue][name] = Known(self.added, now, chosen is not None)
        self.added += 1
        if chosen is not None:
            self.ours[queue][name] = chosen

    def note_tasks(self, stub: GoogleStub, queue: str, gone: Mapping[bytes, int], *, now: int) -> None:
        """Record what the stub holds after a call; `gone`: since when a task is gone, if not now."""
        live = {bytes(task.task_name): task for task in stub.tasks(queue)}
        for name, known in self.known[queue].items():
            task = live.get(name)
            if task is None:
                known.gone_at = known.gone_at if known.gone_at is not None else gone.get(name, now)
            elif not known.etas or known.etas[-1] != task.eta_usec:
                known.etas.append(task.eta_usec)

    def theirs(self, queue: str) -> dict[bytes, bytes]:
        """Return names that our queue chose, to those that the stub chose."""
        return {ours: theirs for theirs, ours in self.ours[queue].items()}

    def leased_since(self, queue: str, start: int) -> int:
        """Return the leases granted after `start`."""
        return sum(at > start for at in self.leased_at[queue])


def limit_of(task: Any, queue: Any) -> int | None:
    """Return how many leases the stub grants of a task."""
    for parameters in (task.retry_parameters if task.HasField("retry_parameters") else None, queue.retry_parameters):
        if parameters is not None:
            return parameters.retry_limit if parameters.HasField("retry_limit") else None
    return None
