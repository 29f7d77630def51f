"""Queues that move while everything is alive: real processes, killed at chosen points, and workers at both ends."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from queue_core.client.connect import open_queues
from queue_core.client.local_calls import LocalQueues
from queue_core.errors import QueueMovedError
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.worker import events
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually
from tests.support.fleet.worker_story import WorkerStory
from tests.support.servers import a_server
from tests.support.stores.stores import STORES, new_url, opened
from tests.support.stores.transfers import (
    QUEUE,
    exported,
    fill,
    gives_out,
    imported,
    moved,
    moved_to,
    names_of,
    tasks_of,
)

ROOT = Path(__file__).parents[2]
TASKS = 1100
MOST_GROWTH_BYTES = 24 << 20
"""What ten times as many tasks may add to a process: their payloads alone would be four times as much."""


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A process that moves queues."""
    return subprocess.run(
        [sys.executable, "-m", "tests.support.stores.transfer_process", *map(str, arguments)],
        cwd=ROOT,
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


Urls = Callable[[str], str]


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store in another process's reach."""
    store = open_store(f"sqlite:///{tmp_path}/new.db" if request.param == "sqlite" else new_url(request.param))
    yield store
    assert store.check().problems == ()
    store.close()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Store]:
    """A store with a queue that has everything in it."""
    store = open_store(f"sqlite:///{tmp_path}/old.db", durability="relaxed")
    fill(store, tasks=TASKS)
    yield store
    store.close()


