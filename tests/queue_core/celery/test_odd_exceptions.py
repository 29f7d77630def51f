"""Whatever a Celery task raises costs it one attempt, and ends it: in each pool, acknowledged early or late."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from queue_core.celery.transport.options import TransportOptions
from queue_core.task import TaskState
from tests.queue_core.celery.test_celery_workers import Shop, a_shop
from tests.support.eventually import eventually
from tests.support.fleet.odd_exceptions import ALL

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

ATTEMPTS = 2
WORKERS = 6
"""Celery itself ends a worker over a MemoryError; a supervisor starts another."""


@pytest.mark.parametrize(
    ("pool", "ack"), [("prefork", ""), ("threads", ""), ("solo", ""), ("threads", "when_done"), ("solo", "when_told")]
)
def test_whatever_a_celery_task_raises_costs_one_attempt_and_ends(tmp_path: Path, pool: str, ack: str) -> None:
    with a_shop(tmp_path) as shop:
        spec = TransportOptions(max_leases=ATTEMPTS).spec("celery")
        shop.queues.put_queue(replace(spec, retry_min_seconds=0.01, retry_max_seconds=0.01))
        _start(shop, pool, ack)
        for number in range(len(ALL)):
            shop.send("odd", number)
        eventually(lambda: _is_over(shop, pool, ack), seconds=120)
        runs = Counter(map(int, shop.lines("odd")))
        dead = shop.queues.queue("celery").peek(states=frozenset({TaskState.DEAD})).tasks
        assert {task.leases for task in dead} <= {ATTEMPTS}
        assert not any("malformed" in task.reason for task in dead)
        assert len(dead) + shop.stats().deleted_total == len(ALL)
        wrong = {ALL[number]: runs[number] for number in range(len(ALL)) if runs[number] not in (1, ATTEMPTS)}
        assert not wrong
        assert sum(count == ATTEMPTS for count in runs.values()) == len(dead)
        assert len(shop.workers) < WORKERS


def _start(shop: Shop, pool: str, ack: str) -> None:
    environment = {"SHOP_ACK": ack} if ack else {}
    name = f"worker-{len(shop.workers)}"
    shop.start(name, "-c", "2", "-P", pool, SHOP_LEASE_SECONDS="5", **environment)


def _is_over(shop: Shop, pool: str, ack: str) -> bool:
    stats = shop.stats()
    if stats.ready + stats.delayed + stats.in_flight == 0:
        return True
    *_, worker = shop.workers.values()
    if worker.poll() is not None and len(shop.workers) < WORKERS:
        _start(shop, pool, ack)
    return False
