"""A runtime without processes and a source without a queue, for tests of the code between them."""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError, SpawnError
from orchestrator.base.samples import PresentWorker, QueueSample, RunningLease, UnservedTag, Waiting
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.placement import Placement
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.runtime import NOTHING_KNOWN, ApplicationReport, Exit, SpawnRequest, Usage, WorkerHandle
from orchestrator.source import ReleasedTask, SampleQuery


class FakeRuntime:
    """A `Runtime` whose workers live until a test ends them. `calls` lists the calls it got, in order."""

    def __init__(self) -> None:
        self.live: dict[str, WorkerHandle] = {}
        self.requests: dict[str, SpawnRequest] = {}
        self.calls: list[tuple[str, str]] = []
        self.left_running: list[WorkerHandle] = []
        self.remembered: list[WorkerHandle] = []
        self.in_fleet: list[WorkerHandle] = []
        self.remembered_by_fleet: list[WorkerHandle] = []
        self.kind = "fake"
        self.refuses = ""
        self.condition = ""
        self.forks_left: dict[str, int] = {}
        self.applications: dict[str, ApplicationReport | None] = {}
        self.memory_bytes = 1_000_000
        self.cpu_seconds: dict[str, float] = {}
        self.is_unreported = False
        self.places: dict[str, Placement] = {}
        self._exits: list[Exit] = []
        self._woken = threading.Event()

    def end(
        self,
        worker: str,
        *,
        now: Monotonic,
        code: int | None = None,
        signal: int | None = None,
        last_lines: Sequence[str] = (),
    ) -> None:
        """End the worker; the next `reap` reports it."""
        handle = self.live.pop(worker)
        self._exits.append(
            Exit(worker, handle.pool, handle.ref, now, code=code, signal=signal, last_lines=tuple(last_lines))
        )
        self._woken.set()

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        if self.refuses:
            raise SpawnError(self.refuses)
        self.calls.append(("spawn", request.worker))
        ref = f"{self.kind}:{len(self.requests) + 1}"
        pool = request.pool
        handle = WorkerHandle(request.worker, pool.name, ref, pool.digest(), now, is_forked=self.forks(pool))
        self.forks_left[pool.name] = self.forks_left.get(pool.name, 0) - 1
        self.requests[request.worker] = request
        self.live[request.worker] = handle
        return handle

    def forks(self, pool: PoolSpec) -> bool:
        return self.forks_left.get(pool.name, 0) > 0

    def application(self, request: SpawnRequest, *, since: Monotonic, now: Monotonic) -> ApplicationReport | None:
        return self.applications.get(request.pool.name, NOTHING_KNOWN)

    def drain(self, worker: str) -> None:
        self.calls.append(("drain", worker))

    def insist(self, worker: str, signal: str) -> None:
        self.calls.append((signal, worker))

    def kill(self, worker: str) -> None:
        self.calls.append(("kill", worker))

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        self.calls.append((f"examine before {before}", worker))
        return self.condition

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        exits, self._exits = self._exits, []
        return exits

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        self.remembered_by_fleet = list(remembered)
        found, self.in_fleet = self.in_fleet, []
        found = [handle for handle in found if handle.worker not in self.live]
        self.live.update({handle.worker: handle for handle in found})
        return found

    def let_go(self, workers: Collection[str]) -> None:
        for worker in workers:
            self.calls.append(("let go", worker))
            self.live.pop(worker, None)

    def adopt_own(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        self.remembered = list(remembered)
        found, self.left_running = self.left_running, []
        self.live.update({handle.worker: handle for handle in found})
        return found

    def usage(self) -> Mapping[str, Usage]:
        if self.is_unreported:
            return {}
        return {worker: Usage(self.memory_bytes, self.cpu_seconds.get(worker, 0.0)) for worker in self.live}

    def placements(self) -> Mapping[str, Placement]:
        return self.places

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        self._woken.wait(timeout_seconds)
        self._woken.clear()
        return bool(self._exits)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass


@dataclass
class FakeSource:
    """A `WorkSource` of one queue: `ready` tasks wait, each for `age_seconds`; `held` has each worker's tasks.

    `given_back` has what workers released themselves, with the seconds since. A worker is `seen` when a test says so,
    and sent its last request at `asked_at`; one that `leased_unseen` holds a lease that no sample shows, one that
    `worked_unseen` has ended one. `is_down` makes every verb fail; `leader` other than None leads instead.
    """

    ready: int = 0
    age_seconds: float = 0.0
    upcoming: Sequence[tuple[int, float]] = ()
    held: dict[str, list[str]] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)
    given_back: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    heard: list[PresentWorker] = field(default_factory=list)
    asked_at: dict[str, Monotonic] = field(default_factory=dict)
    leased_unseen: set[str] = field(default_factory=set)
    worked_unseen: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    released: list[str] = field(default_factory=list)
    lapsed: dict[str, list[str]] = field(default_factory=dict)
    notices: dict[str, DeathNotice] = field(default_factory=dict)
    leader: str | None = None
    text: str | None = None
    leads_given_up: int = 0
    lead_seconds: list[float] = field(default_factory=list)
    is_down: bool = False
    paused: bool = False
    leases: dict[str, int] = field(default_factory=dict)
    max_leases: int | None = None
    recalled: list[str] = field(default_factory=list)
    settled: list[tuple[str, str]] = field(default_factory=list)
    published: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    lease_tags: tuple[str | None, ...] | None = None
    sampled: list[tuple[str, ...] | None] = field(default_factory=list)
    unserved_tags: list[UnservedTag] = field(default_factory=list)
    arrival: threading.Event = field(default_factory=threading.Event)

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        self._answer()
        self.sampled.append(pool.tags)
        running = [RunningLease(worker, 0.5, 0.1, 1) for worker, tasks in self.held.items() for _ in tasks]
        return QueueSample(
            at=now,
            ready=self.ready,
            delayed=0,
            in_flight=len(running),
            dead=0,
            paused=self.paused,
            waiting=tuple(Waiting(position, self.age_seconds) for position in range(1, min(self.ready, 8) + 1)),
            running=tuple(running),
            first_seen_seconds_ago={worker: 0.0 for worker in workers if worker in self.seen},
            presence={
                worker: PresentWorker(worker, max(0.0, now - self.asked_at[worker]), waits=True, tags=self.lease_tags)
                for worker in workers
                if worker in self.asked_at
            },
            upcoming=tuple(Waiting(*one) for one in self.upcoming if -one[1] <= ahead_seconds),
        )

    def samples(
        self, asked: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        return {}

    def unserved(self, pools: Sequence[PoolSpec]) -> Sequence[UnservedTag]:
        self._answer()
        return [one for one in self.unserved_tags if one.queue == pools[0].queue]

    def publish(self, pools: Sequence[PoolSpec], *, gone: Collection[str] = ()) -> None:
        self._answer()
        self.published.update({pool.name: pool.tags for pool in pools})
        for name in gone:
            self.published.pop(name, None)

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        self._answer()
        return [one for one in self.heard if one.worker.startswith(f"{pool.name}/")]

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        self._answer()
        is_free = not (self.held.get(worker) or worker in self.leased_unseen)
        if is_free or busy == "finish":
            self.retired.add(worker)
        return is_free

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        self._answer()
        given = [(task, ago) for task, ago in self.given_back.pop(worker, []) if ago <= within_seconds]
        return [ReleasedTask(pool.queue, task, None, 0.5) for task, _ in given]

    def lapsed_by(self, worker: str, pool: PoolSpec, *, named: Collection[str] = ()) -> Sequence[ReleasedTask]:
        self._answer()
        return [
            ReleasedTask(pool.queue, task, None, 0.5)
            for task in self.lapsed.pop(worker, [])
            if not named or task in named
        ]

    def release_held_by(self, worker: str, notice: DeathNotice) -> Sequence[ReleasedTask]:
        self._answer()
        self.released.append(worker)
        self.notices[worker] = notice
        self.retired.add(worker)
        tasks = self.held.pop(worker, [])
        self.ready += len(tasks)
        return [ReleasedTask("thumbs", task, None, 0.5) for task in tasks]

    def held_by(self, worker: str, pool: PoolSpec, *, payload_bytes: int = 0) -> Sequence[SuspectedTask]:
        self._answer()
        return [
            SuspectedTask(
                pool.queue,
                task,
                None,
                0.5,
                self.leases.get(task, 1),
                self.max_leases,
                f"token of {task}",
                self.payloads.get(task, b"")[:payload_bytes],
            )
            for task in self.held.get(worker, ())
        ]

    def give_back(self, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> Sequence[ReleasedTask]:
        self._answer()
        for task in tasks:
            self.settled.append((task.task, "not counted"))
            for held in self.held.values():
                if task.task in held:
                    held.remove(task.task)
        return [ReleasedTask(t.queue, t.task, t.tag, t.held_seconds, t.lease_number) for t in tasks]

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        self._answer()
        return worker in self.worked_unseen

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> Sequence[str]:
        self._answer()
        marks = []
        for fate in verdicts:
            self.settled.append((fate.task.task, fate.verdict))
            for tasks in self.held.values():
                if fate.task.task in tasks:
                    tasks.remove(fate.task.task)
            marks.append("7.99" if fate.verdict == "held back" else "")
        return marks

    def recall(self, suspects: Sequence[IsolatedTask]) -> None:
        self._answer()
        self.recalled += [suspect.task.task for suspect in suspects]

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        self._answer()
        return pools[0].name if self.arrival.wait(timeout_seconds) else None

    def kept(self) -> str | None:
        self._answer()
        return self.text

    def keep(self, text: str) -> None:
        self._answer()
        self.text = text

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        self._answer()
        self.leads_given_up += seconds == 0.0
        self.lead_seconds.append(seconds)
        return self.leader is None

    def _answer(self) -> None:
        if self.is_down:
            raise SourceUnavailableError("the fake is down")


@dataclass
class FakeTicks:
    """A `TickAdder` that counts its runs."""

    file: Sequence[Mapping[str, object]] = ()
    pools: list[str] = field(default_factory=list)
    applications: dict[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    runs: int = 0
    due_at: Monotonic = field(default_factory=lambda: Monotonic(0.0))

    def set_file(self, schedules: Sequence[Mapping[str, object]]) -> Sequence[str]:
        """See `TickAdder.set_file`."""
        self.file = schedules
        return [str(one["name"]) for one in schedules]

    def set_pools(self, pools: Collection[PoolSpec]) -> None:
        """See `TickAdder.set_pools`."""
        self.pools = [pool.name for pool in pools]

    def set_application(self, app: str, schedules: Sequence[Mapping[str, object]]) -> None:
        """See `TickAdder.set_application`."""
        self.applications[app] = schedules

    def run(self, *, now: Monotonic) -> None:
        """See `TickAdder.run`: it is due again at once."""
        self.runs += 1
        self.due_at = now
