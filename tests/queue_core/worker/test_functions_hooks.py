"""Hooks around a worker's life: when they run, in which thread, what they inject, and what ends when they fail."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core import INJECTED, App, AppError, Injected, NewTask, Task, open_queue
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.task import ANY
from queue_core.testing import run_until_empty
from queue_core.worker import events
from queue_core.worker.lifecycle import EXIT_MISCONFIGURED, EXIT_OK
from tests.support.eventually import eventually
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    yield queues, queue
    queues.close()


class Client:
    """A client that handlers share."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.open = True

    def close(self) -> None:
        self.open = False


class Model:
    """Something else that handlers share."""


@both_kinds
@pytest.mark.parametrize("concurrency", [1, 3])
def test_hooks_run_once_around_all_tasks_and_also_at_a_drain(
    store: tuple[LocalQueues, LocalQueue], kind: str, concurrency: int
) -> None:
    queues, queue = store
    app, seen = App(), []

    @app.on_start
    def start() -> Client:
        seen.append("start")
        return Client("shared")

    @app.on_stop
    def stop(client: Client) -> None:
        client.close()
        seen.append("stop")

    def handle(task: Task, client: Client) -> None:
        seen.append(client.name if client.open else "closed")

    async def handle_async(task: Task, client: Client) -> None:
        await asyncio.sleep(0)
        handle(task, client)

    app.task(queue="q")(handle if kind == "plain" else handle_async)
    queue.add([NewTask(), NewTask(), NewTask()])
    with running_worker(app, queues.queue, concurrency=concurrency) as worker:
        eventually(lambda: queue.stats().deleted_total == 3)
        assert seen == ["start", "shared", "shared", "shared"]
        worker.runner.drain("SIGTERM")
        assert worker.wait() == EXIT_OK
    assert seen == ["start", "shared", "shared", "shared", "stop"]


@both_kinds
def test_async_hooks_run_in_the_loop_of_the_handlers(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, queue = store
    app, loops, steps = App(), [], []

    @app.on_start
    async def client() -> AsyncIterator[Client]:
        loops.append(asyncio.get_running_loop())
        steps.append("open")
        yield Client()
        loops.append(asyncio.get_running_loop())
        steps.append("close")

    @app.on_start
    async def model(client: Client) -> Model:
        await asyncio.sleep(0)
        return Model()

    @app.on_stop
    async def stop(model: Model) -> None:
        await asyncio.sleep(0)
        steps.append("stop")

    if kind == "plain":

        @app.function(queue="q")
        def work(client: Injected[Client] = INJECTED) -> None:
            steps.append("work")

    else:

        @app.function(queue="q")
        async def work(client: Injected[Client] = INJECTED) -> None:
            loops.append(asyncio.get_running_loop())
            steps.append("work")

    queue.add(NewTask(tag="work"))
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().deleted_total == 1)
    assert steps == ["open", "work", "stop", "close"]
    assert len(set(loops)) == 1


def test_what_a_generator_yields_is_injected_by_type_and_closed_last_first() -> None:
    app, steps = App(), []

    @app.on_start
    def client() -> Iterator[Client]:
        steps.append("client")
        yield Client("c")
        steps.append("client closed")

    @app.on_start
    def model(client: Client) -> Iterator[Model]:
        steps.append(f"model with {client.name}")
        yield Model()
        steps.append("model closed")

    @app.function(queue="q")
    def resize(path: str, *, model: Injected[Model] = INJECTED, client: Injected[Client] = INJECTED) -> str:
        assert isinstance(model, Model)
        return path + client.name

    @app.task(queue="q", tag="raw", batch=5)
    def raw(tasks: list[Task], client: Client, suffix: str = "-") -> None:
        steps.append(f"{len(tasks)}{client.name}{suffix}")

    (outcome, _) = run_until_empty(app, [resize.task("cat"), NewTask(queue="q", tag="raw")])
    assert outcome.result == "catc"
    assert steps == ["client", "model with c", "1c-", "model closed", "client closed"]
    assert resize("dog", model=Model(), client=Client("!")) == "dog!"


def test_plain_hooks_and_handlers_share_the_main_thread() -> None:
    app, threads = App(), []

    @app.on_start
    def start() -> None:
        threads.append(threading.current_thread())

    @app.on_stop
    def stop() -> None:
        threads.append(threading.current_thread())

    @app.function(queue="q")
    def work() -> None:
        threads.append(threading.current_thread())

    run_until_empty(app, work.task())
    assert threads == [threading.main_thread()] * 3


def test_a_handler_needs_a_hook_for_what_it_wants() -> None:
    app = App()

    @app.task(queue="q")
    def work(task: Task, client: Client) -> None: ...

    with pytest.raises(AppError, match=r"work: parameter client: no on_start hook .*Client; known: none"):
        run_until_empty(app, NewTask())
    untyped = App()
    untyped.task(queue="q")(lambda task, client: None)
    with pytest.raises(AppError, match="client needs the type"):
        run_until_empty(untyped, NewTask())
    unmarked = App()

    @unmarked.function(queue="q")
    def forgot(path: str, client: Injected[Client]) -> None: ...

    with pytest.raises(AppError, match="client needs the default INJECTED"):
        run_until_empty(unmarked, NewTask(tag="forgot"))


