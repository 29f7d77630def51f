"""A client repeats only calls that are safe to repeat when a connection dies."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.client.http.caller import Retries
from queue_core.client.http.transport import parse_address
from queue_core.client.http_calls import HttpQueue
from queue_core.errors import (
    InvalidSettingError,
    InvalidTagError,
    LeaseLostError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs import Deletion
from tests.support.cutting_proxy import CuttingProxy, a_proxy
from tests.support.servers import IMPATIENT, QUEUE, RunningServer, a_server


@pytest.fixture
def proxy(server: RunningServer) -> Iterator[CuttingProxy]:
    with a_proxy(server) as running:
        yield running


@pytest.fixture
def queue(proxy: CuttingProxy) -> Iterator[HttpQueue]:
    queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
    yield queue
    queue.close()


def test_an_add_whose_answer_was_lost_is_repeated_and_added_once(queue: HttpQueue, proxy: CuttingProxy) -> None:
    proxy.fates.extend(["lose answer", "lose answer"])
    (added,) = queue.add(b"once")
    assert proxy.seen == ["lose answer", "lose answer", "pass"]
    assert (added.status, queue.stats().added_total) == ("added", 1)


def test_an_add_that_never_arrived_is_sent_again(queue: HttpQueue, proxy: CuttingProxy) -> None:
    proxy.fates.append("drop")
    queue.add([NewTask(b"a"), NewTask(b"b", name="named")])
    assert queue.stats().added_total == 2


def test_adds_go_on_after_a_repeat(queue: HttpQueue, proxy: CuttingProxy) -> None:
    for _ in range(3):
        proxy.fates.append("lose answer")
        queue.add(b"x")
        queue.add(b"y")
    assert queue.stats().added_total == 6


def test_a_refused_add_is_not_repeated(queue: HttpQueue, proxy: CuttingProxy) -> None:
    with pytest.raises(InvalidTagError):
        queue.add(NewTask(b"x", tag=""))
    assert len(proxy.seen) == 1
    queue.add(b"x")


def test_what_a_server_did_before_it_was_started_anew_is_known(tmp_path: Path) -> None:
    stores = [open_store(f"sqlite:///{tmp_path / 'queue.db'}") for _ in range(2)]
    with a_server(stores[0]) as before, a_server(stores[1]) as after, a_proxy(before, other=after) as proxy:
        queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
        proxy.fates.append("restart")
        (added,) = queue.add(b"x")
        assert (added.status, _added(after)) == ("added", 1)
        queue.close()
    for store in stores:
        store.close()


def test_nobody_knows_when_a_repeat_is_refused_by_a_store_that_is_away(tmp_path: Path) -> None:
    away = open_store(f"sqlite:///{tmp_path / 'queue.db'}")
    with a_server() as before, a_server(away) as after, a_proxy(before, other=after) as proxy:
        queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
        away.close()
        proxy.fates.append("restart")
        with pytest.raises(OutcomeUnknownError):
            queue.add(NewTask(b"", name="in-doubt"))
        with pytest.raises(StoreUnavailableError) as raised:
            queue.add(NewTask(b"", name="never-sent-before"))
        assert not isinstance(raised.value, OutcomeUnknownError)
        queue.close()
        assert _added(before) == 1


def test_a_named_add_survives_a_restart() -> None:
    with a_server() as before, a_server() as after, a_proxy(before, other=after) as proxy:
        queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
        proxy.fates.append("restart")
        assert [added.name for added in queue.add(NewTask(b"x", name="named"))] == ["named"]
        queue.close()


def test_a_restart_between_two_adds_is_not_noticed() -> None:
    with a_server() as before, a_server() as after, a_proxy(before, other=after) as proxy:
        queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
        queue.add(b"to the first")
        proxy.fates.append("restart")
        assert queue.stats().queue == QUEUE
        queue.add(b"to the second")
        queue.close()
        assert (_added(before), _added(after)) == (1, 1)


def _added(server: RunningServer) -> int:
    queue = server.queue()
    try:
        return queue.stats().added_total
    finally:
        queue.close()


def test_a_lease_whose_answer_was_lost_is_told_again(queue: HttpQueue, proxy: CuttingProxy) -> None:
    queue.add([NewTask(b"a"), NewTask(b"b")])
    proxy.fates.append("lose answer")
    assert [lease.payload for lease in queue.lease()] == [b"a"]
    assert queue.stats().leased_total == 1


def test_an_exchange_whose_answer_was_lost_is_told_again(queue: HttpQueue, proxy: CuttingProxy) -> None:
    queue.add([NewTask(b"a"), NewTask(b"b")])
    (lease,) = queue.lease()
    proxy.fates.append("lose answer")
    leases, lost = queue.exchange([Deletion(lease.token), Deletion("99.1")])
    assert ([held.payload for held in leases], lost) == ([b"b"], ("99.1",))
    assert (queue.stats().deleted_total, queue.stats().leased_total) == (1, 2)


def test_a_delete_that_did_not_arrive_before_its_lease_was_over_is_refused(
    queue: HttpQueue, proxy: CuttingProxy, server: RunningServer
) -> None:
    queue.add(b"x")
    (lease,) = queue.lease()
    other = server.queue()
    proxy.fates.append("drop")
    other.release(lease, delay_seconds=0.0)
    (held,) = other.lease()
    with pytest.raises(LeaseLostError):
        queue.delete(lease)
    assert other.delete(held) == []
    other.close()


def test_a_delete_whose_answer_was_lost_is_known_to_be_done(queue: HttpQueue, proxy: CuttingProxy) -> None:
    queue.add(b"x")
    (lease,) = queue.lease()
    proxy.fates.append("lose answer")
    assert queue.delete(lease) == []
    assert queue.stats().deleted_total == 1
    with pytest.raises(LeaseLostError):
        queue.delete(lease)


def test_a_release_whose_answer_was_lost_is_known_to_be_done(queue: HttpQueue, proxy: CuttingProxy) -> None:
    queue.add(b"x")
    (lease,) = queue.lease()
    proxy.fates.append("lose answer")
    assert [finished.outcome for finished in queue.release(lease, delay_seconds=0.0)] == ["released"]
    assert queue.stats().released_total == 1


def test_reading_is_repeated(queue: HttpQueue, proxy: CuttingProxy) -> None:
    proxy.fates.extend(["lose answer", "drop"])
    assert queue.stats().queue == QUEUE


def test_tries_are_bounded(queue: HttpQueue, proxy: CuttingProxy) -> None:
    proxy.fates.extend(["drop"] * 10)
    with pytest.raises(OutcomeUnknownError):
        queue.stats()
    assert len(proxy.seen) == IMPATIENT.tries


def test_a_server_that_is_not_there_is_named() -> None:
    queue = HttpQueue("http://127.0.0.1:9", QUEUE, retries=IMPATIENT)
    with pytest.raises(StoreUnavailableError, match=r"http://127\.0\.0\.1:9.*running") as raised:
        queue.add(b"x")
    assert not isinstance(raised.value, OutcomeUnknownError)


def test_a_client_finds_a_server_that_came_back_on_its_old_connections() -> None:
    with a_server() as before, a_server() as after, a_proxy(before, other=after) as proxy:
        queue = HttpQueue(proxy.url, QUEUE, retries=IMPATIENT)
        assert queue.lease() == []
        for connection in list(proxy._connections):
            connection.shutdown(socket.SHUT_RDWR)
        assert queue.lease() == []
        queue.close()


def test_pauses_grow_and_are_drawn() -> None:
    retries = Retries(tries=6, first_pause_seconds=0.1, longest_pause_seconds=1.0)
    assert [round(retries.pause_seconds(attempt, draw=1.0), 3) for attempt in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert retries.pause_seconds(3, draw=0.0) == 0.0


@pytest.mark.parametrize(
    ("url", "host_header"),
    [
        pytest.param("http://127.0.0.1:7878", "127.0.0.1:7878", id="address"),
        pytest.param("http://[::1]:7878/", "[::1]:7878", id="IPv6"),
        pytest.param("https://queue.example", "queue.example:443", id="TLS"),
        pytest.param("unix:///run/towline.sock", "localhost", id="socket"),
    ],
)
def test_urls_of_servers(url: str, host_header: str) -> None:
    assert parse_address(url).host_header == host_header


@pytest.mark.parametrize(
    "url", ["", "localhost:7878", "ftp://x", "http://", "http://x/path", "unix://x", "unix:", "http://x:99999"]
)
def test_what_is_no_servers_url(url: str) -> None:
    with pytest.raises(InvalidSettingError):
        parse_address(url)


def test_queues_share_connections(server: RunningServer) -> None:
    queues = server.queues()
    queues.put_queue(QueueSpec("other"))
    queues.queue(QUEUE).add(b"x")
    queues.queue("other").add(b"y")
    assert [spec.name for spec in queues.queues()] == ["other", QUEUE]
    assert len(queues._caller._servers.current.transport._all) == 1
    queues.close()
