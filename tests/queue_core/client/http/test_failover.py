"""A client with several servers of one store: it uses one, fails over to another, and adds nothing twice."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

import pytest

from queue_core.client.connect import open_queue
from queue_core.client.http.caller import HttpCaller, Retries, urls_of
from queue_core.client.http.transport import DEAD_PEER_SECONDS
from queue_core.client.http_calls import HttpQueue
from queue_core.clock import SystemClock
from queue_core.errors import InvalidSettingError, StoreUnavailableError, UnknownQueueError
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.cutting_proxy import CuttingProxy, a_proxy
from tests.support.eventually import eventually
from tests.support.netns import NamespacesUnavailableError, NetnsHost, hosts, on_host
from tests.support.servers import IMPATIENT, QUEUE, RunningServer, a_server
from tests.support.stores.engines import free_port
from tests.support.stores.remote_memory import RemoteMemory

T = TypeVar("T")

LONG_SECONDS = 30.0
NOTICED_SECONDS = DEAD_PEER_SECONDS + 4.0
NOBODY = "http://127.0.0.1:9"


class Pair:
    """Two servers over one memory, a proxy before each, and a client that knows both."""

    def __init__(self, stack: ExitStack) -> None:
        memory = MemoryStore()
        self.stores = (RemoteMemory(memory), RemoteMemory(memory))
        self.servers: list[RunningServer] = [stack.enter_context(a_server(store)) for store in self.stores]
        self.proxies: list[CuttingProxy] = [stack.enter_context(a_proxy(server)) for server in self.servers]
        self.url = ",".join(proxy.url for proxy in self.proxies)
        self.queue = HttpQueue(self.url, QUEUE, retries=IMPATIENT)
        stack.callback(self.queue.close)
        for store in self.stores:
            stack.callback(store.flow)

    def added(self) -> int:
        """How many tasks there ever were."""
        return QueueService(self.stores[0].memory).read(lambda work: work.stats(QUEUE, ANY)).added_total

    def seen(self) -> tuple[int, int]:
        """How many requests came to each server."""
        return len(self.proxies[0].seen), len(self.proxies[1].seen)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_the_first_server_is_used_while_it_answers(pair: Pair) -> None:
    for _ in range(3):
        pair.queue.add(b"x")
    assert pair.seen() == (3, 0)


def test_another_server_takes_over_and_is_kept(pair: Pair) -> None:
    pair.proxies[0].fates.append("drop")
    pair.queue.add(b"x")
    pair.queue.add(b"y")
    assert (pair.seen(), pair.added()) == ((1, 2), 2)


def test_a_server_that_is_not_there_is_passed_over_without_a_pause(pair: Pair) -> None:
    slept: list[float] = []
    caller = HttpCaller(f"{NOBODY},{pair.url}", token=None, retries=Retries(), timeout_seconds=5.0, sleep=slept.append)
    queue = HttpQueue(caller.url, QUEUE, caller=caller)
    queue.add(b"x")
    queue.close()
    assert (slept, pair.added()) == ([], 1)


def test_an_add_whose_answer_was_lost_is_known_to_the_other_server(pair: Pair) -> None:
    for number in range(1, 6):
        pair.proxies[number % 2].fates.append("lose answer")
        pair.queue.add([NewTask(b"x"), NewTask(b"y")])
        assert pair.added() == 2 * number


def test_an_add_that_may_have_failed_behind_a_server_is_settled_by_the_store(pair: Pair) -> None:
    pair.stores[0].answers_to_lose = 1
    pair.queue.add(b"once")
    assert (pair.seen(), pair.added()) == ((1, 1), 1)


def test_a_server_that_lost_its_store_is_left(pair: Pair) -> None:
    pair.stores[0].is_down = True
    pair.queue.add(b"x")
    (lease,) = pair.queue.lease()
    pair.queue.delete(lease)
    assert pair.seen() == (1, 3)


def test_a_lease_that_was_refused_for_the_store_is_asked_of_the_other_server(pair: Pair) -> None:
    pair.queue.add(b"x")
    pair.stores[0].is_down = True
    assert [lease.payload for lease in pair.queue.lease()] == [b"x"]
    pair.stores[1].is_down = True
    with pytest.raises(StoreUnavailableError):
        pair.queue.lease()


def test_a_lease_whose_answer_was_lost_is_the_same_when_another_server_is_asked(pair: Pair) -> None:
    pair.queue.add([NewTask(b"x"), NewTask(b"y")])
    pair.proxies[0].fates.append("lose answer")
    assert [lease.payload for lease in pair.queue.lease()] == [b"x"]
    assert [lease.payload for lease in pair.queue.lease()] == [b"y"]
    assert pair.queue.stats().leased_total == 2


def test_a_delete_whose_outcome_the_store_did_not_tell_counts_as_done(pair: Pair) -> None:
    pair.queue.add(b"x")
    (lease,) = pair.queue.lease()
    pair.stores[0].answers_to_lose = 1
    assert pair.queue.delete(lease) == []
    assert pair.queue.stats().deleted_total == 1


def test_an_error_of_the_callers_own_is_no_reason_to_go_elsewhere(pair: Pair) -> None:
    queue = HttpQueue(pair.url, "nowhere", retries=IMPATIENT)
    with pytest.raises(UnknownQueueError):
        queue.add(b"x")
    queue.close()
    assert pair.seen() == (1, 0)


def test_rounds_over_all_servers_are_bounded_and_pauses_lie_between_them() -> None:
    slept: list[float] = []
    caller = HttpCaller(
        f"{NOBODY},http://127.0.0.1:{free_port()}",
        token=None,
        retries=Retries(tries=3, first_pause_seconds=1.0),
        timeout_seconds=5.0,
        sleep=slept.append,
        jitter=lambda: 1.0,
    )
    with pytest.raises(StoreUnavailableError, match=NOBODY):
        HttpQueue(caller.url, QUEUE, caller=caller).add(b"x")
    assert slept == [1.0, 2.0]


def test_one_queue_is_opened_on_a_list_of_servers(pair: Pair) -> None:
    queue = open_queue(f"{NOBODY}, {pair.servers[1].url}", "fresh")
    queue.add(b"x")
    assert queue.stats().ready == 1
    queue.close()


def test_a_list_of_servers_is_read_in_order_and_each_once() -> None:
    assert urls_of("http://a:1, http://b:2,http://a:1") == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize("url", ["http://a:1,", ",http://a:1", "http://a:1,b:2", "http://a:1,sqlite:///x.db"])
def test_what_is_no_list_of_servers(url: str) -> None:
    with pytest.raises(InvalidSettingError):
        HttpCaller(url, token=None, retries=IMPATIENT, timeout_seconds=1.0)


# -- links that are cut: nothing arrives, and nobody is told ----------------------------------------------------------


class Wires:
    """Two servers on two hosts, and threads on a third."""

    def __init__(self, stack: ExitStack, on: list[NetnsHost]) -> None:
        self.first, self.second, self._clients = on
        memory = MemoryStore()
        QueueService(memory).run(lambda work: work.put_queue(QueueSpec(QUEUE)))
        self.store = memory
        token = AccessToken(Role.ADMIN, "x" * 16)
        self.threads = []
        for host in (self.first, self.second):
            with on_host(host):
                options = replace(ServeOptions(), host=host.address, port=0, tokens=(token,))
                thread = ServerThread(RemoteMemory(memory), options)
            thread.start()
            stack.callback(thread.stop)
            self.threads.append(thread)
        self._pool = stack.enter_context(ThreadPoolExecutor(8))
        self.queue = HttpQueue(",".join(thread.url for thread in self.threads), QUEUE, token=token.secret)
        stack.callback(self.queue.close)

    def call(self, verb: Callable[[], T]) -> "Future[T]":
        """`verb` as it is called on the clients' host."""

        def there() -> T:
            with on_host(self._clients):
                return verb()

        return self._pool.submit(there)

    def waiting(self, server: int) -> int:
        return len(self.threads[server].core.waiting)


