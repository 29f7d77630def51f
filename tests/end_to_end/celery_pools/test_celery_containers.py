"""Celery's workers in containers: a stop by somebody else leaves nothing unfinished."""

from tests.celery.pools import container_site, stop_container
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.eventually import eventually

SECONDS = 60.0


def test_what_a_stopped_container_can_not_end_in_time_runs_again_elsewhere(docker_engine: PrivateDockerEngine) -> None:
    with container_site(docker_engine) as (site, runtime):
        site.write(shop=site.pool(workers={"min": 1, "max": 2}, grace="2s", **runtime))
        site.up()
        for name in ("one", "two"):
            site.send("hold", name)
        eventually(lambda: len(site.notes()) == 2, seconds=SECONDS)
        stopped = site.notes()[0].worker
        lost = [note.task for note in site.notes() if note.worker == stopped]
        stop_container(docker_engine, stopped)
        death = eventually(lambda: site.deaths().get(stopped), seconds=SECONDS)
        assert (death["cause"], death["code"]) == ("drained", 0)  # it gave its tasks back before it was killed
        for name in ("one", "two"):
            site.let_go(name)
        eventually(lambda: {note.task for note in site.notes("end")} == {"one", "two"}, seconds=SECONDS)
        assert all(sum(note.task == name for note in site.notes()) == 2 for name in lost)
        site.down()
