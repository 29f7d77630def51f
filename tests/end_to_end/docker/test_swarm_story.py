"""A supervisor, its queue and a pool on a swarm of two engines: it grows, loses a node, and shrinks to nothing."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker.swarm_sites import SwarmSite, swarm_site
from tests.support.docker.swarms import swarm
from tests.support.eventually import eventually
from tests.support.stores.engine_process import EngineUnavailableError

PATIENCE_SECONDS = 120.0
TASKS = 150


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SwarmSite]:
    try:
        with swarm(2) as two, swarm_site(tmp_path, two) as site:
            yield site
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def test_a_service_grows_to_eight_loses_a_node_and_shrinks_to_nothing_by_our_decisions(site: SwarmSite) -> None:
    # More work than it looks like to fewer than eight, and an slo that no start takes as long as.
    site.write(workers={"min": 0, "max": 8}, slo="30s", churn="0s", spawn_parallelism=8)
    site.start()
    assert site.swarm.replicas() == {}
    site.add(TASKS, seconds=0.3)

    eventually(lambda: sum(site.running()) == 8, seconds=PATIENCE_SECONDS)
    (service,) = site.swarm.replicas().values()
    assert service == 8
    assert min(site.running()) >= 3  # Swarm spreads them over its nodes
    first, second = site.swarm.nodes
    site.swarm.set_availability(second, "drain")

    eventually(lambda: second.running() == 0, seconds=PATIENCE_SECONDS)
    eventually(site.is_done, seconds=PATIENCE_SECONDS)
    stats = site.queue.stats()
    assert (stats.deleted_total, stats.dead) == (TASKS, 0)
    times = Counter(task for _, task, _ in site.done())
    assert len(times) == TASKS
    assert set(times.values()) == {1}  # whoever was asked to finish did, so that nothing was run twice
    assert {lease for *_, lease in site.done()} == {"1"}

    eventually(lambda: not site.workers() and sum(site.running()) == 0, seconds=PATIENCE_SECONDS)
    assert first.running() == 0
    assert not site.logged("worker.spawn_failed")
    assert not site.files.read_snapshot()["pools"]["resize"]["failed_starts"]  # type: ignore[index]
    assert {entry["cause"] for entry in site.logged("worker.reaped")} <= {"drained", "finished"}


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[SwarmSite]:
    try:
        with swarm(1) as one, swarm_site(tmp_path, one) as site:
            yield site
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def test_a_paused_task_is_no_capacity_and_the_next_one_goes_when_it_was_spare_for_as_long_as_pays(
    lone: SwarmSite,
) -> None:
    lone.write(workers={"min": 0, "max": 1}, slo="5s", grace="2s", churn="5s")
    lone.start()
    lone.add(1, seconds=0.0)
    eventually(lone.is_done, seconds=PATIENCE_SECONDS)
    (node,) = lone.swarm.nodes
    (frozen,) = lone.workers()
    with node.engine.client() as client:
        (container,) = client.containers()
        client.pause(container["Id"])
    lone.add(5, seconds=0.0)

    eventually(lone.is_done, seconds=PATIENCE_SECONDS)
    (told,) = lone.logged("worker.unresponsive")
    assert (told["worker"], told["condition"]) == (frozen, "paused (docker pause)")
    death = eventually(
        lambda: next((one for one in lone.files.read_deaths(limit=10) if one["worker"] == frozen), None),
        seconds=PATIENCE_SECONDS,
    )
    assert death["cause"] == "unresponsive"

    eventually(lambda: not lone.workers() and sum(lone.running()) == 0, seconds=PATIENCE_SECONDS)
    (last, *_) = [one for one in reversed(lone.logged("pool.decided")) if one["target"] == 0 and one["rule"] == "idle"]
    (held,) = last["held"].values()  # type: ignore[attr-defined]
    assert held <= float(str(last["startup_seconds"])) + 5.0  # a restart costs this: its start and its churn
