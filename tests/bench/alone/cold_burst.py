"""Measure a burst at a cold pool: how late its tasks begin, by Towline, Celery's autoscaling workers and RQ's.

    python -m tests.bench.alone.cold_burst                       # a few minutes
    python -m tests.bench.alone.cold_burst --only towline --rounds 3

The import takes 2 s. After one task of each system has been done, and its fleet is at its least again, 40 tasks of 10 s
come at once; one that begins later than 2 s after it was added is late. Each peer runs as its manual says:

- Towline: a pool with `workers: {min: 0, max: 40}` and `slo: 2s`; beside it the same with `start: exec`.
- Celery: `celery worker --autoscale=40,1 --prefetch-multiplier=1`, prefork. It has no fewer than one process.
- RQ: it has no autoscaling, so `rq worker-pool` with one worker, and one of 40 workers that is started with the burst.

No more is waited for than 60 s after the burst; what has not begun then is late as well.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from orchestrator.cli.project_file import load_project
from orchestrator.demo.fleet_process import FleetProcess
from orchestrator.runtimes.procfs import worker_processes
from orchestrator.settings_file import state_of
from queue_core.task import NewTask
from tests.bench.alone.served import ROOT
from tests.bench.measure import MeasurementFailedError, end_group
from tests.bench.predicted import connected
from tests.bench.record import RECORD, RECORDING_VARIABLE, recorded, stamped_payload
from tests.bench.site import BenchSite
from tests.support.stores.engines import EngineUnavailableError

TASKS: Final = 40
SLO_SECONDS: Final = 2.0
TASK_SECONDS: Final = 10.0
IMPORT_SECONDS: Final = 2.0
WATCH_SECONDS: Final = 60.0
PATIENCE_SECONDS: Final = 180.0
SETTLE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.05
QUEUE: Final = "bursts"
NEEDS_VARIABLE: Final = "TOWLINE_BENCH_BROKER"
SETTINGS: Final = """\
server: {{listen: "unix:queue.sock"}}
queues:
  {queue}: {{lease: 1m}}
pools:
  cold: {{queue: {queue}, app: "work:app", start: {start}, slo: 2s, workers: {{min: 0, max: {tasks}}}, env: {env}}}
"""
WORK: Final = f"""\
import time
from tests.bench.record import record

time.sleep({IMPORT_SECONDS})

def work(payload):
    record(payload)
    time.sleep({TASK_SECONDS})
"""
APPS: Final[Mapping[str, str]] = {
    "towline": f"""
from queue_core.worker.app import App
app = App()

@app.task(queue="{QUEUE}")
def begin(task):
    work(task.payload)
""",
    "celery": f"""
import os
from celery import Celery
app = Celery("bursts", broker=os.environ["{NEEDS_VARIABLE}"])
app.task(work, name="work", ignore_result=True)
""",
    "rq": "",
}

Add = Callable[[int], None]
Burst = Callable[[Path, Add, Callable[[], None]], Sequence[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds, all systems in turn, and print how late each was; return 1 when a task of Towline was late."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=tuple(SYSTEMS), default=tuple(SYSTEMS))
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that every process is ended
    late: Counter[str] = Counter()
    print(f"{'system':<26} {'late':>5} {'begun':>6} {'first':>8} {'median':>8} {'last':>8}   guards")
    with tempfile.TemporaryDirectory(prefix="towline-cold-") as folder, BenchSite(Path(folder)) as site:
        for _ in range(chosen.rounds):
            for name in chosen.only:
                try:
                    waits, guards = SYSTEMS[name](site)
                except (EngineUnavailableError, MeasurementFailedError) as error:
                    print(f"{name:<26} {error}", flush=True)
                    continue
                late[name] += (late_here := TASKS - sum(1 for wait in waits if wait <= SLO_SECONDS))
                shown = [waits[0], statistics.median(waits), waits[-1]] if waits else []
                times = " ".join(f"{seconds:>6.2f} s" for seconds in shown)
                print(f"{name:<26} {late_here:>5} {len(waits):>6} {times}   {guards}", flush=True)
    return 1 if late["towline"] else 0


def _towline(start: str) -> Callable[[BenchSite], tuple[Sequence[float], str]]:
    """Return the run of a pool whose workers start like this."""

    def run(site: BenchSite) -> tuple[Sequence[float], str]:
        home = _home(site, "towline")
        recording = home / "recording"
        env = json.dumps({RECORDING_VARIABLE: str(recording)})
        (home / "towline.yaml").write_text(SETTINGS.format(queue=QUEUE, start=start, tasks=TASKS, env=env))
        state = state_of(load_project(home / "towline.yaml"))
        fleet = FleetProcess(home)
        try:
            with closing(connected(fleet, home)) as queues:
                queue = queues.queue(QUEUE)

                def add(count: int) -> None:
                    queue.add([NewTask(stamped_payload()) for _ in range(count)])

                def is_cold() -> bool:
                    fleet.check()
                    return not worker_processes(str(state.path))

                waits = _burst(recording, add, is_cold)
                told = [decision for decision in state.read_decisions(limit=200) if decision.get("limited_by")]
                guards = Counter(str(guard) for decision in told for guard in _list(decision["limited_by"]))
                if os.environ.get("TOWLINE_BENCH_WHY"):
                    print(_why(home), flush=True)
                return waits, ", ".join(f"{guard} {count}" for guard, count in guards.items())
        finally:
            fleet.stop()

    return run


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _why(home: Path) -> str:
    command = [sys.executable, "-m", "orchestrator", "why", "cold"]
    return subprocess.run(
        command, cwd=home, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    ).stdout


def _celery(site: BenchSite) -> tuple[Sequence[float], str]:
    """Run Celery's autoscaling prefork worker."""
    from celery import Celery

    url = site.redis()
    home = _home(site, "celery")
    producer = Celery("bursts", broker=url)
    command = ["celery", "-A", "work", "worker", f"--autoscale={TASKS},1", "--prefetch-multiplier=1", "-l", "WARNING"]

    def add(count: int) -> None:
        for _ in range(count):
            producer.send_task("work", [stamped_payload().decode()])

    with closing(producer), _running(home, command, url) as check:
        return _burst(home / "recording", add, _settled(check)), ""


