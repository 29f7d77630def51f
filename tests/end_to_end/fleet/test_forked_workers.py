"""A pool whose workers are forked from a template, from `towline up` on: crashes, adoption, new code, and the end."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from orchestrator.runtimes import procfs
from queue_core.task import NewTask
from tests.soak.towline_up import TowlineUp
from tests.support.commands import Commands
from tests.support.eventually import eventually

LONG_SECONDS: Final = 60.0
APP: Final = """
import os, time
from pathlib import Path
from queue_core.worker.app import App
from queue_core.worker.context import Task
app = App()
VERSION = {version}
@app.task(queue="jobs")
def work(task: Task) -> None:
    notes = Path(os.environ["NOTES"])
    with (notes / "begun").open("a") as file:
        file.write(f"{{os.environ['TOWLINE_WORKER']}} {{os.getpid()}} {{VERSION}} {{task.lease_number}}\\n")
    print("works on it", flush=True)
    while not (notes / "go").exists():
        time.sleep(0.01)
"""


class ForkedCrew(TowlineUp):
    """A pool of forked workers of an application in the same folder."""

    def write_app(self, version: int) -> None:
        (self.folder / "jobs.py").write_text(APP.format(version=version))

    def write_pool(self, *, workers: int, more: str = "") -> None:
        self.write(workers=workers, colour="red", more=more)
        text = self.settings.read_text()
        self.settings.write_text(text.replace("app: tests.soak.jobs:app", "app: jobs:app\n    start: fork"))

    def begun(self) -> list[list[str]]:
        """Return worker, pid, version and lease number of each task that was begun."""
        notes = self.notes / "begun"
        return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []

    def templates(self) -> list[int]:
        """Return the supervisor's templates."""
        assert self.process is not None
        children = [procfs.read_stat(pid) for pid in procfs.children_of(self.process.pid)]
        return [stat.pid for stat in children if stat is not None and stat.is_alive and stat.name == "towline-templ"]

    def wait_for_template(self) -> None:
        eventually(lambda: self.logged("template.ready"), seconds=LONG_SECONDS)

    def is_forked(self, pid: int) -> bool:
        return "TOWLINE_TEMPLATE_FD" in (procfs.environment_of(pid) or {})

    def replace_worker(self, number: int) -> str:
        """End the only worker by a signal and return the next one."""
        ((worker, pid),) = self.workers().items()
        os.kill(pid, number)
        eventually(lambda: len(found := self.workers()) == 1 and worker not in found, seconds=LONG_SECONDS)
        return next(iter(self.workers()))


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[ForkedCrew]:
    crew = ForkedCrew(tmp_path)
    crew.write_app(1)
    crew.write_pool(workers=1)
    try:
        yield crew
    finally:
        crew.end()


@pytest.fixture
def towline(crew: ForkedCrew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(crew.folder)
    return Commands(crew.folder, capsys)


def test_forked_workers_crash_are_adopted_take_new_code_and_leave_nothing(crew: ForkedCrew, towline: Commands) -> None:
    crew.start()
    eventually(crew.workers, seconds=LONG_SECONDS)
    crew.wait_for_template()
    second = crew.replace_worker(signal.SIGTERM)
    assert crew.is_forked(crew.workers()[second])

    queues = crew.queues()
    try:
        queue = queues.queue("jobs")
        queue.add([NewTask(b"a task")])
        eventually(lambda: len(crew.begun()) == 1, seconds=LONG_SECONDS)
        third = crew.replace_worker(signal.SIGKILL)  # in the middle of the task
        eventually(lambda: len(crew.begun()) == 2, seconds=LONG_SECONDS)
        assert [(entry[0], entry[2], entry[3]) for entry in crew.begun()] == [(second, "1", "1"), (third, "1", "2")]
        assert crew.is_forked(crew.workers()[third])
        (task,) = queue.peek().tasks
        (attempt,) = task.attempts
        assert attempt.worker == second
        eventually(lambda: "works on it" in towline("logs", third).out)

        assert crew.process is not None
        crew.process.kill()
        crew.process.wait()
        assert crew.workers() == {third: int(crew.begun()[1][1])}
        crew.start()
        assert crew.logged("worker.adopted")[-1]["worker"] == third
        (crew.notes / "go").touch()
        eventually(lambda: queue.stats().deleted_total == 1, seconds=LONG_SECONDS)
        crew.replace_worker(signal.SIGTERM)  # executed, and a template begins
        eventually(lambda: len(crew.logged("template.ready")) == 2, seconds=LONG_SECONDS)

        crew.write_app(2)
        crew.replace_worker(signal.SIGTERM)  # executed, as the template is of old
        queue.add([NewTask(b"another")])
        eventually(lambda: crew.begun()[2:] and crew.begun()[2][2] == "2", seconds=LONG_SECONDS)
        eventually(lambda: len(crew.logged("template.ready")) == 3, seconds=LONG_SECONDS)
        last = crew.replace_worker(signal.SIGTERM)
        assert crew.is_forked(crew.workers()[last])
        queue.add([NewTask(b"a third")])
        eventually(lambda: len(crew.begun()) == 4, seconds=LONG_SECONDS)
        assert crew.begun()[3][2] == "2"
    finally:
        queues.close()

    templates = crew.templates()
    assert len(templates) == 1
    assert crew.end() == 0
    assert crew.workers() == {}
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in templates))


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_a_reload_replaces_workers_of_an_application_that_changed_and_cuts_none(
    crew: ForkedCrew, towline: Commands, start: str
) -> None:
    text = crew.settings.read_text().replace("start: fork", f"start: {start}")
    crew.settings.write_text(text.replace("max: 1}", "max: 2}"))
    crew.start()
    ((first, _),) = eventually(crew.workers, seconds=LONG_SECONDS).items()
    queues = crew.queues()
    try:
        queue = queues.queue("jobs")
        queue.add([NewTask(b"a long task")])
        eventually(crew.begun, seconds=LONG_SECONDS)
        assert towline("reload").code == 0
        crew.write_app(2)
        assert towline("reload").code == 0
        eventually(lambda: len(crew.workers()) == 2, seconds=LONG_SECONDS)  # new before old, which is busy
        (second,) = crew.workers().keys() - {first}
        queue.add([NewTask(b"another")])
        eventually(lambda: len(crew.begun()) == 2, seconds=LONG_SECONDS)
        assert [(entry[0], entry[2], entry[3]) for entry in crew.begun()] == [(first, "1", "1"), (second, "2", "1")]
        (changed,) = crew.logged("pool.application_changed")
        assert changed["workers"] == [first]
        assert changed["file"] == str(crew.folder / "jobs.py")
        (crew.notes / "go").touch()
        eventually(lambda: list(crew.workers()) == [second], seconds=LONG_SECONDS)
        assert queue.stats().deleted_total == 2
    finally:
        queues.close()


def test_a_supervisor_that_comes_back_replaces_adopted_workers_of_an_application_that_changed(
    crew: ForkedCrew,
) -> None:
    crew.start()
    ((first, _),) = eventually(crew.workers, seconds=LONG_SECONDS).items()
    assert crew.process is not None
    crew.process.kill()
    crew.process.wait()
    crew.write_app(2)
    crew.start()
    eventually(lambda: crew.workers() and first not in crew.workers(), seconds=LONG_SECONDS)
    assert crew.logged("worker.adopted")[-1]["worker"] == first
    (changed,) = crew.logged("pool.application_changed")
    assert changed["workers"] == [first]