@pytest.fixture
def wires() -> Iterator[Wires]:
    try:
        with hosts("a", "b", "c") as on, ExitStack() as stack:
            yield Wires(stack, on)
    except NamespacesUnavailableError as error:
        pytest.skip(str(error))


def test_both_ends_of_a_wait_notice_that_the_link_was_cut(wires: Wires) -> None:
    clock = SystemClock()
    call = wires.call(lambda: wires.queue.lease(wait_seconds=200.0))
    eventually(lambda: wires.waiting(0) == 1)
    cut_at = clock.monotonic()
    wires.first.cut()
    eventually(lambda: wires.waiting(1) == 1, seconds=NOTICED_SECONDS)
    assert clock.monotonic() - cut_at < NOTICED_SECONDS
    eventually(lambda: wires.waiting(0) == 0, seconds=NOTICED_SECONDS)
    wires.call(lambda: wires.queue.add(b"x")).result(LONG_SECONDS)
    assert [lease.payload for lease in call.result(LONG_SECONDS)] == [b"x"]
    wires.first.mend()


def test_a_call_over_a_cut_link_is_answered_by_the_other_server(wires: Wires) -> None:
    clock = SystemClock()
    wires.call(lambda: wires.queue.add(b"before")).result(LONG_SECONDS)
    wires.first.cut()
    cut_at = clock.monotonic()
    assert wires.call(lambda: wires.queue.add(b"after")).result(LONG_SECONDS)[0].status == "added"
    assert clock.monotonic() - cut_at < NOTICED_SECONDS
    wires.first.mend()
    assert wires.call(wires.queue.stats).result(LONG_SECONDS).added_total == 2


def test_what_was_granted_over_a_cut_link_reaches_its_caller_through_the_other_server(wires: Wires) -> None:
    call = wires.call(lambda: wires.queue.lease(worker="cut off", wait_seconds=200.0))
    eventually(lambda: wires.waiting(0) == 1)
    wires.first.cut()
    QueueService(wires.store).run(lambda work: work.add(QUEUE, [NewTask(b"x")]))
    service = QueueService(wires.store)
    eventually(lambda: service.read(lambda work: work.stats(QUEUE, ANY)).in_flight == 1)
    (lease,) = call.result(LONG_SECONDS)
    wires.first.mend()
    assert (lease.payload, lease.lease_number) == (b"x", 1)
    assert service.read(lambda work: work.stats(QUEUE, ANY)).leased_total == 1


def test_what_arrived_before_a_link_was_cut_stays_leased(wires: Wires) -> None:
    service = QueueService(wires.store)
    service.run(lambda work: work.add(QUEUE, [NewTask(b"x")]))
    wires.call(lambda: wires.queue.lease(worker="cut off", seconds=60.0)).result(LONG_SECONDS)
    wires.first.cut()
    eventually(lambda: not wires.threads[0]._server._http.server_state.connections, seconds=NOTICED_SECONDS)
    assert service.read(lambda work: work.stats(QUEUE, ANY)).in_flight == 1
    wires.first.mend()
