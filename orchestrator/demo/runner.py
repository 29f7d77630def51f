"""Run the demo: start a fleet, add its tasks, kill one busy worker, watch it finish and shrink."""

import json
import platform
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.demo.fleet_process import DemoWorkers, FleetFailedError, FleetProcess, ProcessWorkers, Tail
from orchestrator.demo.record import DemoRecord, Outcome, quantile, twice
from orchestrator.demo.script import Script, settings_text
from orchestrator.demo.tasks import INDEX, QUEUE, index_task, parse_task, task_name
from queue_core.api import Queue
from queue_core.client import HttpQueues
from queue_core.clock import Instant, SystemClock
from queue_core.config.settings import ServerSettings
from queue_core.errors import StoreUnavailableError
from queue_core.limits import MAX_TASKS_PER_ADD
from queue_core.task import NewTask

TICK_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 0.25
"""Interval between counts of the workers."""
UP_SECONDS: Final = 15.0
STALLED_SECONDS: Final = 60.0
"""How long after its time the demo waits for the next task to finish or worker to exit before it gives up."""
KILL_ATTEMPTS: Final = 5
RESTART_SECONDS: Final = 2.0
"""How long a killed worker's tasks may take to be leased again before another worker is killed."""


class DemoView(Protocol):
    """Displays the run."""

    def update(self, run: "DemoRun") -> None:
        """Show the run's progress."""

    def decided(self, decision: dict[str, object]) -> None:
        """Show a pool's decision."""

    def notify(self, text: str) -> None:
        """Show a message."""


@dataclass(slots=True)
class DemoRun:
    """The state of a run, for the view and the outcome."""

    script: Script
    folder: Path
    elapsed_seconds: float = 0.0
    fed: int = 0
    expected: set[str] = field(default_factory=set)
    record: DemoRecord = field(default_factory=DemoRecord)
    workers: frozenset[str] = frozenset()
    peak_workers: int = 0
    moved_at_seconds: float = 0.0
    """The time of the last progress."""
    decisions: int = 0
    killed: list[tuple[str, Instant]] = field(default_factory=list)
    restarted_seconds: float | None = None
    is_indexed: bool = False
    pools: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Return whether every task is finished or dead."""
        return self.is_indexed and len(self.record.deleted | self.record.died) >= self.script.tasks

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes when a task finishes or, at the end, a worker exits."""
        return len(self.record.deleted), len(self.workers) if self.is_done else 0

    def workers_of(self, pool: str) -> int:
        """Return the number of living workers of a pool."""
        return sum(1 for worker in self.workers if pool_of(worker) == pool)


def pool_of(worker: str) -> str:
    """Return the pool in a worker's name; it is also the tag of its tasks."""
    return worker.rpartition("-")[0]


