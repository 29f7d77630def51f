"""`run_until_empty` runs an app's handlers inside a test, with a worker's own code and a manual clock."""

import asyncio
import os
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from queue_core import (
    INJECTED,
    App,
    AppError,
    Backoff,
    Dead,
    Injected,
    NewTask,
    QueueError,
    QueueSpec,
    Retry,
    Task,
)
from queue_core.testing import ManualClock, MemoryQueues, NotEmptyError, run_until_empty


def test_each_task_is_told_with_what_its_handler_returned() -> None:
    app = App()

    @app.task(queue="thumbs", tag="resize")
    def resize(task: Task) -> NewTask | None:
        return NewTask(b"small", queue="thumbs", tag="done") if task.text == "large" else None

    @app.task(queue="thumbs")
    def other(task: Task) -> None:
        """The rest."""

    outcomes = run_until_empty(app, [NewTask(b"large", name="cat", tag="resize"), NewTask(b"tiny", tag="resize")])
    assert [(one.payload, one.tag, one.error, one.attempts) for one in outcomes] == [
        (b"large", "resize", None, 1),
        (b"tiny", "resize", None, 1),
        (b"small", "done", None, 1),
    ]
    assert (outcomes[0].queue, outcomes[0].name) == ("thumbs", "cat")
    assert outcomes[0].result == NewTask(b"small", queue="thumbs", tag="done")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_task_that_fails_is_tried_again_after_its_back_off(kind: str) -> None:
    app, clock = App(), ManualClock()
    called_at: list[float] = []

    def flaky(task: Task) -> None:
        called_at.append(clock.monotonic())
        if task.lease_number < 3:
            raise ValueError("not yet")

    async def flaky_too(task: Task) -> None:
        await asyncio.sleep(0)
        flaky(task)

    app.task(queue="q")(flaky if kind == "plain" else flaky_too)
    queues = MemoryQueues(QueueSpec("q", retry_min_seconds=10.0, retry_max_seconds=60.0), clock=clock)
    (outcome,) = run_until_empty(app, b"work", queues=queues)
    assert (outcome.error, outcome.attempts) == (None, 3)
    assert [later - called_at[0] for later in called_at] == [0.0, 10.0, 30.0]


def test_a_delayed_task_runs_when_its_time_has_come() -> None:
    app, queues = App(), MemoryQueues()
    began_at = queues.clock.now()
    seen: dict[str, int] = {}

    @app.task(queue="q")
    def note(task: Task) -> None:
        seen[task.text] = queues.clock.now() - began_at

    run_until_empty(app, [NewTask(b"later", delay_seconds=3600.0), NewTask(b"now")], queues=queues)
    assert seen == {"now": 0, "later": 3_600_000_000}


def test_errors_retries_and_deaths_are_as_a_worker_has_them() -> None:
    app = App()
    retried: list[str] = []

    @app.task(queue="q", tag="dead")
    def give_up(task: Task) -> None:
        raise Dead("not an image")

    @app.task(queue="q", tag="busy", on={ConnectionError: Retry(30.0)})
    def busy(task: Task) -> None:
        if not retried:
            retried.append(task.name)
            raise ConnectionError

    @app.task(queue="q", tag="wrong")
    def wrong(task: Task) -> int:
        return 7

    @app.task(queue="q", tag="astray")
    def astray(task: Task) -> NewTask:
        return NewTask(queue="nowhere")

    tags = ["dead", "busy", "wrong", "astray"]
    outcomes = run_until_empty(app, [NewTask(tag=tag, max_leases=2) for tag in tags])
    by_tag = {outcome.tag: outcome for outcome in outcomes}
    assert {tag: (type(one.error), one.attempts) for tag, one in by_tag.items()} == {
        "dead": (Dead, 1),
        "busy": (type(None), 2),
        "wrong": (TypeError, 2),
        "astray": (QueueError, 2),
    }


def test_a_batch_handler_gets_a_batch_and_each_task_its_entry() -> None:
    app = App()
    sizes: list[int] = []

    @app.task(queue="q", batch=10)
    def batch(tasks: list[Task]) -> list[NewTask | None]:
        sizes.append(len(tasks))
        return [NewTask(task.payload, queue="next") if task.text == "b" else None for task in tasks]

    queues = MemoryQueues(QueueSpec("next"))
    outcomes = run_until_empty(app, [NewTask(payload) for payload in (b"a", b"b", b"c")], queues=queues)
    assert sizes == [3]
    assert [outcome.result is None for outcome in outcomes] == [True, False, True]
    assert [lease.payload for lease in queues.queue("next").lease(10)] == [b"b"]


