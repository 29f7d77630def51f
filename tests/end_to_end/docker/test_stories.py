"""Containers under a supervisor on a real engine: what happens to the work when something happens to them."""

from typing import cast

import pytest

from queue_core.task import TaskState
from tests.support.commands import run_program
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.site import DockerSite, docker_site
from tests.support.docker.stop import stopped
from tests.support.eventually import eventually

SECONDS = 30.0
APP = "tests.support.docker.container_app:app"


def test_a_pool_of_containers_grows_from_none_survives_a_kill_finishes_and_shrinks_to_none(site: DockerSite) -> None:
    site.write(resize=site.pool(slo="3s", churn="1s", workers={"min": 0, "max": 4}))
    site.start()
    assert site.living() == {}
    names = site.add("hold go", *["rest 0.5"] * 40)
    eventually(lambda: len(site.living()) >= 2, seconds=SECONDS)
    first = eventually(lambda: next((note for note in site.notes() if note.task == names[0]), None), seconds=SECONDS)
    with site.engine.client() as client:
        client.kill(site.living()[first.worker], "SIGKILL")
    eventually(lambda: [note.task for note in site.notes()].count(names[0]) == 2, seconds=SECONDS)
    (site.folder / "go").touch()
    eventually(site.is_done, seconds=SECONDS)
    assert {note.task for note in site.notes("end")} == set(names)
    assert site.deaths()[first.worker]["signal"] == 9
    eventually(lambda: site.living() == {}, seconds=SECONDS)
    site.stop()


def test_a_container_removed_behind_the_back_of_its_supervisor_is_replaced_and_its_task_runs_again(
    site: DockerSite,
) -> None:
    site.write(resize=site.pool(workers={"min": 2, "max": 2}))
    site.start()
    (name,) = site.add("hold go")
    (first,) = eventually(site.notes, seconds=SECONDS)
    with site.engine.client() as client:
        client.remove_container(site.living()[first.worker], force=True)
    second = eventually(lambda: len(site.notes()) == 2 and site.notes()[1], seconds=SECONDS)
    assert (second.task, second.lease_number) == (name, 1)  # neither it nor its worker was at fault
    assert second.worker != first.worker
    death = eventually(lambda: site.deaths().get(first.worker))
    assert (death["cause"], death["detail"]) == ("removed", "its container was removed by somebody else")
    assert len(death["held"]) == 1  # type: ignore[arg-type]
    told = run_program("why-died", first.worker, folder=site.folder).out
    assert "removed by somebody else" in " ".join(told.split())
    assert "oom" not in told
    assert "removed by somebody else" in " ".join(run_program("doctor", folder=site.folder).out.split())
    (site.folder / "go").touch()
    eventually(site.is_done)
    eventually(lambda: len(site.living()) == 2 and set(site.living()) == site.believed(), seconds=SECONDS)
    site.stop()


def test_a_container_over_its_memory_limit_is_told_with_the_limit_and_its_task_runs_again(site: DockerSite) -> None:
    site.write(resize=site.pool(workers={"max": 2}, container={"memory": "96MiB"}))
    site.start()
    site.add("eat 200")
    eventually(site.is_done, seconds=SECONDS)
    first, second = site.notes()
    assert (second.lease_number, second.worker != first.worker) == (2, True)
    death = eventually(lambda: site.deaths().get(first.worker))
    assert (death["cause"], death["signal"]) == ("out of memory", 9)
    assert death["memory_limit_bytes"] == 96 << 20
    assert int(str(death["memory_peak_bytes"])) >= 90 << 20
    site.stop()


def test_a_changed_image_and_a_lowered_max_cut_no_container_short(site: DockerSite) -> None:
    with site.engine.client() as client:
        repository, _, tag = site.engine.image().rpartition(":")
        client.tag(site.engine.image(), repository, f"{tag}-next")
    pool = {"grace": "500ms", "workers": {"min": 2, "max": 2}}
    site.write(resize=site.pool(**pool))  # type: ignore[arg-type]
    site.start()
    site.add("hold go", "hold go")
    eventually(lambda: len(site.notes()) == 2, seconds=SECONDS)
    old = set(site.living())
    changed = site.pool(**pool, container={"image": f"{site.engine.image()}-next"})  # type: ignore[arg-type]
    site.write(resize=changed)
    eventually(lambda: len(site.logged("worker.finishing")) == 2, seconds=SECONDS)
    site.write(resize={**changed, "workers": {"min": 1, "max": 1}})
    eventually(lambda: len(site.logged("supervisor.reloaded")) == 2, seconds=SECONDS)
    until = site.now() + 4.0
    eventually(lambda: cast("float", site.shown()["shown_at"]) >= until, seconds=SECONDS)
    assert old <= site.living().keys()
    (site.folder / "go").touch()
    eventually(site.is_done, seconds=SECONDS)
    stats = site.queue.stats()
    assert (stats.deleted_total, stats.released_total, stats.expired_total) == (2, 0, 0)
    assert len(site.notes("begin")) == 2
    eventually(lambda: len(site.living()) == 1 and not old & site.living().keys(), seconds=SECONDS)
    assert not site.logged("worker.killed") + site.logged("worker.draining")
    site.stop()


