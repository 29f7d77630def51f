"""Kill whoever takes part in the start of a forked worker, at any step: template, process between, worker, supervisor.

Promises, checked against the kernel: no worker works that no supervisor finds (F1), none is started twice (F2), a
killed worker's exit is told as it was (F3), and nothing is left behind (F4).
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

from orchestrator.runtimes.process import ProcessRuntime
from tests.faults.checker import Violation
from tests.faults.outcome import FaultBudget, FaultTally
from tests.support.fleet.runtime_bench import CLOCK, exits_of, is_running
from tests.support.fleet.template_bench import marked_processes

WORKERS: Final = 6
DEFAULT_ROUNDS: Final = 20
SETTLE_SECONDS: Final = 20.0
QUIET_LOOKS: Final = 20
"""Looks in a row that find nobody unknown, 10 ms apart, after which all is said to have settled."""
FAULTS: Final = ("none", "between kill", "worker kill", "between stop", "worker stop", "template kill", "template stop")


class _Round:
    """One supervisor's life, and the kernel's word on it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "state").mkdir()
        self._folder = folder
        workers = [f"w{number}" for number in range(WORKERS)]
        with (folder / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fleet.forking_supervisor", str(folder), *workers],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.spawned: dict[str, int] = {}
        self.exits: dict[str, str] = {}
        self._unread = b""

    def read(self, *, until_spawned: int = 0, until_exits: int = 0) -> bool:
        """Read what the supervisor says until so much was said; False when it has ended or says no more."""
        assert self.process.stdout is not None
        ends_at = time.monotonic() + SETTLE_SECONDS
        while len(self.spawned) < until_spawned or len(self.exits) < until_exits:
            if not select.select([self.process.stdout], [], [], max(0.0, ends_at - time.monotonic()))[0]:
                return False
            data = os.read(self.process.stdout.fileno(), 65_536)
            if not data:
                return False
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                what, _, told = line.decode().partition(" ")
                worker, _, told = told.partition(" ")
                if what == "spawned":
                    self.spawned[worker] = int(told)
                elif what == "exit":  # what is logged comes between
                    self.exits[worker] = told
        return True

    def templates(self) -> list[int]:
        """Return the supervisor's templates, found as its children that lead a session and are no worker."""
        found = []
        for pid in marked_processes(str(self._folder)):
            try:
                if Path(f"/proc/{pid}/comm").read_text() == "towline-templ\n" and os.getsid(pid) == pid:
                    found.append(pid)
            except OSError:
                continue
        return found

    def begun(self) -> list[tuple[str, int]]:
        """Return the workers that began, each with its pid."""
        path = self._folder / "begun"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(worker, int(pid)) for worker, pid in map(str.split, lines)]

    def set_fault(self, text: str) -> None:
        draft = self._folder / "draft"
        draft.write_text(text)
        draft.replace(self._folder / "fault")

    def end_supervisor(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.read(until_spawned=WORKERS + 1)
            self.process.stdout.close()

    def after(self, killed: set[str]) -> list[Violation]:
        """Adopt what is left as the next supervisor does, compare, and end it."""
        wrong = []
        runtime = ProcessRuntime(self._folder / "state")
        adopted: dict[str, int] = {}
        unknown: set[int] = set()
        deadline, quiet = time.monotonic() + SETTLE_SECONDS, 0
        while quiet < QUIET_LOOKS and time.monotonic() < deadline:
            # Again and again: an executed worker has its variables only once the kernel has executed it.
            for handle in runtime.adopt(now=CLOCK.monotonic()):
                adopted[handle.worker] = int(handle.ref.removeprefix("pid:").partition("@")[0])
            unknown = marked_processes(str(self._folder)) - set(adopted.values())
            for pid in unknown:
                _go_on(pid)  # one that was stopped ends by itself, once it may
            quiet = 0 if unknown else quiet + 1
            time.sleep(0.01)
        begun = self.begun()
        wrong += [Violation("F4", f"process {pid} is nobody's") for pid in unknown]
        wrong += [
            Violation("F1", f"worker {worker} works as {pid} and was not adopted")
            for worker, pid in begun
            if is_running(pid) and adopted.get(worker) != pid
        ]
        wrong += [
            Violation("F1", f"worker {worker} was started and is gone")
            for worker, pid in self.spawned.items()
            if worker not in killed and adopted.get(worker) != pid
        ]
        names = [worker for worker, _ in begun]
        wrong += [Violation("F2", f"worker {name} began twice") for name in {*names} if names.count(name) > 1]
        living = [worker for worker, pid in adopted.items() if is_running(pid)]
        for worker in living:
            runtime.kill(worker)
        exits_of(runtime, len(adopted), seconds=SETTLE_SECONDS)
        runtime.close()
        left = marked_processes(str(self._folder))
        wrong += [Violation("F4", f"process {pid} is left") for pid in left]
        for pid in left | unknown:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        return wrong


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def fork_starts(budget: FaultBudget, folder: Path) -> FaultTally:
    """Run rounds: a fault in one start, or the death of one or several processes at a random instant of several."""
    tally = FaultTally("starts")
    random, deadline = Random(budget.seed), budget.started()
    for number in range(budget.operations or DEFAULT_ROUNDS):
        if deadline.is_over:
            break
        fault = random.choice(FAULTS)
        is_supervisor_killed = random.random() < 0.5
        tally.found(_round(folder / str(number), fault, random, tally, dies=is_supervisor_killed), f"{number} {fault}")
        tally.operations += WORKERS
    tally.summary = f"{tally.operations} starts"
    return tally


def _round(folder: Path, fault: str, random: Random, tally: FaultTally, *, dies: bool) -> list[Violation]:
    one = _Round(folder)
    killed: set[str] = set()
    wrong: list[Violation] = []
    if not one.read(until_spawned=random.randrange(1, WORKERS)):
        one.end_supervisor()
        return [Violation("F1", f"no worker was started: {(folder / 'errors').read_text()[-500:]}")]
    step, _, what = fault.partition(" ")
    if step == "template":
        for pid in one.templates():
            os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            tally.kills += 1
    elif what:
        one.set_fault(fault)
        tally.kills += 1
    if dies:
        time.sleep(random.uniform(0.0, 0.02))  # so that it dies within a start
        tally.kills += 1
    else:
        if not one.read(until_spawned=WORKERS):
            wrong.append(Violation("F1", f"the supervisor starts no more: {(folder / 'errors').read_text()[-500:]}"))
        victim, number = random.choice(sorted(one.spawned)), random.choice((signal.SIGKILL, signal.SIGTERM))
        os.kill(one.spawned[victim], number)
        killed.add(victim)
        if not one.read(until_exits=1) or one.exits.get(victim) != f"None {number:d}":
            wrong.append(Violation("F3", f"worker {victim} ended by signal {number}, and was told as {one.exits}"))
    one.end_supervisor()
    return wrong + one.after(killed)
