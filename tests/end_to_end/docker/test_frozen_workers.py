"""Containers whose workers are frozen: no capacity, told with what froze them, and replaced, with a max of 1 too."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support.commands import run_program
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.site import DockerSite, docker_site
from tests.support.eventually import eventually

SECONDS = 60.0


@pytest.fixture
def site(docker_engine: PrivateDockerEngine) -> Iterator[DockerSite]:
    with docker_site(docker_engine, lease_seconds=3.0) as site:
        yield site


def _pause(site: DockerSite, container: str) -> None:
    with site.engine.client() as client:
        client.pause(container)


def _workers(site: DockerSite) -> str:
    return run_program("workers", folder=site.folder).out


def _stop_the_processes(site: DockerSite, container: str) -> None:
    with site.engine.client() as client:
        processes = client.top(container)["Processes"]
    for pid in sorted((int(row[1]) for row in processes), reverse=True):
        os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("freeze", "known"),
    [
        pytest.param(_pause, "it was paused (docker pause)", id="paused"),
        pytest.param(_stop_the_processes, "it was stopped (SIGSTOP)", id="stopped"),
    ],
)
def test_a_frozen_worker_is_no_capacity_and_another_does_its_work_where_one_is_the_most(
    site: DockerSite, freeze: Callable[[DockerSite, str], None], known: str
) -> None:
    site.write(resize=site.pool(slo="1s", grace="2s", workers={"min": 1, "max": 1}))
    site.start()
    site.add("rest 0")
    eventually(site.is_done, seconds=SECONDS)
    ((frozen, container),) = site.living().items()
    freeze(site, container)
    site.add(*["rest 0"] * 5)
    eventually(lambda: site.logged("worker.unresponsive"), seconds=SECONDS)
    eventually(lambda: known.partition("was ")[2] in _workers(site), seconds=SECONDS)
    eventually(site.is_done, seconds=SECONDS)
    assert {note.worker for note in site.notes("end")} > {frozen}
    assert len({note.task for note in site.notes()}) == len(site.notes()) == 6  # none begun twice
    (told,) = site.logged("worker.unresponsive")
    assert (told["worker"], told["condition"]) == (frozen, known.partition("was ")[2])
    death = eventually(lambda: site.deaths().get(frozen), seconds=SECONDS)
    assert death["cause"] == "unresponsive"
    assert str(death["detail"]).startswith(known)
    site.stop()
    assert len(site.notes()) == 6  # it was killed without being resumed: it began none of the others' tasks


def test_a_call_that_keeps_the_interpreter_lock_is_told_with_its_place(site: DockerSite) -> None:
    site.write(resize=site.pool(slo="1s", grace="2s", workers={"min": 1, "max": 1}))
    site.start()
    site.add("regex")
    eventually(site.is_done, seconds=SECONDS)
    first = site.notes()[0].worker
    death = eventually(lambda: site.deaths().get(first), seconds=SECONDS)
    assert death["cause"] == "unresponsive"
    assert "container_app.py" in str(death["stack"])
    site.stop()
