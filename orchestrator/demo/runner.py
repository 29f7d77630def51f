"""Run the demo: start a fleet, add its tasks, kill one busy worker, watch it finish and shrink."""

import json
import platform
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.demo.figures import RunFigures, figures_of, recorded_figures
from orchestrator.demo.fleet_process import (
    STOP_SECONDS,
    FleetFailedError,
    FleetProcess,
    Tail,
    WorkersSeen,
    workers_seen,
)
from orchestrator.demo.frame import decision_line
from orchestrator.demo.record import Outcome, quantile, twice
from orchestrator.demo.report import write_report
from orchestrator.demo.run_state import DemoRun
from orchestrator.demo.script import GRACE_SECONDS, STORE, Script, settings_text
from orchestrator.demo.tasks import QUEUE, index_task, parse_task, task_name
from queue_core.client.connect import open_queues
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue
from queue_core.clock import SystemClock
from queue_core.config.settings import ServerSettings
from queue_core.errors import StoreUnavailableError
from queue_core.limits import MAX_PEEK_TASKS, MAX_TASKS_PER_ADD
from queue_core.process.wording import counted, shown_seconds
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


def free_address() -> str:
    """Return an address of the loopback at which nothing listens now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{trial.getsockname()[1]}"


def serve_console(
    folder: Path, listen: str, *, clock: MonotonicClock, stop: threading.Event, announce: Callable[[str], None]
) -> None:
    """Run `towline up` again in the folder of a demo that is over, until `stop`, for people to look at its pages.

    `announce` gets the console's address. Raises `FleetFailedError`.
    """
    fleet = FleetProcess(folder, log_name="console.log")
    try:
        connected(fleet, listen, folder, clock=clock).close()
        announce(f"http://{listen}/console/")
        while not stop.wait(LOOK_SECONDS):
            fleet.check()
    finally:
        fleet.stop()


def connected(fleet: FleetProcess, listen: str, folder: Path, *, clock: MonotonicClock) -> HttpQueues:
    """Wait until a fleet's server answers. Raises `FleetFailedError`."""
    url = ServerSettings(listen=listen).url(folder)
    give_up_at = clock.monotonic() + UP_SECONDS
    while True:
        fleet.check()
        queues = HttpQueues(url)
        try:
            queues.queues()
        except StoreUnavailableError:
            queues.close()
            if clock.monotonic() >= give_up_at:
                raise FleetFailedError(f"`towline up` did not answer within {UP_SECONDS:.0f} s at {url}") from None
            threading.Event().wait(TICK_SECONDS)  # also when somebody stops the demo: `up` must be asked to end
        else:
            return queues