def _rq(workers: int, *, begins_with_burst: bool) -> Callable[[BenchSite], tuple[Sequence[float], str]]:
    """Return the run of a pool of so many workers."""

    def run(site: BenchSite) -> tuple[Sequence[float], str]:
        from redis import Redis
        from rq import Queue

        url = site.redis()
        home = _home(site, "rq")
        recording = home / "recording"
        command = ["rq.cli", "worker-pool", "-n", str(workers), "-u", url, "-q", QUEUE]
        with closing(Redis.from_url(url)) as connection:
            connection.flushall()
            queue = Queue(QUEUE, connection=connection)

            def add(count: int) -> None:
                for _ in range(count):
                    queue.enqueue("work.work", stamped_payload())

            if not begins_with_burst:
                with _running(home, command, url) as check:
                    return _burst(recording, add, _settled(check)), ""
            add(TASKS)
            with _running(home, [*command, "--burst"], url):
                return _waits(recording), ""

    return run


SYSTEMS: Final[Mapping[str, Callable[[BenchSite], tuple[Sequence[float], str]]]] = {
    "towline": _towline("auto"),
    "towline-exec": _towline("exec"),
    "celery-autoscale": _celery,
    "rq-1-worker": _rq(1, begins_with_burst=False),
    "rq-40-started-with-burst": _rq(TASKS, begins_with_burst=True),
}


def _burst(recording: Path, add: Add, is_cold: Callable[[], bool]) -> Sequence[float]:
    """Let the fleet do one task and become cold, add the burst, and return the waits of its tasks."""
    add(1)
    _wait(lambda: recorded(recording) == 1, "the first task was not begun")
    time.sleep(TASK_SECONDS)
    _wait(is_cold, "the fleet did not become cold")
    os.truncate(recording, 0)
    add(TASKS)
    return _waits(recording)


def _waits(recording: Path) -> Sequence[float]:
    """Return the waits of those that begin while it watches, shortest first."""
    give_up_at = time.monotonic() + WATCH_SECONDS
    while recorded(recording) < TASKS and time.monotonic() < give_up_at:
        time.sleep(POLL_SECONDS)
    return sorted((begun - added) / 1e9 for added, begun in RECORD.iter_unpack(recording.read_bytes()))


def _settled(check: Callable[[], None]) -> Callable[[], bool]:
    """Return whether a peer's fleet is left alone for a while: it has no size of its own to look at."""
    since = []

    def is_cold() -> bool:
        check()
        since.append(time.monotonic())
        return since[-1] - since[0] > SETTLE_SECONDS

    return is_cold


def _wait(check: Callable[[], bool], problem: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not check():
        if time.monotonic() > give_up_at:
            raise MeasurementFailedError(f"{problem} within {PATIENCE_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _home(site: BenchSite, system: str) -> Path:
    """Return a folder with the system's application."""
    home = site.new_directory("cold")
    (home / "recording").touch()
    (home / "work.py").write_text(WORK + APPS[system])
    return home


@contextmanager
def _running(home: Path, command: Sequence[str], broker: str) -> Iterator[Callable[[], None]]:
    """Run a peer's command in the folder; yield a check that it still runs."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(home), str(ROOT)]),
        RECORDING_VARIABLE: str(home / "recording"),
        NEEDS_VARIABLE: broker,
    }
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env=environment,
            start_new_session=True,
        )

    def check() -> None:
        if process.poll() is not None:
            said = (home / "log").read_text(errors="replace").strip().splitlines()[-8:]
            raise MeasurementFailedError(f"it ended with {process.returncode}: " + "\n".join(said))

    try:
        yield check
    finally:
        end_group(process)


if __name__ == "__main__":
    sys.exit(main())
