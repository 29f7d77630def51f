"""A call of a client at two servers at once: one was stopped in the middle of it, and goes on while the other repeats
it. Whatever the order, its leases are those of one of the two."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Event

import pytest

from queue_core.server.base.options import ServeOptions
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.state import ServerState
from queue_core.stores import open_store
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Deletion, Granted
from tests.support.eventually import eventually, eventually_async
from tests.support.stores.postgres_connections import operator
from tests.support.stores.stores import new_url

QUEUE = "q"
CALL = ClientCall("session", 7)
REPEAT = ClientCall("session", 7, is_repeat=True, age_seconds=5)
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


class OtherServer:
    """A server that has made a call's changes in a transaction, and commits it when it goes on."""

    def __init__(self, service: QueueService, deletions: Sequence[Deletion]) -> None:
        self._service = service
        self._deletions = deletions
        self.has_run, self.goes_on = Event(), Event()

    def call(self) -> Granted:
        return self._service.run(self._first_try)

    def _first_try(self, work: UnitOfWork) -> Granted:
        granted, _ = work.exchange(QUEUE, self._deletions, count=3, seconds=60.0, worker="", call=CALL)
        self.has_run.set()
        assert self.goes_on.wait(60)
        return granted


@pytest.fixture
def url() -> Iterator[str]:
    yield new_url("postgresql")


@pytest.mark.parametrize("deletes", [False, True], ids=["lease", "exchange"])
@pytest.mark.parametrize("most", [None, 20], ids=["unlimited", "limited"])
def test_a_repeat_beside_its_first_try_has_the_leases_of_one_of_them(
    url: str, most: int | None, *, deletes: bool
) -> None:
    with ExitStack() as stack:
        here, there = (stack.enter_context(closing(open_store(url))) for _ in range(2))
        look = stack.enter_context(operator(url))
        service = QueueService(there)
        service.run(lambda work: work.put_queue(QueueSpec(QUEUE, max_in_flight=most)))
        service.run(lambda work: work.add(QUEUE, [NewTask() for _ in range(10)]))
        held = service.run(lambda work: work.lease(QUEUE, count=1, seconds=60.0)).leases if deletes else ()
        deletions = [Deletion(lease.token) for lease in held]
        other = OtherServer(service, deletions)
        answers: list[LeaseAnswer | Exception] = []

        async def repeat(pool: ThreadPoolExecutor) -> None:
            core = ServerState(here, ServeOptions())
            try:
                first = asyncio.get_running_loop().run_in_executor(pool, other.call)
                await asyncio.to_thread(other.has_run.wait, 60)
                call = LeaseCall(
                    QUEUE, 3, 60.0, ANY, "", 0.0, "w", deletions, answers.append, lambda: False, client_call=REPEAT
                )
                core.waiting.start(call)
                await asyncio.to_thread(
                    eventually, lambda: bool(answers) or look.execute(_WAITING).fetchone() == (1,), seconds=30
                )
                other.goes_on.set()
                await asyncio.wait_for(asyncio.gather(first, return_exceptions=True), 60)
                await eventually_async(lambda: bool(answers))
            finally:
                other.goes_on.set()
                core.stop()
                core.close()

        with ThreadPoolExecutor(1) as pool:
            asyncio.run(repeat(pool))
        (answer,) = answers
        assert isinstance(answer, LeaseAnswer), answer
        stats = service.run(lambda work: work.stats(QUEUE, ANY))
        assert (len(answer.granted.leases), stats.in_flight) == (3, 3)
        assert stats.ready == (6 if deletes else 7)
        assert service.run(lambda work: work.delete(QUEUE, [Deletion(one.token) for one in answer.granted.leases]))
        assert service.run(lambda work: work.stats(QUEUE, ANY)).in_flight == 0
