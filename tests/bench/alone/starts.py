"""Measure how soon workers begin their first task, and what they cost: executed, and forked from a template.

    python -m tests.bench.alone.starts                         # one round: a few minutes
    python -m tests.bench.alone.starts --rounds 3 --only slow

Three applications: one imports nothing (`nothing`), one a large library (`large`: pandas, or hundreds of generated
modules where it is not installed), and the import of one takes two seconds (`slow`). Both kinds of start take turns in
one run on one server. Memory is proportional (PSS), so that a page shared by n processes counts an nth in each; the
template counts as one more worker.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import psutil
import structlog

from orchestrator.base.clock import Monotonic, SystemMonotonicClock
from orchestrator.cli.project_file import load_project
from orchestrator.config.pools import PoolSpec
from orchestrator.demo.fleet_process import FleetProcess
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.process import UPKEEP_SECONDS, ProcessRuntime
from orchestrator.runtimes.procfs import signal_exactly, worker_processes
from orchestrator.settings_file import state_of
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queues
from queue_core.task import NewTask, QueueSpec
from tests.bench.alone.served import serving
from tests.bench.measure import MeasurementFailedError
from tests.bench.places import Engine, new_place
from tests.bench.predicted import connected
from tests.bench.record import QUEUE, RECORD, RECORDING_VARIABLE, recorded, stamped_payload
from tests.bench.report import starts_table, verdicts_table
from tests.bench.requirements import judge
from tests.bench.site import BenchSite
from tests.bench.starting import GATES_VARIABLE, MANY_TASKS

Kind = Literal["exec", "fork"]
KINDS: Final[Sequence[Kind]] = ("exec", "fork")
APPLICATIONS: Final = ("nothing", "large", "slow")
WORKERS: Final = 40
SAMPLES: Final = 7
WAY_SAMPLES: Final = 5
IMPORT_SECONDS: Final = 2.0
GENERATED_MODULES: Final = 400
LEASE_SECONDS: Final = 3_600.0
"""No task that a killed worker held comes back during a run."""
PATIENCE_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.005
SETTINGS: Final = """\
server: {{listen: "unix:queue.sock"}}
queues:
  {queue}: {{lease: 1h, max_lease: 2h}}
pools:
"""
POOL: Final = """\
  {kind}:
    {{queue: {queue}, tags: [{kind}], app: "application:app", start: {start}, slo: 2s, churn: 0s,
     workers: {{min: 0, max: {most}}}, env: {env}}}
"""
TEMPLATE_MODULE: Final = "queue_core.worker.template"
CLOCK: Final = SystemMonotonicClock()


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return the figures of all applications: seconds, CPU seconds and bytes, named application_kind_figure."""
    return measured(site, engine, APPLICATIONS)


def measured(site: BenchSite, engine: Engine, applications: Sequence[str]) -> dict[str, float]:
    """Return the figures of these applications."""
    figures: dict[str, float] = {}
    for name in applications:
        found = _at_runtime(site, engine, name) | _through_up(site, name)
        figures |= {f"{name}_{what}": value for what, value in found.items()}
    return figures