class Demo:
    """One run from start to end."""

    def __init__(
        self,
        script: Script,
        folder: Path,
        *,
        listen: str,
        clock: MonotonicClock,
        view: DemoView,
        runtime: str = "process",
        workers: DemoWorkers | None = None,
    ) -> None:
        """`runtime` is the pools' runtime setting, and `workers` observes workers of that kind."""
        self.run_state = DemoRun(script, folder)
        self._clock = clock
        self._wall = SystemClock()
        self._view = view
        self._pause = threading.Event()
        self._look_at = Monotonic(float("-inf"))
        self._listen = listen
        self._runtime = runtime
        self._workers = workers or ProcessWorkers()
        self._events = Tail(folder / "events.jsonl")

    def run(self) -> Outcome:
        """Run the script; the fleet is always stopped. Raises `FleetFailedError`."""
        run, folder = self.run_state, self.run_state.folder
        for name in ("parsed", "report"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "modules.json").write_text(json.dumps([name for name, _ in run.script.modules]))
        settings = settings_text(
            folder,
            listen=self._listen,
            rest_seconds=run.script.rest_seconds,
            slo_seconds=run.script.slo_seconds,
            runtime=self._runtime,
        )
        (folder / "towline.yaml").write_text(settings)
        fleet = FleetProcess(folder, workers=self._workers)
        try:
            queues = self._connect(fleet)
            try:
                self._play(fleet, queues.queue(QUEUE))
            finally:
                queues.close()
            self._look(fleet)
        finally:
            fleet.stop()
        for event in self._events.records():
            run.record.take(event)
        return self._outcome()

    def _connect(self, fleet: FleetProcess) -> HttpQueues:
        """Wait until the fleet's server answers."""
        url = ServerSettings(listen=self._listen).url(self.run_state.folder)
        give_up_at = self._clock.monotonic() + UP_SECONDS
        while True:
            fleet.check()
            queues = HttpQueues(url)
            try:
                queues.queues()
            except StoreUnavailableError:
                queues.close()
                if self._clock.monotonic() >= give_up_at:
                    raise FleetFailedError(f"`towline up` did not answer within {UP_SECONDS:.0f} s at {url}") from None
                self._pause.wait(TICK_SECONDS)
            else:
                return queues

    def _play(self, fleet: FleetProcess, queue: Queue) -> None:
        run = self.run_state
        began_at = self._clock.monotonic()
        while run.elapsed_seconds < max(run.script.seconds, run.moved_at_seconds) + STALLED_SECONDS:
            run.elapsed_seconds = self._clock.monotonic() - began_at
            before = run.progress
            self._feed(queue)
            self._read_events(fleet)
            if run.progress != before:
                run.moved_at_seconds = run.elapsed_seconds
            self._kill(fleet)
            self._view.update(run)
            if run.is_done and not run.workers:
                self._look(fleet)  # a worker started for the last task may have appeared since
                if not run.workers:
                    return
            self._pause.wait(TICK_SECONDS)

    def _feed(self, queue: Queue) -> None:
        run, script = self.run_state, self.run_state.script
        due = run.fed
        while due < len(script.due_seconds) and script.due_seconds[due] <= run.elapsed_seconds:
            due += 1
        if due > run.fed:
            batch = [parse_task(name, path) for name, path in script.modules[run.fed : due][:MAX_TASKS_PER_ADD]]
            self._add(queue, batch)
            run.expected |= {task_name("render", name) for name, _ in script.modules[run.fed : run.fed + len(batch)]}
            run.fed += len(batch)
        if not run.is_indexed and len(run.record.deleted | run.record.died) >= script.tasks - 1:
            self._add(queue, [index_task(platform.python_version())])
            run.is_indexed = True

    def _add(self, queue: Queue, batch: list[NewTask]) -> None:
        self.run_state.expected |= {added.name for added in queue.add(batch) if added.status == "added"}

    def _read_events(self, fleet: FleetProcess) -> None:
        run = self.run_state
        for event in self._events.records():
            run.record.take(event)
        for line in fleet.log.records():
            if line.get("event") == "pool.decided":
                run.decisions += 1
                run.pools[str(line["pool"])] = line
                self._view.decided(line)
        if self._clock.monotonic() >= self._look_at:
            fleet.check()
            self._look(fleet)

    def _look(self, fleet: FleetProcess) -> None:
        run = self.run_state
        self._look_at = Monotonic(self._clock.monotonic() + LOOK_SECONDS)
        run.workers = fleet.workers()
        run.peak_workers = max(run.peak_workers, len(run.workers))

    def _kill(self, fleet: FleetProcess) -> None:
        """Kill one worker in the middle of a task, and see how soon the task is leased again."""
        run = self.run_state
        if run.elapsed_seconds < run.script.kill_at_seconds or run.restarted_seconds is not None:
            return
        if run.killed:
            worker, at = run.killed[-1]
            run.restarted_seconds = run.record.restarted_seconds(worker, at)
            if run.restarted_seconds is not None:
                self._view.notify(f"its task was started again {run.restarted_seconds * 1000:.0f} ms after its death")
                return
            if run.record.unfinished.get(worker) or (self._wall.now() - at) / 1_000_000 < RESTART_SECONDS:
                return
        victim = self._victim() if len(run.killed) < KILL_ATTEMPTS else None
        if victim is not None and fleet.kill(victim):
            run.killed.append((victim, self._wall.now()))
            self._view.notify(f"killed {victim} (SIGKILL) in the middle of a task")

    def _victim(self) -> str | None:
        """Return a busy worker that was not killed already."""
        busy = self.run_state.record.busy(besides=[name for name, _ in self.run_state.killed])
        return next(iter(busy), None)

    def _outcome(self) -> Outcome:
        run = self.run_state
        record, report = run.record, run.folder / "report"
        done = (run.folder / "done.txt").read_text().split() if (run.folder / "done.txt").exists() else []
        pages = sum(1 for name, _ in run.script.modules if (report / f"{name}.html").is_file())
        return Outcome(
            added=len(record.added),
            done=len(record.deleted),
            lost=len(record.lost(run.expected)),
            dead=len(record.died),
            duplicated=twice(done),
            peak_workers=run.peak_workers,
            final_workers=len(run.workers),
            wait_p50=round(quantile(record.waits, 0.5), 3),
            wait_p95=round(quantile(record.waits, 0.95), 3),
            slo=run.script.slo_seconds,
            decisions=run.decisions,
            killed=len(run.killed),
            restarted_seconds=run.restarted_seconds,
            pages=pages + (report / f"{INDEX}.html").is_file(),
            seconds=round(run.elapsed_seconds, 1),
            report=str(report / "index.html"),
        )
