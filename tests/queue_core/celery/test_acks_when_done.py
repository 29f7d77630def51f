"""`ack: when_done`: a task that Celery acknowledges before it runs is deleted when it has ended, and not before."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.celery.transport.keeper import TaskState
from tests.queue_core.celery.test_celery_workers import SECONDS, Shop, a_shop, renewed
from tests.queue_core.celery.test_lease_keeper import LEASE_SECONDS, Site
from tests.support.eventually import eventually

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


class Task:
    """A task that was acknowledged, and runs."""

    def __init__(self) -> None:
        self.now: TaskState = "runs"

    def state(self) -> TaskState:
        return self.now


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_lease_is_renewed_while_its_acknowledged_task_runs_and_deleted_after_it(site: Site) -> None:
    task = Task()
    site.keeper.end_with(site.lease().token, task)
    site.let_pass(5 * LEASE_SECONDS)
    assert (site.stats().in_flight, site.stats().deleted_total) == (1, 0)
    task.now = "ended"
    site.keeper.do_round()
    assert (site.stats().in_flight, site.stats().deleted_total) == (0, 1)
    site.keeper.stop()


def test_one_that_its_worker_cancelled_is_given_back(site: Site) -> None:
    task = Task()
    site.keeper.end_with(site.lease().token, task)
    task.now = "cancelled"
    site.keeper.do_round()
    assert (site.stats().ready, site.stats().deleted_total) == (1, 0)
    site.keeper.stop()


def test_at_the_end_of_a_process_ended_tasks_are_deleted_and_others_given_back(site: Site) -> None:
    ended, running = Task(), Task()
    for task in (ended, running):
        site.keeper.end_with(site.lease().token, task)
    ended.now = "ended"
    site.keeper.finish()
    assert (site.stats().ready, site.stats().in_flight, site.stats().deleted_total) == (1, 0, 1)
    site.keeper.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with a_shop(tmp_path) as made:
        yield made


def test_the_task_of_a_killed_worker_runs_again_and_one_that_ends_is_gone_at_a_warm_shutdown(shop: Shop) -> None:
    dead = shop.start("one", "-c", "1", SHOP_ACK="when_done", SHOP_LEASE_SECONDS="1.5")
    task = shop.send("hold", "kept")
    eventually(lambda: shop.lines("kept"))
    eventually(lambda: renewed(shop, 3))
    assert (shop.stats().in_flight, shop.stats().deleted_total) == (1, 0)
    dead.kill()
    dead.wait()
    other = shop.start("two", "-c", "1", SHOP_ACK="when_done")
    shop.queues.release_worker("one")
    eventually(lambda: len(shop.lines("kept")) == 2)
    shop.let_end("kept")
    assert task.get(timeout=SECONDS, interval=0.01) == "kept"
    other.terminate()
    assert other.wait(SECONDS) == 0
    assert (shop.stats().in_flight, shop.stats().ready, shop.stats().deleted_total) == (0, 0, 1)
    assert shop.lines("kept") == ["False", "True", "ended"]
