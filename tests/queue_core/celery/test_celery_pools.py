"""Workers beside many delayed tasks, and pools without an event loop of Celery's."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.queue_core.celery.test_celery_workers import SECONDS, Shop, a_shop, renewed
from tests.support.commands import ROOT
from tests.support.eventually import eventually

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with a_shop(tmp_path) as made:
        yield made


def test_tasks_that_are_due_in_an_hour_are_in_no_worker_and_do_not_hinder_others(shop: Shop) -> None:
    shop.start("one", "-c", "1")
    for number in range(300):
        shop.send("add", number, 1, countdown=3600)
    assert shop.result("add", 1, 1) == 2
    eventually(lambda: shop.stats().deleted_total == 1)
    assert (shop.stats().delayed, shop.stats().in_flight, shop.stats().ready) == (300, 0, 0)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_pool_of_green_threads_renews_runs_the_next_at_once_and_stops_when_told(shop: Shop, pool: str) -> None:
    found = find_spec(pool)
    if found is None or found.origin is None:
        pytest.skip(f"{pool} is not installed")
    path = os.pathsep.join([str(ROOT), str(Path(found.origin).parents[1])])
    worker = shop.start("one", "-P", pool, "-c", "2", SHOP_LEASE_SECONDS="0.6", PYTHONPATH=path)
    long = shop.send("hold", "long")
    eventually(lambda: shop.lines("long"))
    # One at a time in the place beside it: each is acknowledged, and the next leased, while the worker waits.
    assert [shop.result("add", number, 1) for number in range(20)] == list(range(1, 21))
    eventually(lambda: renewed(shop, 6))
    shop.let_end("long")
    assert long.get(timeout=SECONDS, interval=0.01) == "long"
    assert shop.lines("long") == ["False", "ended"]
    eventually(lambda: shop.stats().deleted_total == 21)
    assert (shop.stats().expired_total, shop.stats().in_flight) == (0, 0)
    worker.terminate()
    assert worker.wait(SECONDS) == 0
