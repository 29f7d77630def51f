"""The Docker Engine and the supervisor go away during load and come back: every task is done, nobody is left over."""

import pytest

from tests.soak.docker_restarts import restarted
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.load import ContainerLoad
from tests.support.docker.site import docker_site
from tests.support.eventually import eventually

SECONDS = 60.0
KILLS = 3


@pytest.mark.parametrize("live_restore", [False, True], ids=["containers end with it", "containers live on"])
def test_an_engine_that_is_killed_and_started_again_during_load_loses_no_task(
    docker_engine: PrivateDockerEngine, live_restore: bool
) -> None:
    with docker_engine.live_restore(wanted=live_restore), docker_site(docker_engine) as site:
        site.write(resize=site.pool(workers={"min": 3, "max": 3}))
        site.start()
        eventually(lambda: len(site.living()) == 3, seconds=SECONDS)
        with ContainerLoad(site) as load:
            eventually(lambda: len(site.notes("end")) >= 10, seconds=SECONDS)
            before = site.living()
            docker_engine.restart()
            seen = len(site.notes("end"))
            eventually(lambda: len(site.notes("end")) >= seen + 20, seconds=SECONDS)
        load.settle()
        eventually(lambda: len(site.living()) == 3 and set(site.living()) == site.believed(), seconds=SECONDS)
        if live_restore:
            assert site.living() == before
            assert site.deaths() == {}
            assert load.run_twice() == set()
        else:
            deaths = eventually(lambda: (d := site.deaths()).keys() >= before.keys() and d)
            assert {deaths[worker]["cause"] for worker in before} <= {"drained", "overdue"}
            assert all("engine was unavailable" in str(deaths[worker]["detail"]) for worker in before)
        site.stop()


def test_a_supervisor_that_is_killed_again_and_again_during_load_finds_its_containers(
    docker_engine: PrivateDockerEngine,
) -> None:
    with docker_site(docker_engine) as site:
        seen = restarted(site, kills=KILLS)
    assert seen.is_well, seen
