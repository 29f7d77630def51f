"""`python -m ... FOLDER WORKER...`: start these workers from a template, say so, and tell their exits until killed.

A stand-in for a supervisor, for those who kill it in the middle of a start. It says `spawned NAME PID` and
`exit NAME CODE SIGNAL`.
"""

import sys
from pathlib import Path

from orchestrator.base.clock import Monotonic
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.runtimes import template_process
from orchestrator.runtimes.process import ProcessRuntime
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import CLOCK

FORK_SECONDS = 0.3
SCRIPT = 'echo "$TOWLINE_WORKER $$" >> begun; exec sleep 600'


class PatientRuntime(ProcessRuntime):
    """Waits for the import of a template, though not for one that can't be had."""

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        environment = self._environment(request)
        eventually(lambda: self._templates.prepare(request, environment, now=now) != "importing", seconds=60)
        return super().spawn(request, now=CLOCK.monotonic())


def _tell(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


def main(folder: Path, workers: list[str]) -> None:
    """Start the workers one after another."""
    template_process.FORK_SECONDS = FORK_SECONDS  # type: ignore[misc]
    runtime = PatientRuntime(folder / "state")
    environment = {"SCRIPT": SCRIPT, "FORK_FAULT": str(folder / "fault"), "TEMPLATE_BENCH": str(folder)}
    pool = a_pool(
        name="crew",
        app="tests.support.fleet.fault_app:app",
        start="fork",
        cwd=str(folder),
        env={"PYTHONPATH": str(Path.cwd()), **environment},
    )
    launch = Launch("memory:", str(folder / "state"), str(folder / "state" / "lock"), 60.0)
    for worker in workers:
        handle = runtime.spawn(SpawnRequest(worker, pool, launch.environment(worker, pool)), now=CLOCK.monotonic())
        _tell("spawned", worker, handle.ref.removeprefix("pid:").partition("@")[0])
        (folder / "fault").unlink(missing_ok=True)  # one at most
    while True:
        runtime.wait_for_exit(timeout_seconds=1.0)
        for ended in runtime.reap(now=CLOCK.monotonic()):
            _tell("exit", ended.worker, ended.code, ended.signal)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
