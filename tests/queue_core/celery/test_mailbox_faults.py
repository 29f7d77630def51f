"""Mailboxes when connections are lost: messages of that moment may be, but then all goes on as before."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from queue_core.celery.mailboxes.exchanges import Binding
from queue_core.celery.mailboxes.news import Posted
from queue_core.celery.transport.opened import OpenedBroker
from queue_core.clock import SystemClock
from queue_core.stores.sqlite import bus as bus_module
from queue_core.stores.sqlite.bus import DatagramBus
from tests.support.cutting_proxy import CuttingTcpProxy, a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.stores.shared_engines import EngineName
from tests.support.stores.stores import new_store_url

TwoEnds = tuple[OpenedBroker, OpenedBroker, CuttingTcpProxy]


@pytest.fixture(params=["postgresql", "redis"])
def ends(request: pytest.FixtureRequest) -> Iterator[TwoEnds]:
    """Two programs of a store, the first behind a proxy."""
    name: EngineName = request.param
    url = new_store_url(name)
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    with ExitStack() as stack:
        proxy = stack.enter_context(a_tcp_proxy(place.hostname, place.port))
        behind = url.replace(f":{place.port}", f":{proxy.port}", 1)
        opened = [OpenedBroker(one, durability="strict") for one in (behind, url)]
        for one in opened:
            stack.callback(one.queues.close)
            stack.callback(one.close)
        yield opened[0], opened[1], proxy


def test_messages_arrive_again_after_the_connection_was_cut(ends: TwoEnds) -> None:
    first, second = (one.mailboxes("shop") for one in ends[:2])
    first.declare("one", expires_seconds=60.0, ttl_seconds=None)
    assert second.put("one", Posted("before"))
    assert eventually(lambda: first.pop(["one"], 1))[0].text == "before"
    ends[2].sever()
    eventually(lambda: second.put("one", Posted("after")) and first.pop(["one"], 1))


def test_what_was_declared_while_the_connection_was_cut_is_known_afterwards(ends: TwoEnds) -> None:
    first, second = (one.mailboxes("shop") for one in ends[:2])
    assert first.size("new") is None
    ends[2].sever()
    second.declare_exchange("topics", "topic")
    second.declare("new", expires_seconds=60.0, ttl_seconds=None)
    second.bind("topics", Binding("a.*", "new", is_task_queue=False))
    eventually(lambda: first.size("new") is not None)
    eventually(lambda: first.publish("topics", "a.b", Posted("x")) == [] and second.pop(["new"], 1))


def test_a_stopped_process_delays_others_once_and_is_told_that_it_missed_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "PATIENCE_SECONDS", 0.01)
    path = tmp_path / "towline.db"
    path.touch()
    (tmp_path / "towline.db-mail").mkdir()
    bus = DatagramBus(path, SystemClock())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stopped:
        stopped.bind(str(tmp_path / "towline.db-mail" / "aa"))
        piece = "x" * bus.piece_characters
        for _ in range(50):
            bus.send([("aa", piece)])
        stopped.settimeout(0.0)
        missed = 50 - len(_all_of(stopped))
        assert missed > 0
        bus.send([("aa", "next")])
        assert _all_of(stopped) == [b"!", b"next"]
        assert bus.nodes() == {"aa"}
    assert bus.nodes() == set()
    assert list((tmp_path / "towline.db-mail").iterdir()) == []
    bus.close()


def _all_of(stopped: socket.socket) -> list[bytes]:
    found: list[bytes] = []
    while True:
        try:
            found.append(stopped.recv(1 << 20))
        except BlockingIOError:
            return found