def test_a_queue_goes_once_round_through_all_stores(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stores: list[Store] = []
        for number, name in enumerate((*STORES, "sqlite")):
            (tmp_path / str(number)).mkdir()
            stores.append(stack.enter_context(opened(name, tmp_path / str(number))))
        fill(stores[0])
        before, names = tasks_of(stores[0]), names_of(stores[0])
        for one, next_one in pairwise(stores):
            moved(one, next_one)
            assert moved_to(one) == next_one.url
        assert tasks_of(stores[-1]) == before
        assert names_of(stores[-1]) == names


# -- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [2, 4, 5, 7])
def test_a_move_whose_process_is_killed_goes_on_and_doubles_nothing(old: Store, new: Store, at: int) -> None:
    done = process("migrate", old.url, new.url, at)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (gives_out(old) and gives_out(new))
    moved(old, new)
    assert tasks_of(new) == tasks_of(old)
    assert names_of(new) == names_of(old)
    assert (moved_to(old), moved_to(new)) == (new.url, "")


@pytest.mark.parametrize("at", [2, 4, 5, 7])
def test_an_import_whose_process_is_killed_goes_on_and_doubles_nothing(
    old: Store, new: Store, tmp_path: Path, at: int
) -> None:
    path = tmp_path / "x.jsonl.gz"
    exported(old, path)
    done = process("import", path, new.url, at)
    assert done.returncode == -signal.SIGKILL, done.stderr
    imported(new, path)
    assert tasks_of(new) == tasks_of(old)
    assert names_of(new) == names_of(old)
    assert moved_to(new) == ""


def test_an_export_whose_process_is_killed_at_any_time_is_completed(old: Store, tmp_path: Path) -> None:
    fill(old, queue="more", tasks=4000)
    path = tmp_path / "x.jsonl"
    command = [sys.executable, "-m", "tests.support.stores.transfer_process", "export", old.url, str(path)]
    with subprocess.Popen(command, cwd=ROOT, env=program_environment()) as running:
        eventually(lambda: path.exists() and path.stat().st_size > 1 << 20)
        running.kill()
    told = exported(old, path, mode="resume")
    assert (told.tasks, told.was_whole) == (TASKS + 4018, False)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_tasks(tmp_path: Path) -> None:
    took: dict[tuple[str, int], int] = {}
    for tasks in (10_000, 100_000):
        folder = tmp_path / str(tasks)
        folder.mkdir()
        store = open_store(f"sqlite:///{folder}/old.db", durability="relaxed")
        queues = LocalQueues(QueueService(store))
        queues.put_queue(QueueSpec(QUEUE))
        for _ in range(tasks // 1000):
            queues.queue(QUEUE).add([NewTask(b"x" * 1000, tag=f"t-{number % 7}") for number in range(1000)])
        url = store.url
        queues.close()
        for verb, source, target in (
            ("export", url, f"{folder}/x.jsonl"),
            ("import", f"{folder}/x.jsonl", f"sqlite:///{folder}/new.db"),
            ("migrate", url, f"sqlite:///{folder}/moved.db"),
        ):
            done = process(verb, source, target)
            assert done.returncode == 0, done.stderr
            took[verb, tasks] = int(done.stdout)
        arrived = open_store(f"sqlite:///{folder}/moved.db")
        assert LocalQueues(QueueService(arrived)).queue(QUEUE).stats().ready == tasks
        arrived.close()
    growth = {verb: took[verb, 100_000] - took[verb, 10_000] for verb in ("export", "import", "migrate")}
    assert max(growth.values()) < MOST_GROWTH_BYTES, growth


# -- workers and servers at both ends ---------------------------------------------------------------------------------


class Spans:
    """When each handler call of `tests.support.fleet.recording_app` began, by task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, number: int) -> list[str]:
        """One line per call."""
        notes = self.folder / f"notes-{number}"
        return notes.read_text().splitlines() if notes.exists() else []


def test_workers_at_both_ends_run_no_task_twice_at_a_time_and_none_is_lost(tmp_path: Path, new: Store) -> None:
    old_url = f"sqlite:///{tmp_path}/queue.db"
    queues = cast("LocalQueues", open_queues(old_url, durability="relaxed"))
    queues.put_queue(QueueSpec("thumbs", lease_seconds=3.0, max_lease_seconds=60.0))
    spans = Spans(tmp_path)
    queues.queue("thumbs").add([NewTask(f"hold {tmp_path}/notes-0".encode(), name="held")])
    queues.queue("thumbs").add([NewTask(f"note {tmp_path}/notes-{n}".encode(), name=f"n-{n}") for n in range(1, 60)])
    story = WorkerStory(tmp_path, old_url, queues)
    with story.worker(worker="old-1") as first, story.worker(worker="old-2") as second:
        eventually(lambda: spans.of(0) and queues.queue("thumbs").stats().deleted_total > 5, seconds=20)
        told = run_program("migrate", "--from", old_url, "--to", new.url, "--json", folder=tmp_path)
        assert told.code == 0, told.err
        away = WorkerStory(tmp_path, new.url, LocalQueues(QueueService(new)))
        with away.worker(worker="new-1"):
            # One of the old workers still runs the task it holds; the other ends and says why.
            eventually(lambda: (first.poll() is None) != (second.poll() is None), seconds=20)
            assert {first.poll(), second.poll()} == {78, None}
            eventually(lambda: len(spans.of(0)) == 2, seconds=20)
            (held,) = queues.queue("thumbs").peek(names=["held"]).tasks  # its eta is the end of the lease it had there
            assert float(spans.of(0)[1].split()[2]) * 1_000_000 >= held.eta
            Path(f"{tmp_path}/notes-0.go").touch()
            assert {first.wait(timeout=20), second.wait(timeout=20)} == {78}
            eventually(lambda: away.queue.stats().deleted_total + told_deleted(queues) == 60, seconds=20)
    assert all(len(spans.of(number)) >= 1 for number in range(60))
    assert sum(len(spans.of(number)) for number in range(60)) <= 62
    refused = [line for line in story.logged(events.WORKER_REFUSED) if line.get("error") == "QueueMovedError"]
    assert len(refused) == 2
    assert all(new.url in str(line["reason"]) for line in refused)
    queues.close()


def told_deleted(queues: LocalQueues) -> int:
    """How many tasks were finished at the old store."""
    return queues.queue("thumbs").stats().deleted_total


def test_a_server_of_the_old_store_answers_404_queue_moved_at_once(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/old.db")
    with a_server(store) as server, closing(server.queue()) as queue:
        queue.add([NewTask(b"x"), NewTask(b"y")])
        (lease,) = queue.lease()
        told = run_program(
            "migrate", "--from", store.url, "--to", f"sqlite:///{tmp_path}/new.db", "--json", folder=tmp_path
        )
        assert told.code == 0, told.err
        for verb in (
            lambda: queue.add(b"z"),
            lambda: queue.lease(1),
            lambda: queue.renew(lease, seconds=60),
            lambda: queue.delete(lease),
            lambda: queue.release(lease),
        ):
            with pytest.raises(QueueMovedError, match=r"new\.db"):
                verb()
        reply = server.ask("POST", "/v1/queues/work/lease", b"{}")
        assert (reply.status, reply.json()["type"]) == (404, "urn:towline:problem:queue-moved")
        assert queue.stats().paused
        back = run_program(
            "migrate", "--from", store.url, "--to", f"sqlite:///{tmp_path}/new.db", "--abort", folder=tmp_path
        )
        assert back.code == 0, back.err
        assert queue.delete(lease) == []
        assert len(queue.lease()) == 1
