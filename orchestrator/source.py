"""The protocol of a work source: the queue as the supervisor sees it. It uses no types of queue_core."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import PresentWorker, QueueSample, UnservedTag
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict


@dataclass(frozen=True, slots=True)
class ReleasedTask:
    """A task that was released on behalf of a dead worker; its token is left out."""

    queue: str
    task: str
    tag: str | None
    held_seconds: float
    lease_number: int = 1
    died: bool = False
    deleted: bool = False
    """Somebody deleted it while it was running."""


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """The arguments of one sample: see `WorkSource.sample`."""

    pool: PoolSpec
    workers: Collection[str]
    ahead_seconds: float = 0.0


class TickAdder(Protocol):
    """The schedules of a store: the leading supervisor declares them, and adds a task at each of their ticks.

    A schedule is JSON here, as a settings file and an application give it.
    """

    def set_file(self, schedules: Sequence[Mapping[str, object]]) -> Sequence[str]:
        """Set the schedules of the settings file; return the names of those that were added, changed or removed."""

    def set_pools(self, pools: Collection[PoolSpec]) -> None:
        """Set the pools: the schedules of applications that none of them has disappear."""

    def set_application(self, app: str, schedules: Sequence[Mapping[str, object]]) -> None:
        """Set the schedules of an application that was imported."""

    def run(self, *, now: Monotonic) -> None:
        """Declare what has changed, and add the tasks of the ticks that are due. Raises nothing; belongs to a leader.

        A call costs nothing before `due_at`.
        """

    @property
    def due_at(self) -> Monotonic:
        """The instant at which `run` has something to do, at the latest."""


class WorkSource(Protocol):
    """The queue as the supervisor sees it. Every verb may raise `SourceUnavailableError`; none blocks for long."""

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        """Sample the pool's work. Finished leases and arrivals are those since the previous sample.

        `workers` are the pool's live workers, for `first_seen_seconds_ago` and `presence`; `ahead_seconds` is how far
        ahead `upcoming` looks.
        """

    def samples(
        self, queries: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        """Sample several pools in as few calls as possible; return the results by the pool's name.

        A pool that is left out must be sampled with `sample`. Raises nothing.
        """

    def unserved(self, pools: Sequence[PoolSpec]) -> Sequence[UnservedTag]:
        """Return the tags of waiting tasks that none of these pools, all those of one queue, works on.

        Left out are tags of which a lease is held. The cost is bounded; of a thousand tags more may be left out.
        """

    def publish(self, pools: Sequence[PoolSpec], *, gone: Collection[str] = ()) -> None:
        """Register the tags that pools work on, for clients that add tasks; end the registrations of `gone` pools."""

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        """Return the workers of the pool that called for leases recently, including those that others started."""

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        """Fence a worker: from now on it gets no lease, and its waiting lease call ends. False when it holds a lease.

        A worker that holds a lease is left alone (`keep`), or fenced and allowed to finish its leases (`finish`).
        """

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        """Return the tasks that a worker itself released in the last seconds and that no sample has reported yet."""

    def lapsed_by(self, worker: str, pool: PoolSpec, *, named: Collection[str] = ()) -> Sequence[ReleasedTask]:
        """Return the tasks whose leases ended by themselves while a worker, now dead, held them: nobody ended them.

        Those that are `named`; without names, those since it last ended a lease itself. As far as samples have shown.
        """

    def release_held_by(self, worker: str, notice: DeathNotice) -> Sequence[ReleasedTask]:
        """Release every lease of a dead worker at once; return its tasks. They keep the notice with their attempts."""

    def give_back(self, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> Sequence[ReleasedTask]:
        """Release the tasks of a worker that was stopped from outside, without counting their leases.

        Return those that were still leased by it.
        """

    def held_by(self, worker: str, pool: PoolSpec, *, payload_bytes: int = 0) -> Sequence[SuspectedTask]:
        """Return the tasks of its pool's queue that a dead worker holds; where thousands are held, those known.

        `payload_bytes`: how much of each payload comes along.
        """

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        """Return whether a worker has ended a lease of the pool's queue since that pool's last sample."""

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> Sequence[str]:
        """Hold tasks back or make them dead as the verdicts say; the others stay leased.

        Return for each the mark of a task that is now held back; "" for others, and for one that is no longer leased.
        """

    def recall(self, tasks: Sequence[IsolatedTask]) -> None:
        """Make tasks that were held back leasable by any worker again; one no longer held back is left as it is."""

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        """Sleep until a task becomes leasable in one of the pools and return its name; None when the time is up."""

    def kept(self) -> str | None:
        """Return the text that the supervisors of this store keep in it; None: none was kept yet."""

    def keep(self, text: str) -> None:
        """Keep this text in place of the earlier one."""

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        """Become or stay the leader among the supervisors of this store for `seconds`; False when another leads."""