def test_two_hooks_of_one_type_contradict_each_other() -> None:
    app = App()
    app.task(queue="q")(lambda _task: None)

    @app.on_start
    def one() -> Client:
        return Client()

    @app.on_start
    def two() -> Client:
        return Client()

    with pytest.raises(AppError, match=r"one and .*two both return .*Client"):
        run_until_empty(app, NewTask())
    with pytest.raises(AppError, match="must not yield"):

        @app.on_stop
        def three() -> Iterator[None]:
            yield


def test_a_hook_that_fails_at_the_end_is_logged_and_the_others_run(store: tuple[LocalQueues, LocalQueue]) -> None:
    queues, _ = store
    app, steps = App(), []
    app.task(queue="q")(lambda _task: None)

    @app.on_start
    def twice() -> Iterator[Client]:
        yield Client()
        yield Client()

    @app.on_stop
    def broken() -> None:
        raise ValueError("the client was gone")

    @app.on_stop
    def whole() -> None:
        steps.append("whole")

    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        worker.runner.drain("the test")
        assert worker.wait() == EXIT_OK
    entries = [entry for entry in logs if entry["event"] == events.HOOK_FAILED]
    failed = [(entry["hook"].rpartition(".")[2], entry["error"]) for entry in entries]
    assert failed == [("broken", "ValueError"), ("twice", "AppError")]
    assert steps == ["whole"]


def test_a_hook_that_fails_at_the_start_raises_after_closing_those_before_it() -> None:
    app, steps = App(), []
    app.task(queue="q")(lambda _task: steps.append("handled"))

    @app.on_start
    def first() -> Iterator[Client]:
        yield Client()
        steps.append("closed")

    @app.on_start
    async def second() -> None:
        raise ValueError("no network")

    @app.on_stop
    def stop() -> None:
        steps.append("stopped")

    with pytest.raises(AppError, match="second failed: ValueError") as raised:
        run_until_empty(app, NewTask())
    assert isinstance(raised.value.__cause__, ValueError)
    assert steps == ["closed"]


PROGRAM = """
from pathlib import Path
from queue_core import App, INJECTED, Injected

app = App("towline.yaml")  # which is not there: a worker adds to the queues it leases from


class Log:
    def write(self, text):
        with Path("steps").open("a") as file:
            file.write(text + " ")


@app.on_start
def log() -> Log:
    Log().write("start")
    if Path("broken").exists():
        raise ValueError("a broken model")
    return Log()


@app.on_stop
def stop(log: Log) -> None:
    log.write("stop")


@app.function(queue="q")
def count(number: int, *, log: Injected[Log] = INJECTED) -> None:
    log.write(str(number))
    if number:
        count.add(number - 1)
"""


def worked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a worker of the program until it has had three tasks, or is refused."""
    (folder / "counting.py").write_text(PROGRAM)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "TOWLINE_APP": "counting:app",
        "TOWLINE_URL": f"sqlite:///{folder}/q.db",
        "TOWLINE_RECYCLE": '{"tasks": 3}',
    }
    command = [sys.executable, "-m", "queue_core.worker"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_worker_process_runs_its_hooks_and_adds_to_the_queues_it_leases_from(tmp_path: Path) -> None:
    queue = open_queue(f"sqlite:///{tmp_path}/q.db", "q")
    queue.add(NewTask(b'{"number":2}', tag="count"))
    ended = worked(tmp_path)
    assert ended.returncode == EXIT_OK, ended.stderr
    assert (tmp_path / "steps").read_text() == "start 2 1 0 stop "
    assert queue.stats().deleted_total == 3
    queue.close()


def test_a_worker_whose_hook_fails_is_refused_like_one_with_a_broken_app(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    ended = worked(tmp_path)
    assert ended.returncode == EXIT_MISCONFIGURED, ended.stderr
    assert events.WORKER_REFUSED in ended.stderr
    assert "on_start log failed: ValueError" in ended.stderr
    assert "a broken model" in ended.stderr
    assert (tmp_path / "steps").read_text() == "start "


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
REGION: ContextVar[str] = ContextVar("region", default="nowhere")


@both_kinds
@pytest.mark.parametrize("concurrency", [1, 2])
def test_context_variables_that_hooks_set_reach_handlers_and_the_hooks_of_the_end(
    store: tuple[LocalQueues, LocalQueue], kind: str, concurrency: int
) -> None:
    queues, queue = store
    app, seen = App(), []

    @app.on_start
    def start() -> None:
        TENANT.set("acme")

    @app.on_start
    async def start_async() -> None:
        REGION.set(f"{TENANT.get()}-west")

    @app.on_stop
    def stop() -> None:
        seen.append((TENANT.get(), REGION.get()))

    def handle(_: Task) -> None:
        seen.append((TENANT.get(), REGION.get()))
        TENANT.set("another")

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add([NewTask(b"1"), NewTask(b"2")])
    with running_worker(app, queues.queue, concurrency=concurrency):
        eventually(lambda: len(seen) == 2)
    assert seen == [("acme", "acme-west")] * 3


def test_a_hook_whose_value_only_type_checkers_know_is_refused_where_a_handler_needs_its_value() -> None:
    app = App()

    @app.on_start
    def start() -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    app.hooks.check([])

    @app.task(queue="q")
    def handle(task: "Elsewhere", client: Client) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    with pytest.raises(AppError, match=r"no on_start hook before it returns Client.*'Nowhere' is not defined"):
        app.prepare(app.serving("q", ANY))
