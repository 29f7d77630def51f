"""An application run by executed workers, and by forked ones, and what each leaves behind."""

import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from orchestrator.runtimes.template_process import TemplateState
from queue_core.client.connect import open_queues
from queue_core.task import NewTask, QueueSpec, TaskState
from tests.support.eventually import eventually
from tests.support.fleet.template_bench import REPOSITORY, TemplateBench, reported_to_end, template_bench

WORKERS: Final = 2
TASKS_OF_WORKER: Final = 2
QUEUE: Final = QueueSpec("q")
PROGRAM: Final = """
from queue_core.worker.app import App
app = App()

def note(*words):
    with open("notes", "a") as notes:
        print(*words, file=notes)

{top}

@app.task(queue="q")
{kind} work(task):
    n = int(task.text)
{body}
"""
_OURS: Final = ("queue.db", "log", "tasks.py", "__pycache__")
"""What the names of files begin with that are no program's own."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What two workers of two tasks each leave: exit codes, tasks, and the content of each file, "" for a folder."""

    codes: tuple[int, ...]
    tasks_left: int
    files: Mapping[str, bytes]
    attempts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The outcomes of each dead task's attempts, by its payload."""

    @property
    def repeats(self) -> Mapping[str, list[int]]:
        """How often each different line is in a file, for programs whose lines are random."""
        return {name: sorted(Counter(content.splitlines()).values()) for name, content in self.files.items()}


class BothWays:
    """One program in two folders."""

    def __init__(
        self,
        folder: Path,
        top: str,
        body: str,
        files: Mapping[str, str],
        *,
        kind: Literal["def", "async def"] = "def",
        tasks: int = WORKERS * TASKS_OF_WORKER,
        queue: QueueSpec = QUEUE,
        concurrency: int = 1,
    ) -> None:
        """Args:
        tasks: of which each worker does its part.
        """
        self._concurrency = concurrency
        self._folder = folder
        self._text = PROGRAM.format(top=top, kind=kind, body="\n".join(f"    {line}" for line in body.splitlines()))
        self._files = files
        self._tasks = tasks
        self._queue = queue

    def executed(self) -> LeftBehind:
        """Run executed workers, one after the other."""
        folder = self._prepared("executed")
        bench = TemplateBench(folder)
        codes = []
        for worker in range(WORKERS):
            with (folder / "log").open("ab") as log:
                ran = subprocess.run(
                    [sys.executable, "-m", "queue_core.worker"],
                    cwd=folder,
                    env={**bench.environment("tasks:app"), **self._variables(folder, worker)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=60,
                    check=False,
                )
            codes.append(ran.returncode)
        return _left_in(folder, codes)

    def forked(self, state: TemplateState = "ready") -> LeftBehind:
        """Run forked workers of one template, which must be in this state, one after the other."""
        folder = self._prepared("forked")
        codes = []
        with template_bench(folder) as bench:
            template = bench.ready("tasks:app", state=state)
            for worker in range(WORKERS):
                forked = bench.fork(template, SCRIPT="", **self._variables(folder, worker))
                forked.send_go()
                codes.append(reported_to_end(forked))
        return _left_in(folder, codes)

    def recycled(self, *, forked: bool) -> LeftBehind:
        """Run one worker whose tasks are each done by a child of its own, until all are done."""
        folder = self._prepared("forked" if forked else "executed")
        (folder / "log.lock").touch()
        recycling = {"TOWLINE_RECYCLE": '{"tasks": 1}', "TOWLINE_SUPERVISOR_LOCK": str(folder / "log.lock")}
        variables = {**self._variables(folder, 0), **recycling}
        with template_bench(folder) as bench, (folder / "log.lock").open() as held, bench.log.open("ab") as log:
            fcntl.flock(held, fcntl.LOCK_EX)
            if forked:
                worker = bench.fork(bench.ready("tasks:app"), SCRIPT="", **variables)
                worker.send_go()
                _stop_when_done(folder, worker.pid)
                code = reported_to_end(worker)
            else:
                environment = {**bench.environment("tasks:app"), **variables}
                command = [sys.executable, "-m", "queue_core.worker"]
                with subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as program:
                    _stop_when_done(folder, program.pid)
                    code = program.wait(timeout=60)
        return _left_in(folder, [code])

    def _prepared(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        (folder / "tasks.py").write_text(self._text)
        for file, text in self._files.items():
            (folder / file).write_text(text)
        with closing(open_queues(_url(folder), durability="relaxed")) as queues:
            queues.put_queue(self._queue)
            queues.queue("q").add([NewTask(str(n).encode()) for n in range(self._tasks)])
        return folder

    def _variables(self, folder: Path, worker: int) -> dict[str, str]:
        return {
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONUNBUFFERED": "",
            "TOWLINE_URL": _url(folder),
            "TOWLINE_QUEUE": "q",
            "TOWLINE_WORKER": f"w{worker}",
            "TOWLINE_CONCURRENCY": str(self._concurrency),
            "TOWLINE_RECYCLE": f'{{"tasks": {self._tasks // WORKERS}}}',
        }


def _url(folder: Path) -> str:
    return f"sqlite:///{folder}/queue.db"


def _stop_when_done(folder: Path, pid: int) -> None:
    with closing(open_queues(_url(folder), durability="relaxed")) as queues:
        eventually(lambda: not queues.queue("q").stats().pending, seconds=60)
    os.kill(pid, signal.SIGTERM)


def _left_in(folder: Path, codes: list[int]) -> LeftBehind:
    with closing(open_queues(_url(folder), durability="relaxed")) as queues:
        tasks = queues.queue("q").stats().pending
        dead = queues.queue("q").peek(states=frozenset({TaskState.DEAD}), payload_bytes=100).tasks
        attempts = {one.payload.decode(): tuple(attempt.outcome for attempt in one.attempts) for one in dead}
    files = {
        str(path.relative_to(folder)): b"" if path.is_dir() else path.read_bytes().replace(os.fsencode(folder), b"")
        for path in sorted(folder.rglob("*"))
        if not path.relative_to(folder).parts[0].startswith(_OURS)
    }
    return LeftBehind(tuple(codes), tasks, files, attempts)