def test_plain_handlers_run_in_the_thread_of_the_test() -> None:
    app = App()
    threads: list[threading.Thread] = []

    @app.task(queue="q")
    def note(task: Task) -> None:
        threads.append(threading.current_thread())

    run_until_empty(app, b"work")
    assert threads == [threading.current_thread()]


def test_a_task_that_is_retried_for_ever_ends_the_run() -> None:
    app = App()

    @app.task(queue="q")
    def fail(task: Task) -> None:
        raise ValueError("never")

    with pytest.raises(NotEmptyError, match="ValueError: never"):
        run_until_empty(app, b"work", max_calls=5)


def test_tasks_that_nobody_handles_are_told() -> None:
    app = App()

    @app.task(queue="q", tag="known")
    def known(task: Task) -> None:
        """Never called."""

    with pytest.raises(NotEmptyError, match="no handler"):
        run_until_empty(app, NewTask(tag="unknown"))


def test_a_paused_queue_is_told() -> None:
    app, queues = App(), MemoryQueues(QueueSpec("q"))
    app.task(queue="q")(lambda _task: None)
    queues.queue("q").pause()
    with pytest.raises(NotEmptyError, match="paused"):
        run_until_empty(app, [NewTask(delay_seconds=1.0), NewTask()], queues=queues)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("the handler's own check")])
def test_what_is_meant_for_the_test_is_no_failure_of_the_handler(error: BaseException) -> None:
    app = App()

    @app.task(queue="q")
    def interrupted(task: Task) -> None:
        raise error

    with pytest.raises(type(error)):
        run_until_empty(app, [NewTask(), NewTask()])


def test_a_task_without_a_queue_needs_an_app_with_one() -> None:
    app = App()
    app.task(queue="one")(lambda _task: None)
    app.task(queue="two")(lambda _task: None)
    with pytest.raises(AppError, match="one, two"):
        run_until_empty(app, b"work")
    assert [outcome.queue for outcome in run_until_empty(app, NewTask(queue="two"))] == ["two"]


def test_functions_run_with_what_they_add_and_return() -> None:
    app, queues = App("towline.yaml"), MemoryQueues()  # no such file: nothing is opened but the test's queues

    @app.function(queue="pages")
    def count(words: list[str]) -> int:
        return len(words)

    @app.function(queue="books", retry=Backoff("10s", attempts=3))
    def read(text: str, task: Injected[Task] = INJECTED) -> None:
        if task.lease_number == 1:
            raise ValueError("not yet")
        for line in text.splitlines():
            count.add(line.split())

    began_at = queues.clock.now()
    outcomes = run_until_empty(app, read.task("two words\nthree more words"), queues=queues)
    assert [(one.tag, one.result, one.attempts) for one in outcomes] == [
        ("read", None, 2),
        ("count", 2, 1),
        ("count", 3, 1),
    ]
    assert queues.clock.now() - began_at >= 9_000_000


def test_hooks_run_for_each_worker_of_a_run() -> None:
    app, steps = App(), []

    @app.on_start
    def start() -> None:
        steps.append("start")

    @app.on_stop
    def stop() -> None:
        steps.append("stop")

    @app.function(queue="q")
    def work(number: int) -> None:
        steps.append(number)

    run_until_empty(app, [work.task(1), work.task(2), work.with_(delay=60).task(3)])
    assert steps == ["start", 1, 2, "stop", "start", 3, "stop"]


PLUGIN_TESTS = """
import sys

from queue_core import App
from queue_core.testing import MemoryQueues

app = App()


@app.function(queue="thumbs")
def resize(path: str) -> str:
    return path


def test_a_function(towline_queues, run_until_empty):
    assert isinstance(towline_queues, MemoryQueues)
    with app.bound_to(towline_queues):
        resize.add("cat.jpg")
    first, second = run_until_empty(app, resize.task("dog.jpg"))
    assert (first.result, second.result) == ("cat.jpg", "dog.jpg")


def test_each_test_has_queues_of_its_own(run_until_empty):
    assert run_until_empty(app) == []
"""


def test_fixtures_give_each_test_its_queues(tmp_path: Path) -> None:
    (tmp_path / "test_thumbs.py").write_text(PLUGIN_TESTS)
    root = Path(__file__).parents[2]
    options = ["-q", "-p", "queue_core.testing.pytest_plugin", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_loading_the_fixtures_costs_nothing_until_one_is_used() -> None:
    module = "queue_core.testing.pytest_plugin"
    program = f"import sys, pytest; known = {{*sys.modules}}; import {module}; print(*{{*sys.modules}} - known)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"queue_core", "queue_core.testing", module}


def test_pytest_finds_the_fixtures_by_an_entry_point_and_is_no_dependency() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"towline": "queue_core.testing.pytest_plugin"}
    assert not [needed for needed in project["dependencies"] if needed.startswith("pytest")]
