"""A supervisor process, its workers and a store on disk: what happens to the work when any of them is killed."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.runtimes import procfs
from queue_core.task import NewTask, QueueSpec
from tests.support.eventually import eventually
from tests.support.fleet.supervised_site import POOL, REPOSITORY, SupervisedSite, a_site

CLOCK = SystemMonotonicClock()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SupervisedSite]:
    with a_site(tmp_path) as site:
        yield site


def test_work_is_done_by_workers_that_come_and_a_stop_ends_them_all(site: SupervisedSite) -> None:
    site.write(resize=POOL)
    supervisor = site.start()
    assert site.workers() == {}
    for _ in range(20):
        site.queue.add(NewTask(f"note {site.folder}/notes".encode()))
    eventually(site.is_done)
    assert len(site.notes()) == 20
    assert site.workers()
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=60) == 0
    assert site.workers() == {}
    assert site.shown()["phase"] == "stopped"
    assert not site.files.is_supervised()


def test_tasks_with_an_eta_find_workers_that_took_longer_to_start_than_they_may_wait(site: SupervisedSite) -> None:
    more = {
        "app": "tests.support.fleet.slow_import_app:app",
        "slo": "1s",
        "workers": {"max": 16},
        "spawn_parallelism": 1,
    }
    site.write(resize={**POOL, **more})
    # A minute is within sixteen starts, one at a time, and long enough for a slow machine.
    site.queue.add([NewTask(f"note {site.folder}/notes".encode(), delay_seconds=60.0)] * 16)
    site.start()
    eventually(lambda: site.logged("worker.started"), seconds=50)
    stats = site.queue.stats()
    assert (stats.delayed, stats.leased_total) == (16, 0)
    assert "16 tasks are due within" in str(site.logged("pool.decided")[0]["why"])


def test_pools_that_take_the_same_tasks_start_one_worker_for_one_of_them(site: SupervisedSite) -> None:
    pool = {**POOL, "slo": "20s"}
    site.write(resize=pool, other=pool)
    site.start()
    site.hold()
    eventually(site.notes)
    eventually(lambda: [pool["sample"]["in_flight"] for pool in site.shown()["pools"].values()] == [1, 1])  # type: ignore[attr-defined]
    assert len(site.workers()) == 1
    site.let_go()
    eventually(site.is_done)


def test_workers_that_end_after_each_task_are_no_crash_loop(site: SupervisedSite) -> None:
    command = [sys.executable, "-m", "tests.support.fleet.one_shot"]
    site.write(resize={**POOL, "app": None, "command": command, "slo": "60s", "workers": {"max": 4}})
    site.start()
    for _ in range(16):
        site.queue.add(NewTask(f"note {site.folder}/notes".encode()))
    eventually(site.is_done, seconds=120)
    assert len({worker for worker, _ in site.notes()}) == 16
    assert not [entry for entry in site.logged("worker.reaped") if entry["cause"] != "finished"]
    assert not [entry for entry in site.logged("pool.decided") if "crash_loop" in entry["limited_by"]]


def test_a_pool_goes_back_to_what_its_downstream_stands(site: SupervisedSite) -> None:
    site.queues.put_queue(QueueSpec("thumbs", lease_seconds=120, max_leases=3))
    site.write(resize={**POOL, "app": "tests.support.throttled_app:app", "slo": "1s", "workers": {"max": 6}})
    site.start()
    for _ in range(80):
        site.queue.add(NewTask(str(site.folder).encode()))
    eventually(lambda: site.queue.stats().deleted_total + site.queue.stats().dead == 80, seconds=120)
    assert site.queue.stats().dead == 0
    said = [why for entry in site.logged("pool.decided") for why in cast("list[str]", entry["limits"])]
    assert [why for why in said if "of leases fail at" in why]


def test_a_task_for_an_empty_pool_is_leased_without_waiting_for_a_turn(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "slo": "50s"})  # a turn every 5 s
    site.start()
    added_at = CLOCK.wall_seconds()
    site.queue.add(NewTask(f"note {site.folder}/notes".encode()))
    (note,) = eventually(site.notes)
    assert float(note[2]) - added_at < 3.0


def test_the_task_of_a_killed_worker_is_begun_again_within_a_second(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "workers": {"min": 2, "max": 2}})
    site.start()
    eventually(lambda: len(site.workers()) == 2)
    site.hold()
    (first,) = eventually(site.notes)
    killed_at = CLOCK.wall_seconds()
    os.kill(int(first[1]), signal.SIGKILL)
    second = eventually(lambda: len(site.notes()) == 2 and site.notes()[1])
    assert float(second[2]) - killed_at < 1.0
    assert second[0] != first[0]
    assert second[3] == "2"
    (death,) = eventually(lambda: site.files.read_deaths(limit=10))
    assert (death["worker"], death["cause"], death["signal"]) == (first[0], "signalled", 9)
    assert len(death["held"]) == 1  # type: ignore[arg-type]
    site.let_go()
    eventually(site.is_done)


def test_a_supervisor_that_stops_ends_within_its_grace_although_another_has_its_folder(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "workers": {"min": 1, "max": 1}, "grace": "60s"})
    old = site.start()
    (worker,) = eventually(site.workers)
    site.hold()
    (note,) = eventually(site.notes)
    old.send_signal(signal.SIGTERM)
    eventually(lambda: site.shown()["phase"] == "stopping")
    while site.files.path.exists():  # the old one may write while it is removed
        shutil.rmtree(site.files.path, ignore_errors=True)
    new = site.start()  # leads at once
    assert old.poll() is None
    assert worker not in {adopted["worker"] for adopted in site.logged("worker.adopted")}
    eventually(lambda: len(site.workers()) == 2)
    site.let_go()
    assert old.wait(timeout=30) == 0
    eventually(site.is_done)
    assert site.notes() == [note]
    assert worker not in {death["worker"] for death in site.files.read_deaths(limit=10)}  # the new one's records
    assert site.shown()["pid"] == new.pid
    assert site.shown()["phase"] == "leading"
    new.send_signal(signal.SIGTERM)
    assert new.wait(timeout=20) == 0
    assert site.workers() == {}


def test_a_killed_supervisor_comes_back_to_the_same_workers(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "workers": {"min": 2, "max": 2}})
    first = site.start()
    eventually(lambda: len(site.workers()) == 2)
    site.hold()
    eventually(site.notes)
    before = site.workers()
    first.kill()
    first.wait()
    second = site.start()
    shown = {worker["worker"]: worker["pid"] for worker in site.shown()["workers"]}  # type: ignore[attr-defined]
    assert shown == before == site.workers()
    assert all(worker["adopted"] for worker in site.shown()["workers"])  # type: ignore[attr-defined]
    site.let_go()
    eventually(site.is_done)
    assert len(site.notes()) == 1  # nobody else was given the task
    # An adopted worker is no child of this supervisor, and yet its end is seen at once.
    worker, pid = next(iter(before.items()))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: worker in {death["worker"] for death in site.files.read_deaths(limit=10)}, seconds=5)
    eventually(lambda: len(site.workers()) == 2)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0
    assert site.workers() == {}


def test_workers_whose_supervisor_does_not_come_back_end_by_themselves(site: SupervisedSite) -> None:
    site.write(orphan_grace="1s", resize={**POOL, "workers": {"min": 1}})
    supervisor = site.start()
    eventually(site.workers)
    supervisor.kill()
    supervisor.wait()
    eventually(lambda: not site.workers(), seconds=20)


def test_any_program_whose_supervisor_does_not_come_back_is_ended_by_the_watchdog(site: SupervisedSite) -> None:
    stubborn = "trap 'echo asked' TERM; while :; do sleep 600 & wait $!; done"
    pool = {"queue": "thumbs", "command": ["sh", "-c", stubborn], "slo": "5s", "grace": "1s", "workers": {"min": 1}}
    site.write(orphan_grace="1s", other=pool)
    supervisor = site.start()
    (worker,) = eventually(site.workers)
    supervisor.kill()
    supervisor.wait()
    eventually(lambda: not procfs.worker_processes(str(site.files.path)), seconds=30)
    assert (site.files.path / "workers" / f"{worker}.log").read_text() == "asked\n"


def test_a_second_supervisor_of_the_same_state_is_refused(site: SupervisedSite) -> None:
    site.write(resize=POOL)
    site.start()
    second = subprocess.run(
        [sys.executable, "-m", "tests.support.fleet.supervisor_program", str(site.settings)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode != 0
    assert "AlreadySupervisedError" in second.stderr


def test_a_changed_file_changes_the_pools_and_a_broken_one_changes_nothing(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "workers": {"min": 1}}, encode={**POOL, "workers": {"min": 1}})
    supervisor = site.start()
    before = eventually(lambda: len(site.workers()) == 2 and site.workers())
    (kept,) = [worker for worker in before if worker.startswith("resize-")]
    site.write(resize={**POOL, "workers": {"min": 1}}, extra={**POOL, "workers": {"min": 1}})
    eventually(lambda: sorted(w.split("-")[0] for w in site.workers()) == ["extra", "resize"])
    assert site.workers()[kept] == before[kept]
    site.write(resize={**POOL, "slo": "never"})
    eventually(lambda: site.logged("supervisor.reload_refused"))
    supervisor.send_signal(signal.SIGHUP)
    eventually(lambda: len(site.logged("supervisor.reload_refused")) == 2)
    assert site.workers()[kept] == before[kept]


def test_a_pool_whose_workers_change_replaces_them_new_before_old(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "workers": {"min": 1, "max": 2}})
    site.start()
    (old,) = eventually(site.workers)
    eventually(lambda: site.logged("worker.started"))
    site.write(resize={**POOL, "workers": {"min": 1, "max": 2}, "env": {"COLOUR": "blue"}})
    eventually(lambda: old not in site.workers())
    (ended,) = eventually(lambda: [entry for entry in site.logged("worker.reaped") if entry["worker"] == old])
    spawned = [entry for entry in site.logged("worker.spawned") if entry["replaces"] == old]
    assert spawned[0]["timestamp"] < ended["timestamp"]  # type: ignore[operator]
    assert ended["cause"] == "drained"
    assert len(site.workers()) == 1


def test_workers_that_cannot_start_are_started_less_and_less_often(site: SupervisedSite) -> None:
    site.write(broken={**POOL, "app": "no.such.module:app", "workers": {"min": 2}})
    site.start()
    eventually(lambda: len(site.files.read_deaths(limit=10)) >= 2)
    deaths = site.files.read_deaths(limit=10)
    assert {death["cause"] for death in deaths} == {"misconfigured"}
    assert any("no.such.module" in line for line in deaths[0]["last_lines"])  # type: ignore[attr-defined]
    shown = eventually(lambda: (p := site.shown()["pools"]["broken"])["failed_starts"] and p)  # type: ignore[index]
    assert shown["next_start_at"] is not None


def test_a_handler_that_does_not_finish_is_ended_by_a_second_request_to_stop(site: SupervisedSite) -> None:
    site.write(resize={**POOL, "grace": "300s"})
    supervisor = site.start()
    site.hold()
    eventually(site.notes)
    supervisor.send_signal(signal.SIGTERM)
    eventually(lambda: site.shown()["phase"] == "stopping")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=60) == 0
    assert site.workers() == {}
    assert site.queue.stats().ready == 1