class DemoView(Protocol):
    """Displays the run."""

    def update(self, run: DemoRun) -> None:
        """Show the run as it is: called often, also when nothing is new."""


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
        seen: WorkersSeen = workers_seen,
    ) -> None:
        """`seen` observes the fleet's workers from outside."""
        self.run_state = DemoRun(script, folder)
        self._clock = clock
        self._wall = SystemClock()
        self._view = view
        self._pause = threading.Event()
        self._look_at = Monotonic(float("-inf"))
        self._listen = listen
        self._seen = seen
        self._events = Tail(folder / "events.jsonl")
        self._stops = 0

    def stop(self) -> None:
        """End the run early, from a signal handler: workers finish what they hold; a second call ends them at once."""
        self._stops += 1
        self._pause.set()

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
        )
        (folder / "towline.yaml").write_text(settings)
        fleet = FleetProcess(folder, seen=self._seen)
        try:
            queues = connected(fleet, self._listen, folder, clock=self._clock)
            try:
                self._play(fleet, queues.queue(QUEUE))
            finally:
                queues.close()
            self._finish(fleet)
        finally:
            fleet.stop()
        self._conclude(fleet)
        outcome = self._outcome()
        write_report(run, outcome, python=platform.python_version())
        return outcome

    def _play(self, fleet: FleetProcess, queue: Queue) -> None:
        run = self.run_state
        began_at = self._clock.monotonic()
        run.began_at = self._wall.now()
        while run.elapsed_seconds < max(run.script.seconds, run.moved_at_seconds) + STALLED_SECONDS:
            run.elapsed_seconds = self._clock.monotonic() - began_at
            if self._stops:
                run.is_stopped = True
                return
            before = run.progress
            self._feed(queue)
            self._read_events(fleet)
            if self._clock.monotonic() >= self._look_at:
                self._look(fleet, queue)
            if run.progress != before:
                run.moved_at_seconds = run.elapsed_seconds
            self._kill(fleet)
            self._view.update(run)
            if run.is_done and not run.workers:
                self._look(fleet, queue)  # a worker started for the last task may have appeared since
                if not run.workers:
                    return
            self._pause.wait(TICK_SECONDS)

    def _finish(self, fleet: FleetProcess) -> None:
        """Ask the fleet to finish, and show it until it has ended."""
        run = self.run_state
        if run.is_stopped:
            held = counted(len(run.record.held), "task")
            run.add_to_log("note", f"Ctrl-C: finishing {held}, for at most {GRACE_SECONDS} s; again ends them at once")
        fleet.terminate()
        kill_at = self._clock.monotonic() + STOP_SECONDS
        asked = 1
        while fleet.is_running and self._clock.monotonic() < kill_at:
            if self._stops > asked:
                asked = self._stops
                run.add_to_log("note", "Ctrl-C again: workers are ended now; their tasks are kept")
                fleet.terminate()
            self._pause.clear()
            self._read_events(fleet)
            if self._clock.monotonic() >= self._look_at and fleet.is_running:
                self._look(fleet, None)
            self._view.update(run)
            self._pause.wait(TICK_SECONDS)

    def _conclude(self, fleet: FleetProcess) -> None:
        """Read what is left in the store, now that no process has it open."""
        run = self.run_state
        self._read_events(fleet)
        if run.is_stopped:
            run.workers = frozenset()
        with closing(open_queues(f"sqlite:///{run.folder / STORE}")) as queues:
            queue = queues.queue(QUEUE)
            run.kept = frozenset(_names(queue))
            counts = queue.tag_stats()
        run.is_over = True
        self._show(figures_of(counts, run.workers, now=self._wall.now(), at_seconds=run.elapsed_seconds))
        self._view.update(run)

    def _feed(self, queue: Queue) -> None:
        run, script = self.run_state, self.run_state.script
        due = run.fed
        while due < len(script.due_seconds) and script.due_seconds[due] <= run.elapsed_seconds:
            due += 1
        if due > run.fed:
            batch = [parse_task(name, path) for name, path in script.modules[run.fed : due][:MAX_TASKS_PER_ADD]]
            self._add(queue, batch)
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
                if line.get("current") != line.get("target"):
                    run.add_to_log("decision", decision_line(line))

    def _look(self, fleet: FleetProcess, queue: Queue | None) -> None:
        """Count tasks and workers as they are now; without a queue, tasks by their events."""
        run = self.run_state
        self._look_at = Monotonic(self._clock.monotonic() + LOOK_SECONDS)
        if queue is not None:
            fleet.check()
        run.workers = fleet.workers()
        run.peak_workers = max(run.peak_workers, len(run.workers))
        if queue is None:
            self._show(recorded_figures(run.record, run.workers, at_seconds=run.elapsed_seconds))
        else:
            counts = queue.tag_stats()
            self._show(figures_of(counts, run.workers, now=self._wall.now(), at_seconds=run.elapsed_seconds))

    def _show(self, figures: RunFigures) -> None:
        self.run_state.history.append(figures)

    def _kill(self, fleet: FleetProcess) -> None:
        """Kill one worker in the middle of a task, and see how soon the task is leased again."""
        run = self.run_state
        if run.elapsed_seconds < run.script.kill_at_seconds or run.restarted_seconds is not None:
            return
        if run.killed:
            worker, at = run.killed[-1]
            run.restarted_seconds = run.record.restarted_seconds(worker, at)
            if run.restarted_seconds is not None:
                run.add_to_log("note", f"its task began again {shown_seconds(run.restarted_seconds)} after its death")
                return
            if run.record.unfinished.get(worker) or (self._wall.now() - at) / 1_000_000 < RESTART_SECONDS:
                return
        victim = self._victim() if len(run.killed) < KILL_ATTEMPTS else None
        if victim is not None and fleet.kill(victim):
            run.killed.append((victim, self._wall.now()))
            run.add_to_log("note", f"killed {victim} (SIGKILL) in the middle of a task")

    def _victim(self) -> str | None:
        """Return a busy worker that was not killed already."""
        busy = self.run_state.record.busy(besides=[name for name, _ in self.run_state.killed])
        return next(iter(busy), None)

    def _outcome(self) -> Outcome:
        run = self.run_state
        record, report = run.record, run.folder / "report"
        done = (run.folder / "done.txt").read_text().split() if (run.folder / "done.txt").exists() else []
        parsed = {name for name, _ in run.script.modules if task_name("parse", name) in record.deleted}
        following = {task_name("render", name) for name in parsed}
        pages = sum(1 for name, _ in run.script.modules if (report / f"{name}.html").is_file())
        return Outcome(
            added=len(record.added),
            done=len(record.deleted),
            left=len(run.kept - record.died),
            lost=len(record.lost(run.expected | following, kept=run.kept)),
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
            pages=pages + 1,
            seconds=round(run.elapsed_seconds, 1),
            report=str(report / "index.html"),
            stopped=run.is_stopped,
        )


def _names(queue: Queue) -> Iterator[str]:
    """Yield the names of all tasks that a queue has."""
    after: int | None = 0
    while after is not None:
        page = queue.peek(after=after, limit=MAX_PEEK_TASKS)
        yield from (task.name for task in page.tasks if task.name)
        after = page.next_after
