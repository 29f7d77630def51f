"""App Engine's own client for Python against a server: how it is connected, and that its calls do what they say."""

import datetime as dt
import os
import sys
import threading
from collections.abc import Iterator
from typing import Literal

import pytest

from queue_core.errors import AppImportError, InvalidRequestError, InvalidSettingError
from queue_core.google import appengine
from queue_core.google.appengine import connect
from queue_core.google.appengine.stub import TowlineStub
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.google.appengine_sdk import apiproxy_stub_map, default_api_stub, memcache, memcache_stub, taskqueue
from tests.support.google.appengine_world import SECRET, AppEngineWorld, Task, connected, forget_settings
from tests.support.servers import QUEUE, request

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[AppEngineWorld]:
    forget_settings(monkeypatch)
    with connected() as world:
        yield world


def test_a_task_comes_back_as_it_was_added(world: AppEngineWorld) -> None:
    eta = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1)  # noqa: TID251
    world.add(payload=bytes(range(256)), name="n-1", tag="a tag ä", eta=eta)
    world.add(payload="", tag="")
    world.add(payload=None, params={"a": "1", "b": ["x", "y"]})
    first, second, third = world.queue.lease_tasks(60.5, 10)
    assert (first.payload, first.name, first.tag, first.retry_count) == (bytes(range(256)), "n-1", "a tag ä", 1)
    assert (second.payload, second.tag) == (b"", None)
    assert third.extract_params() == {b"a": b"1", b"b": [b"x", b"y"]}
    assert first.queue_name == QUEUE
    assert first.was_enqueued
    assert first.eta_posix > eta.timestamp() + 60


def test_a_lease_is_modified_by_its_end_whatever_the_microsecond(world: AppEngineWorld) -> None:
    task = world.leased()
    for seconds in (0.1, 1.000_001, 33.333_333, 604_799.5, 7):
        world.queue.modify_task_lease(task, seconds)
    world.queue.modify_task_lease(task, 0)
    (again,) = world.queue.lease_tasks(60, 10)
    assert (again.name, again.retry_count) == (task.name, 2)


def test_deleting_says_which_tasks_were_there(world: AppEngineWorld) -> None:
    tasks = [world.leased(), world.leased()]
    world.queue.delete_tasks_by_name(tasks[0].name)
    world.queue.delete_tasks(tasks)
    assert [task.was_deleted for task in tasks] == [False, True]
    assert not world.queue.delete_tasks_by_name("never").was_deleted


def test_a_batch_says_which_tasks_were_added_when_some_were_there(world: AppEngineWorld) -> None:
    world.add(name="b")
    tasks = [Task(payload=b"", method="PULL", name=name) for name in ("a", "b", "c")]
    with pytest.raises(taskqueue.TaskAlreadyExistsError):
        world.queue.add(tasks)
    assert [task.was_enqueued for task in tasks] == [True, False, True]


def test_statistics_tell_of_the_queue(world: AppEngineWorld) -> None:
    assert world.queue.fetch_statistics().oldest_eta_usec is None
    world.leased()
    world.add()
    stats = world.queue.fetch_statistics()
    assert (stats.tasks, stats.in_flight, stats.executed_last_minute) == (2, 1, 1)
    of_two = taskqueue.QueueStatistics.fetch([QUEUE, "nowhere"])
    assert [(one.queue.name, one.tasks) for one in of_two] == [(QUEUE, 2), ("nowhere", 0)]


def test_asynchronous_calls_run_beside_each_other_and_call_back(world: AppEngineWorld) -> None:
    called: list[str] = []
    calls = [taskqueue.create_rpc(deadline=10, callback=lambda: called.append("back")) for _ in range(8)]
    for call in calls:
        world.queue.add_async(Task(payload=b"x", method="PULL"), rpc=call)
    for call in calls:
        call.get_result()
    assert called == ["back"] * 8
    assert len(world.queue.lease_tasks_async(60, 100).get_result()) == 8


def test_a_thread_that_ran_before_the_connection_was_made_is_connected_too(world: AppEngineWorld) -> None:
    begin, found = threading.Event(), []
    thread = threading.Thread(target=lambda: (begin.wait(), found.append(world.queue.lease_tasks(60, 1))))
    thread.start()
    connect.connect_appengine(world.server.url)
    world.add()
    begin.set()
    thread.join()
    assert [len(tasks) for tasks in found] == [1]


# -- connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["unix:///run/towline.sock", "sqlite:///towline.db", "http://", "http://a:b:c", "x"])
def test_a_url_that_the_client_cannot_use_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidSettingError, match="http://"):
        connect.connect_appengine(url)


def test_the_environment_is_set_for_the_sdks_own_stub() -> None:
    environment: dict[str, str] = {}
    connect.set_environment(environment, "http://[::1]:7878", SECRET)
    assert environment == {
        "API_HOST": "::1",
        "API_PORT": "7878",
        "HTTP_X_APPENGINE_API_TICKET": SECRET,
    }


