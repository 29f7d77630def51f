"""Where a supervisor sees work. The protocol speaks of workers and samples, never of a queue's own types."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.samples import PresentWorker, QueueSample


@dataclass(frozen=True, slots=True)
class ReleasedTask:
    """A task that was given back on behalf of a dead worker; its token is not told."""

    queue: str
    task: str
    tag: str | None
    held_seconds: float
    lease_number: int = 1
    died: bool = False


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """What one look is to be of: see `WorkSource.sample`."""

    pool: PoolSpec
    workers: Collection[str]
    ahead_seconds: float = 0.0


class WorkSource(Protocol):
    """The queue as the supervisor meets it. Every verb may raise `SourceUnavailableError`; none waits long."""

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        """Look once at the pool's work. Finished leases and arrivals are told once: since the sample before.

        `workers` are the pool's live workers, whose `first_seen_seconds_ago` is wanted; `ahead_seconds` is how far
        ahead its `upcoming` goes.
        """

    def samples(
        self, asked: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        """Look once at the work of several pools, as cheaply as that can be done.

        By the pool's name. One that is left out is to be looked at by `sample`. Raises nothing.
        """

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        """Workers of the pool, by their names, that asked for leases lately, whoever started them."""

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        """Fence a worker: from now on it gets no lease, and its waiting lease call ends. False when it holds a lease.

        Then nothing is changed (`keep`), or it is fenced all the same, and keeps what it holds (`finish`).
        """

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        """What a worker gave back itself in the last seconds, as far as no sample has told of it."""

    def release_held_by(self, worker: str) -> Sequence[ReleasedTask]:
        """Give back every lease a dead worker holds, at once; returns what it was working on."""

    def give_back(self, tasks: Sequence[SuspectedTask]) -> Sequence[ReleasedTask]:
        """Make leasable at once what a worker held that others stopped, without counting its leases.

        Returns the tasks that were still its own.
        """

    def held_by(self, worker: str, pool: PoolSpec) -> Sequence[SuspectedTask]:
        """What a dead worker holds of its pool's queue; of thousands that are held there, as far as it is known."""

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        """Whether a worker has ended a lease of the pool's queue since the last sample of that pool."""

    def settle(self, fates: Sequence[TaskVerdict]) -> Sequence[str]:
        """Hold back, or make dead, what is to be so, and leave the rest held.

        For each the mark of a task that is held back now; "" for others, and for one that had moved on by itself.
        """

    def recall(self, suspects: Sequence[IsolatedTask]) -> None:
        """Let anybody have tasks again that were held back; one that is not held back any more is left as it is."""

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        """Sleep until a task becomes leasable in a pool (its name is returned) or the time is up (None)."""

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        """Take or keep the lead among supervisors on this store for `seconds`; False when another has it."""