def _at_runtime(site: BenchSite, engine: Engine, application: str) -> dict[str, float]:
    """Measure from the call of `Runtime.spawn`, as a supervisor's turn makes it."""
    figures: dict[str, float] = {}
    many = MANY_TASKS if application == "large" else 0
    home = _home(site, application)
    with (
        new_place(site, engine) as place,
        serving(site, place) as served,
        closing(open_queues(served.url)) as queues,
        _stage(home, served.url, queues) as stage,
    ):
        ones: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(max(SAMPLES // site.divide_loads_by, 1)):
            for kind in KINDS:
                ones[kind].append(stage.one(kind))
        for kind in KINDS:
            figures[f"{kind}_one"] = statistics.median(ones[kind])
            for name, value in stage.all_at_once(kind, many=many // site.divide_loads_by).items():
                figures[f"{kind}_{name}"] = value
    return figures


class Stage:
    """A runtime with a pool of each kind, and the queue that its workers lease from."""

    def __init__(self, home: Path, url: str, queues: Queues) -> None:
        self._home = home
        self._state_dir = home / "state"
        self._pools = load_project(home / "towline.yaml").pools
        self._launch = Launch(url, str(self._state_dir), str(self._state_dir / "lock"), LEASE_SECONDS)
        self._queue = queues.queue(QUEUE)
        self._spawned = 0
        self._living: set[str] = set()
        self.runtime = ProcessRuntime(self._state_dir)

    def prepare(self) -> None:
        """Let the template import the application: the first worker of its pool is executed."""
        self.one("fork")
        _wait_for_template(self._state_dir, lambda at: self.runtime.reap(now=Monotonic(at)))

    def one(self, kind: Kind) -> float:
        """Start one worker for a task that waits; return the seconds until it has begun it."""
        with _gate(self._home, "first") as recording:
            self._add(kind, 1)
            began = time.monotonic_ns()
            self._spawn(kind)
            self._await(recording, 1)
            (at,) = _begun(recording)
        self._end_all()
        return (at - began) / 1e9

    def all_at_once(self, kind: Kind, *, many: int) -> dict[str, float]:
        """Start 40 workers for as many tasks; with `many`, let each of them do so many."""
        with _gate(self._home, "first") as recording:
            self._add(kind, WORKERS)
            template = _template_of(os.getpid())
            cpu, own = _cpu_seconds(template), _own_cpu_seconds()
            began = time.monotonic_ns()
            workers = [self._spawn(kind) for _ in range(WORKERS)]
            own = _own_cpu_seconds() - own
            self._await(recording, WORKERS)
            begun = sorted((at - began) / 1e9 for at in _begun(recording))
            figures = {
                "first": begun[0],
                "median": statistics.median(begun),
                "last": begun[-1],
                "cpu": own + _cpu_seconds(workers) + _cpu_seconds(template) - cpu,
                "pss": _proportional_bytes(kind, workers, template),
            }
        if many:
            with _gate(self._home, "last") as recording:
                self._add(kind, WORKERS * many - WORKERS)
                self._await(recording, WORKERS)
                figures["pss_after"] = _proportional_bytes(kind, workers, template)
        self._end_all()
        return figures

    def _add(self, kind: Kind, tasks: int) -> None:
        payload = stamped_payload()
        for first in range(0, tasks, 1_000):
            self._queue.add([NewTask(payload, tag=kind)] * min(1_000, tasks - first))

    def _spawn(self, kind: Kind) -> int:
        """Start a worker; return its pid."""
        self._spawned += 1
        pool: PoolSpec = self._pools[kind]
        worker = f"{kind}-{self._spawned}"
        request = SpawnRequest(worker, pool, self._launch.environment(worker, pool))
        handle = self.runtime.spawn(request, now=CLOCK.monotonic())
        self._living.add(worker)
        return int(handle.ref.removeprefix("pid:").partition("@")[0])

    def _await(self, recording: Path, tasks: int) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while recorded(recording) < tasks:
            for ended in self.runtime.reap(now=CLOCK.monotonic()):
                self._living.discard(ended.worker)
                raise MeasurementFailedError(f"worker {ended.worker} ended: " + "\n".join(ended.last_lines))
            if time.monotonic() > give_up_at:
                raise MeasurementFailedError(f"{recorded(recording)} of {tasks} tasks begun in {PATIENCE_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _end_all(self) -> None:
        for worker in self._living:
            self.runtime.kill(worker)
        while self._living:
            self.runtime.wait_for_exit(timeout_seconds=0.1)
            self._living.difference_update(ended.worker for ended in self.runtime.reap(now=CLOCK.monotonic()))

    def close(self) -> None:
        """End all processes."""
        self._end_all()
        self.runtime.close()


@contextmanager
def _gate(home: Path, name: str) -> Iterator[Path]:
    """Hold workers at a gate; yield the emptied file that they record in."""
    recording = home / "recording"
    os.truncate(recording, 0)
    with (home / name).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield recording


@contextmanager
def _stage(home: Path, url: str, queues: Queues) -> Iterator[Stage]:
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    queues.put_queue(QueueSpec(QUEUE, lease_seconds=LEASE_SECONDS, max_lease_seconds=2 * LEASE_SECONDS))
    with closing(Stage(home, url, queues)) as stage:
        stage.prepare()
        yield stage


def _through_up(site: BenchSite, application: str) -> dict[str, float]:
    """Measure from just before an add to a pool at zero, through `towline up`, to the task begun, and from a kill -9 of
    the worker that holds it to the same task restarted."""
    home = _home(site, application)
    recording = home / "recording"
    state_dir = state_of(load_project(home / "towline.yaml")).path
    fleet = FleetProcess(home)
    way: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    again: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    try:
        with closing(connected(fleet, home)) as queues:
            queue = queues.queue(QUEUE)

            def one(kind: Kind) -> float:
                os.truncate(recording, 0)
                began = time.monotonic_ns()
                queue.add([NewTask(stamped_payload(), tag=kind)])
                _wait(lambda: recorded(recording) == 1, fleet, "a task was not begun")
                _wait(lambda: not worker_processes(str(state_dir)), fleet, "the pool did not go to zero", every=0.1)
                (at,) = _begun(recording)
                return (at - began) / 1e9

            def killed(kind: Kind) -> float:
                with _gate(home, "first") as recording:
                    queue.add([NewTask(stamped_payload(), tag=kind)])
                    _wait(lambda: recorded(recording) == 1, fleet, "a task was not begun")
                    (worker,) = [process for process in worker_processes(str(state_dir)) if process.leads]
                    began = time.monotonic_ns()
                    signal_exactly(worker, signal.SIGKILL)
                    _wait(lambda: recorded(recording) == 2, fleet, "the task of a killed worker was not restarted")
                    _, at = _begun(recording)
                _wait(lambda: not worker_processes(str(state_dir)), fleet, "the pool did not go to zero", every=0.1)
                return (at - began) / 1e9

            one("fork")
            one("exec")
            _wait_for_template(state_dir, lambda _: fleet.check())
            for _ in range(max(WAY_SAMPLES // site.divide_loads_by, 1)):
                for kind in KINDS:
                    way[kind].append(one(kind))
                    again[kind].append(killed(kind))
    finally:
        fleet.stop()
    figures = {f"{kind}_way": statistics.median(way[kind]) for kind in KINDS}
    return figures | {f"{kind}_again": statistics.median(again[kind]) for kind in KINDS}


def _wait(check: Callable[[], bool], fleet: FleetProcess, problem: str, *, every: float = POLL_SECONDS) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not check():
        fleet.check()
        if time.monotonic() > give_up_at:
            raise MeasurementFailedError(f"{problem} within {PATIENCE_SECONDS:g} s")
        time.sleep(every)


def _wait_for_template(state_dir: Path, upkeep: Callable[[float], object]) -> None:
    """Wait until the template has imported; `upkeep` makes its supervisor write its state, given an ever later time."""
    at = float(CLOCK.monotonic())
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        at += UPKEEP_SECONDS
        upkeep(at)
        with suppress(FileNotFoundError):
            told = json.loads((state_dir / "templates.json").read_text()).get("fork", {})
            if told.get("state") == "ready":
                return
            if told.get("state") not in (None, "importing"):
                raise MeasurementFailedError(f"the application can't be forked: {told}")
        if time.monotonic() > give_up_at:
            raise MeasurementFailedError(f"no template was ready within {PATIENCE_SECONDS:g} s")
        time.sleep(0.05)


def _home(site: BenchSite, application: str) -> Path:
    """Return a folder with the application, its settings and what its workers write."""
    home = site.new_directory("starts")
    for name in ("recording", "first", "last"):
        (home / name).touch()
    (home / "state").mkdir()
    (home / "application.py").write_text(_application(home, application))
    env = json.dumps({RECORDING_VARIABLE: str(home / "recording"), GATES_VARIABLE: str(home)})
    pools = [
        POOL.format(kind=kind, queue=QUEUE, most=WORKERS, env=env, start="auto" if kind == "fork" else kind)
        for kind in KINDS
    ]
    (home / "towline.yaml").write_text(SETTINGS.format(queue=QUEUE) + "".join(pools))
    return home


def _application(home: Path, name: str) -> str:
    """Return the text of the application's module."""
    begin = "from tests.bench.starting import app\n"
    if name == "slow":
        return f"import time\ntime.sleep({IMPORT_SECONDS})\n{begin}"
    if name == "large" and importlib.util.find_spec("pandas") is not None:
        return f"import pandas\n{begin}"
    if name == "large":
        _generate_library(home / "library")
        return f"import library\n{begin}"
    return begin


def _generate_library(folder: Path) -> None:
    """Write a package that imports about as much as pandas does: classes and functions in hundreds of modules."""
    folder.mkdir()
    numbers = range(GENERATED_MODULES)
    (folder / "__init__.py").write_text("".join(f"from library import m{number}\n" for number in numbers))
    for number in numbers:
        classes = [
            f"class C{n}:\n    '''{'A class of the library. ' * 20}'''\n"
            + "".join(
                f"    def f{m}(self, a: int = {m}) -> int:\n        '''Adds.'''\n        return a + {m}\n"
                for m in range(8)
            )
            for n in range(12)
        ]
        (folder / f"m{number}.py").write_text("import dataclasses, typing\n" + "".join(classes))


def _begun(recording: Path) -> list[int]:
    return [at for _, at in RECORD.iter_unpack(recording.read_bytes())]


def _template_of(supervisor: int) -> list[int]:
    """Return the supervisor's template, if it has one."""
    found = []
    for child in psutil.Process(supervisor).children():
        with suppress(psutil.ZombieProcess):
            if TEMPLATE_MODULE in child.cmdline() and "TOWLINE_WORKER" not in child.environ():
                found.append(child.pid)
    return found


def _cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time of processes so far, and of the children that they have collected."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _proportional_bytes(kind: Kind, workers: Sequence[int], template: Sequence[int]) -> float:
    """Return the memory of the workers, and of the template that they were forked from."""
    family = [*workers, *template] if kind == "fork" else workers
    return float(sum(psutil.Process(pid).memory_full_info().pss for pid in family))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print the table, with the least and the most of all rounds, and the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=APPLICATIONS, default=APPLICATIONS)
    chosen = parser.parse_args(arguments)
    rounds: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="towline-starts-") as folder,
        BenchSite(Path(folder)) as site,
    ):
        for number in range(chosen.rounds):
            print(f"round {number + 1}/{chosen.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
            for name, value in measured(site, "sqlite", chosen.only).items():
                rounds.setdefault(f"starts.{name}", []).append(value)
    figures = {name: statistics.median(values) for name, values in rounds.items()}
    print(f"\n{starts_table(rounds)}\n\n{verdicts_table(judge(figures, {}))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