def test_a_back_end_that_pull_queues_do_not_have_is_warned_of(
    world: AppEngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPENGINE_USE_CLOUDTASK_PUSH_QUEUE", "true")
    with pytest.warns(RuntimeWarning, match="unset it"):
        connect.connect_appengine(world.server.url)


def test_a_connected_client_is_known_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are added while strangers take up all that is read for callers who are not known yet."""
    forget_settings(monkeypatch)
    options = ServeOptions(tokens=(AccessToken(Role.ADMIN, SECRET),))
    stranger = request("POST", "/rpc_http", headers=[("content-length", str(31 << 20))])
    with connected(options, SECRET) as world, world.server.connect() as one, world.server.connect() as other:
        for connection in (one, other):
            connection.sendall(stranger)
        door = world.server.thread.core.fast_endpoints[appengine.PATH]
        eventually(lambda: door._unauthenticated_bytes == 2 * (31 << 20))
        monkeypatch.setattr("queue_core.google.appengine.endpoint.MAX_UNKNOWN_BYTES", door._unauthenticated_bytes)
        world.add(payload=b"x" * (100 << 10))


def test_a_supervised_worker_holds_its_leases_under_its_name(
    world: AppEngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWLINE_WORKER", "pool/1")
    connect.connect_appengine(world.server.url)
    world.leased()
    held = QueueService(world.store).read(lambda turn: turn.transaction.live_leases(QUEUE, limit=9, now=turn.now))
    assert [lease.worker for lease in held] == ["pool/1"]


def test_without_the_sdk_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "queue_core.google.appengine.stub")
    monkeypatch.setitem(sys.modules, "google.appengine.api.apiproxy_rpc", None)
    monkeypatch.delattr("google.appengine.api.apiproxy_rpc")
    with pytest.raises(AppImportError, match="pip install appengine-python-standard"):
        connect.connect_appengine("http://127.0.0.1:1")


# -- which services ---------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[apiproxy_stub_map.APIProxyStubMap]:
    """The SDK's map of services, with nothing in it until the test's end, in an environment that says nothing."""
    forget_settings(monkeypatch)
    for name in ("GAE_ENV", "TOWLINE_URL"):
        monkeypatch.delenv(name, raising=False)
    fresh = apiproxy_stub_map.APIProxyStubMap()
    monkeypatch.setattr(apiproxy_stub_map, "apiproxy", fresh)
    yield fresh


def uses_towline(proxy: apiproxy_stub_map.APIProxyStubMap, service: str) -> bool:
    return isinstance(proxy.GetStub(service), TowlineStub)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_in_an_application_with_an_api_host_memcache_stays_where_it_was(
    proxy: apiproxy_stub_map.APIProxyStubMap, again: bool
) -> None:
    proxy.SetDefaultStub(memcache_stub.MemcacheServiceStub())
    before = dict(os.environ)
    with connected() as world:
        if again:
            connect.connect_appengine(world.server.url)
        assert memcache.set("key", "value") is True
        assert memcache.get("key") == "value"
        world.leased()
    assert dict(os.environ) == before | {"HTTP_HOST": os.environ["HTTP_HOST"]}


@pytest.mark.parametrize(
    ("variable", "value"), [("API_HOST", "appengine.googleapis.internal"), ("GAE_ENV", "standard")]
)
def test_an_environment_that_names_an_api_host_keeps_it(
    proxy: apiproxy_stub_map.APIProxyStubMap, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    connect.connect_appengine("http://127.0.0.1:1")
    assert uses_towline(proxy, "taskqueue")
    assert proxy.GetStub("memcache") is None
    assert (os.environ[variable], "API_PORT" in os.environ) == (value, False)
    default_api_stub.Register(default_api_stub.DefaultApiStub())  # as `wrap_wsgi_app` does, after
    assert uses_towline(proxy, "taskqueue")
    assert not uses_towline(proxy, "datastore_v3")


def test_a_service_that_was_registered_by_its_name_is_a_host_too(proxy: apiproxy_stub_map.APIProxyStubMap) -> None:
    proxy.RegisterStub("memcache", memcache_stub.MemcacheServiceStub())
    connect.connect_appengine("http://127.0.0.1:1")
    assert not uses_towline(proxy, "memcache")
    assert "API_HOST" not in os.environ


def test_where_there_is_no_host_every_service_is_taken_and_again_by_the_next_connection(
    proxy: apiproxy_stub_map.APIProxyStubMap,
) -> None:
    for port in ("1", "2"):
        connect.connect_appengine(f"http://127.0.0.1:{port}")
        assert uses_towline(proxy, "taskqueue")
        assert uses_towline(proxy, "memcache")
        assert os.environ["API_PORT"] == port


def test_the_server_itself_as_the_environments_api_host_is_no_other_host(
    proxy: apiproxy_stub_map.APIProxyStubMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_HOST", "127.0.0.1")
    monkeypatch.setenv("API_PORT", "1")
    connect.connect_appengine("http://127.0.0.1:1")
    assert uses_towline(proxy, "memcache")


@pytest.mark.parametrize(("services", "taken"), [("all", True), ("taskqueue", False)])
def test_the_services_can_be_named(
    proxy: apiproxy_stub_map.APIProxyStubMap, services: Literal["all", "taskqueue"], taken: bool
) -> None:
    if taken:
        proxy.SetDefaultStub(memcache_stub.MemcacheServiceStub())
    connect.connect_appengine("http://127.0.0.1:1", services=services)
    assert uses_towline(proxy, "taskqueue")
    assert uses_towline(proxy, "memcache") is taken
    assert ("API_HOST" in os.environ) is taken


def test_services_out_of_two_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="services"):
        connect.connect_appengine("http://127.0.0.1:1", services="memcache")  # type: ignore[arg-type]
