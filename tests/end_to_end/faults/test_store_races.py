"""Many workers at one queue at a time: what one of them does while another is between two steps changes no order."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from tests.support.stores.engines import EngineUnavailableError
from tests.support.stores.shared_engines import SharedEngines

WORKERS = 6
AT_A_TIME = 5
TASKS = 2000
SOON_SECONDS = 0.004


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def url(request: pytest.FixtureRequest, shared_engines: SharedEngines, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'queue.db'}"
    try:
        return shared_engines.new_url(request.param)
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("tags", [TagFilter("any"), TagFilter.of("a", "b")], ids=["any", "of two tags"])
def test_a_task_whose_lease_just_ended_is_behind_all_that_wait(url: str, tags: TagFilter) -> None:
    with closing(LocalQueues(QueueService(open_store(url, durability="relaxed")))) as queues:
        queues.put_queue(QueueSpec("q", max_leases=None))
        queue = queues.queue("q")
        for first in range(0, TASKS, 1000):
            queue.add([NewTask(b"", tag="ab"[number % 2]) for number in range(first, first + 1000)])

        def lease_until_one_comes_again() -> int:
            """How many tasks came for the first time."""
            fresh = 0
            while True:
                leases = queue.lease(AT_A_TIME, seconds=SOON_SECONDS, tags=tags)
                first_times = sum(lease.lease_number == 1 for lease in leases)
                fresh += first_times
                if first_times < AT_A_TIME:
                    return fresh

        with ThreadPoolExecutor(WORKERS) as pool:
            came = sum(done.result() for done in [pool.submit(lease_until_one_comes_again) for _ in range(WORKERS)])
        assert came == TASKS
