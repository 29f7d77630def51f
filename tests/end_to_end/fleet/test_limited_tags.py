"""A pool over a queue with limits per tag has the workers that its tenants can use, and says why it has no more."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from orchestrator.fleet.figures import PoolFigures, figures_of
from queue_core.admission import TagLimits
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.fleet.supervised_site import POOL, SupervisedSite, a_site

LONG_SECONDS = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SupervisedSite]:
    with a_site(tmp_path) as site:
        (spec,) = site.queues.queues()
        site.queues.put_queue(replace(spec, per_tag=TagLimits(max_in_flight=2)))
        site.write(resize={**POOL, "slo": "2s", "workers": {"max": 8}})
        yield site


def pool_of(site: SupervisedSite) -> PoolFigures:
    (pool,) = figures_of(site.shown(), now_seconds=cast("float", site.shown()["shown_at"])).pools
    return pool


def test_a_tenant_with_many_tasks_gets_the_workers_that_its_limit_lets_work(site: SupervisedSite) -> None:
    site.queue.add([NewTask(f"hold {site.folder}/notes".encode(), tag="tenant-1") for _ in range(200)])
    site.start()
    eventually(lambda: len(site.notes()) == 2, seconds=LONG_SECONDS)
    told = "198 waiting, all limited by per_tag.max_in_flight: 2: none can be leased"
    eventually(lambda: told in pool_of(site).notes, seconds=LONG_SECONDS)
    assert pool_of(site).workers == 2
    for number in range(2, 4):  # other tenants get workers of their own
        site.queue.add([NewTask(f"hold {site.folder}/notes".encode(), tag=f"tenant-{number}") for _ in range(3)])
    eventually(lambda: len(site.notes()) == 6, seconds=LONG_SECONDS)
    assert pool_of(site).workers == 6
    site.let_go()
    eventually(site.is_done, seconds=LONG_SECONDS)
    assert len(site.logged("worker.spawned")) == 6
    assert site.queue.stats().expired_total == 0