def test_a_worker_that_heeds_no_sigterm_is_ended_after_its_grace_and_its_task_goes_to_another(
    site: DockerSite,
) -> None:
    stubborn = site.pool(
        command=["python3", "-m", "tests.support.docker.stubborn"], grace="1s", workers={"min": 1, "max": 1}
    )
    site.write(resize=stubborn)
    site.start()
    site.add("rest 0")
    eventually(lambda: site.queue.stats().in_flight == 1, seconds=SECONDS)
    (old,) = site.living()
    site.stop()
    death = site.deaths()[old]
    assert (death["cause"], len(death["held"])) == ("overdue", 1)  # type: ignore[arg-type]
    site.write(resize=site.pool(grace="1s", workers={"min": 1, "max": 1}))
    site.start()
    eventually(site.is_done, seconds=SECONDS)
    assert [note.worker != old for note in site.notes("end")] == [True]
    eventually(lambda: set(site.living()) == site.believed() and len(site.living()) == 1, seconds=SECONDS)
    site.stop()


@pytest.mark.parametrize("init", [True, False], ids=["under an init", "as PID 1"])
def test_a_shell_that_keeps_signals_to_itself_is_ended_with_all_it_started(site: DockerSite, init: bool) -> None:
    command = ["sh", "-c", f"TOWLINE_APP={APP} python3 -m queue_core.worker; echo done"]
    pool = {"command": command, "grace": "2s", "workers": {"min": 1, "max": 1}, "container": {"init": init}}
    site.write(resize=site.pool(**pool))  # type: ignore[arg-type]
    site.start()
    site.add("hold go")
    (first,) = eventually(site.notes, seconds=SECONDS)
    site.stop()
    death = site.deaths()[first.worker]
    assert (death["cause"], len(death["held"])) == ("drained" if init else "overdue", 1)  # type: ignore[arg-type]
    (site.folder / "go").touch()
    site.start()
    eventually(site.is_done, seconds=SECONDS)
    assert [note.worker == first.worker for note in site.notes("end")] == [False]
    eventually(lambda: set(site.living()) == site.believed() and len(site.living()) == 1, seconds=SECONDS)
    site.stop()


def test_a_paused_container_loses_its_task_to_another_and_is_ended_in_good_order(
    docker_engine: PrivateDockerEngine,
) -> None:
    with docker_site(docker_engine, lease_seconds=2.0) as site:
        site.write(resize=site.pool(workers={"min": 2, "max": 2}))
        site.start()
        (name,) = site.add("hold go")
        (first,) = eventually(site.notes, seconds=SECONDS)
        with site.engine.client() as client:
            client.pause(site.living()[first.worker])
        second = eventually(lambda: len(site.notes()) == 2 and site.notes()[1], seconds=SECONDS)
        assert (second.task, second.worker != first.worker) == (name, True)
        (site.folder / "go").touch()
        eventually(site.is_done, seconds=SECONDS)
        site.stop()
        assert site.deaths()[first.worker]["cause"] in {"drained", "overdue"}
        assert len(site.notes("end")) <= 2


@pytest.mark.parametrize(
    ("grace", "timeout", "cause"),
    [
        pytest.param("1s", 10, "drained", id="its grace is over first"),
        pytest.param("30s", 1, "overdue", id="docker's patience is over first"),
    ],
)
def test_six_tasks_of_a_container_that_somebody_stops_run_again_elsewhere_as_if_they_had_never_begun(
    site: DockerSite, grace: str, timeout: int, cause: str
) -> None:
    figures = stopped(site, timeout=timeout, payload="hold go", grace=grace)
    assert figures.lease_numbers == {1}
    assert figures.again_seconds < 2.0
    death = eventually(lambda: site.deaths().get(figures.worker))
    assert death["cause"] == cause
    (site.folder / "go").touch()
    eventually(site.is_done, seconds=SECONDS)
    site.stop()


def test_a_task_that_ends_its_container_is_dead_in_the_end_and_no_other(docker_engine: PrivateDockerEngine) -> None:
    with docker_site(docker_engine, max_leases=3) as site:
        site.write(resize=site.pool(workers={"min": 1, "max": 2}, concurrency=4))
        site.start()
        (poison, *_) = site.add("die", *["rest 0.2"] * 40)
        eventually(lambda: site.queue.stats().dead == 1, seconds=2 * SECONDS)
        eventually(lambda: site.queue.stats().deleted_total == 40, seconds=SECONDS)
        (dead,) = site.queue.peek(states={TaskState.DEAD}).tasks
        assert dead.shown_name == poison
        assert dead.reason.startswith("its worker died 3 times while it ran, last: ended by SIGKILL")
        last = [note.worker for note in site.notes() if note.task == poison][-1]
        assert ".alone." in last
        death = eventually(lambda: site.deaths().get(last))
        assert (death["cause"], death["signal"], len(death["held"])) == ("signalled", 9, 1)  # type: ignore[arg-type]
        site.stop()
