"""Pools of Celery's workers under `towline up`: what happens to the work when something happens to them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.task import TaskState
from tests.support.commands import run_program
from tests.support.eventually import eventually
from tests.support.fleet.celery_site import ADMIN_TOKEN, STORE_QUEUES, WORKER_TOKEN, CelerySite, TaskNote, celery_site

SECONDS = 60.0


@pytest.fixture(scope="module")
def site() -> Iterator[CelerySite]:
    """A pool that has worked: each test leaves it without tasks."""
    with celery_site() as site:
        site.write(
            queues={"default": {"max_leases": 2, "retry": {"min": "0.1s", "max": "0.1s"}}},
            shop=site.pool(workers={"min": 1, "max": 2}, grace="2s"),
        )
        site.up()
        yield site


def test_a_worker_takes_tasks_of_all_its_queues_by_their_own_names(site: CelerySite) -> None:
    site.send("nap", "one", 0.0)
    site.send("nap", "two", 0.0, queue="odd_images")
    eventually(lambda: len(site.notes("end")) == 2, seconds=SECONDS)
    assert {note.task for note in site.notes("end")} == {"one", "two"}
    eventually(lambda: [site.stats(queue).deleted_total for queue in STORE_QUEUES] == [1, 1])  # soon after they end


def test_a_worker_is_seen_busy_and_idle_and_its_node_has_its_name(site: CelerySite) -> None:
    site.send("hold", "seen", queue="odd_images")
    (note,) = eventually(lambda: [one for one in site.notes() if one.task == "seen"], seconds=SECONDS)
    busy = eventually(lambda: site.workers()[note.worker]["state"] == "busy", seconds=SECONDS)
    assert busy
    command = Path(f"/proc/{site.pids()[note.worker]}/cmdline").read_bytes().decode().split("\0")
    told = run_program("logs", note.worker, folder=site.folder, environment=site.environment).out
    site.let_go("seen")
    eventually(lambda: site.workers()[note.worker]["state"] == "idle", seconds=SECONDS)
    assert f"{note.worker}@" in told  # the node's name, in Celery's banner
    assert not {ADMIN_TOKEN, WORKER_TOKEN} & set(command)
    assert ADMIN_TOKEN not in told
    assert WORKER_TOKEN not in told


def test_tasks_of_a_worker_that_is_killed_run_again_and_its_death_is_told(site: CelerySite) -> None:
    for name in ("cut-1", "cut-2"):
        site.send("hold", name, queue="odd_images")
    eventually(lambda: len(_of(site, "cut-1", "cut-2")) == 2, seconds=SECONDS)
    begun = _of(site, "cut-1", "cut-2")
    victim = begun[0].worker
    pid = site.pids()[victim]
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    for one in (pid, *children):
        _kill(one)
    lost = [note.task for note in begun if note.worker == victim]
    eventually(lambda: all(len(_of(site, name)) == 2 for name in lost), seconds=SECONDS)
    assert victim not in {_of(site, name)[1].worker for name in lost}
    for name in ("cut-1", "cut-2"):
        site.let_go(name)
    eventually(lambda: {"cut-1", "cut-2"} <= {one.task for one in site.notes("end")}, seconds=SECONDS)
    death = eventually(lambda: site.deaths().get(victim))
    assert (death["cause"], death["signal"]) == ("signalled", 9)


def test_a_poisonous_task_ends_as_dead_with_its_reason_and_its_neighbour_goes_on(site: CelerySite) -> None:
    site.send("hold", "neighbour", queue="odd_images")
    eventually(lambda: _of(site, "neighbour"), seconds=SECONDS)
    site.send("poison", "bad")
    eventually(lambda: site.stats().dead == 1, seconds=SECONDS)
    assert len(_of(site, "bad")) == 2  # max_leases
    assert len(_of(site, "neighbour")) == 1
    site.let_go("neighbour")
    eventually(lambda: "neighbour" in {one.task for one in site.notes("end")}, seconds=SECONDS)
    (dead,) = site.tasks(TaskState.DEAD)
    assert "process that ran it died" in dead.reason


def test_a_worker_that_outlives_its_grace_is_told_to_give_its_tasks_back(site: CelerySite) -> None:
    site.send("hold", "late")
    (note,) = eventually(lambda: _of(site, "late"), seconds=SECONDS)
    site.down()
    death = site.deaths()[note.worker]
    assert (death["cause"], death["code"]) == ("overdue", 0)  # it ended by itself, on SIGQUIT
    assert [one["signal"] for one in site.logged("worker.cut_short")] == ["SIGQUIT"]
    assert not site.logged("worker.killed")
    (back,) = site.tasks(TaskState.READY)
    assert back.tag == "hold"


def _of(site: CelerySite, *names: str) -> list[TaskNote]:
    return [note for note in site.notes() if note.task in names]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it died with its parent
        return
