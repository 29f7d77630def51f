"""Two supervisors of one store on one engine: whoever leads next adopts the containers, and ends none of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from orchestrator.base import events
from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.supervisor.leader import LEAD_SECONDS
from queue_core.stores import open_store
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.site import DockerSite, docker_site
from tests.support.eventually import eventually
from tests.support.stores.stores import new_url

SECONDS = 60.0
WORKERS = 3
SHORT_LEAD = "5s"
ORPHAN_SECONDS = 8
"""Longer than a short lead, and than the next supervisor needs to take the lead and the locks."""


@dataclass
class Hosts:
    """Two supervisors with folders of their own, as on two hosts that share an engine, a store and a queue server."""

    site: DockerSite
    a: DockerSite
    b: DockerSite

    def write(self, *, lead: str = "15s", orphan_grace: str = "60s") -> None:
        pool = self.site.pool(workers={"min": WORKERS, "max": WORKERS})
        supervisor = {"lead": lead, "orphan_grace": orphan_grace}
        settings = {"queues": {"thumbs": {}}, "supervisor": supervisor, "pools": {"resize": pool}}
        for host in (self.a, self.b):
            (host.folder / "towline.yaml").write_text(json.dumps(settings))

    def spawned(self) -> list[object]:
        hosts = [host for host in (self.a, self.b) if (host.folder / "supervisor.log").exists()]
        return [entry["worker"] for host in hosts for entry in host.logged(events.WORKER_SPAWNED)]


@pytest.fixture(params=["postgresql", "redis"])
def hosts(request: pytest.FixtureRequest, docker_engine: PrivateDockerEngine) -> Iterator[Hosts]:
    with docker_site(docker_engine, store=open_store(new_url(request.param))) as site:
        places = []
        for name in ("a", "b"):
            folder = site.folder / name
            folder.mkdir()
            places.append(DockerSite(folder, site.engine, site.url, site.queues))
        try:
            yield Hosts(site, *places)
        finally:
            for process in (each for place in places for each in place.processes):
                process.kill()
                process.wait()


def test_a_leader_that_is_killed_is_followed_within_its_lead_and_no_container_is_ended_or_made_twice(
    hosts: Hosts,
) -> None:
    hosts.write()
    first = hosts.a.start()
    eventually(lambda: len(hosts.site.living()) == WORKERS, seconds=SECONDS)
    hosts.site.add("hold go", "rest 0.1")
    eventually(lambda: len(hosts.site.notes()) == 2, seconds=SECONDS)
    hosts.b.start(until="standby")
    before = hosts.site.living()
    clock = SystemMonotonicClock()
    killed_at = clock.monotonic()
    first.kill()
    eventually(lambda: hosts.b.shown().get("phase") == "leading", seconds=SECONDS)
    assert clock.monotonic() - killed_at <= LEAD_SECONDS
    eventually(lambda: hosts.b.believed() == set(before), seconds=SECONDS)
    (hosts.site.folder / "go").touch()
    hosts.site.add(*["rest 0.01"] * 20)
    eventually(hosts.site.is_done, seconds=SECONDS)
    assert hosts.site.living() == before
    assert sorted(map(str, hosts.spawned())) == sorted(before)
    assert len(hosts.site.notes("end")) == 22
    assert len(hosts.site.notes()) == 22  # none was run twice
    hosts.b.stop()


@pytest.mark.parametrize("hosts", ["postgresql"], indirect=True)
def test_containers_live_on_through_hand_overs_as_their_leader_holds_the_lock_that_they_check(hosts: Hosts) -> None:
    hosts.write(lead=SHORT_LEAD, orphan_grace=f"{ORPHAN_SECONDS}s")
    leading, waiting = hosts.a, hosts.b
    leading.start()
    eventually(lambda: len(hosts.site.living()) == WORKERS, seconds=SECONDS)
    before = hosts.site.living()
    waiting.start(until="standby")
    for _ in range(2):
        leading.processes[-1].kill()
        eventually(lambda: waiting.shown().get("phase") == "leading", seconds=SECONDS)  # noqa: B023
        eventually(lambda: waiting.believed() == set(before), seconds=SECONDS)  # noqa: B023
        # Work for longer than a container stays without a supervisor.
        hosts.site.add(*["rest 0.5"] * (2 * WORKERS * (ORPHAN_SECONDS + 4)))
        eventually(hosts.site.is_done, seconds=SECONDS)
        assert hosts.site.living() == before
        leading.start(until="standby")
        eventually(lambda: leading.believed() == set(), seconds=SECONDS)  # noqa: B023
        leading, waiting = waiting, leading
    assert hosts.site.living() == before
    assert sorted(map(str, hosts.spawned())) == sorted(before)
    assert hosts.a.deaths() == hosts.b.deaths() == {}
    waiting.processes[-1].kill()
    leading.stop()
