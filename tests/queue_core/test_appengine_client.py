"""App Engine's own client for Python against a server: every documented exception, raised for its cause."""

import datetime as dt
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from queue_core import appengine
from queue_core.clock import ManualClock
from queue_core.errors import AppImportError, InvalidSettingError, QueueError, StoreCorruptError, StoreUnavailableError
from queue_core.server.options import AccessToken, Role, ServeOptions
from queue_core.server.run import ServerThread
from queue_core.service import QueueService
from queue_core.stores.memory import MemoryStore
from queue_core.task import QueueSpec
from tests.support.appengine_sdk import apiproxy_errors, apiproxy_stub_map, remote_pb2, service_pb2, taskqueue
from tests.support.servers import QUEUE, RunningServer, a_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")

SECRET = "a-secret-of-the-worker"
Task = taskqueue.Task


class FailingStore(MemoryStore):
    """A memory store that can be told to fail."""

    failure: QueueError | None = None

    def begin(self):  # type: ignore[no-untyped-def]
        if self.failure is not None:
            raise self.failure
        return super().begin()


@dataclass(frozen=True, slots=True)
class World:
    """A server, and App Engine's client set to it."""

    server: RunningServer
    store: FailingStore
    queue: taskqueue.Queue

    def set_queue(self, spec: QueueSpec) -> None:
        QueueService(self.store).run(lambda turn: turn.put_queue(spec))

    def pause(self) -> None:
        QueueService(self.store).run(lambda turn: turn.set_paused(QUEUE, "paused"))

    def add(self, **settings: object) -> taskqueue.Task:
        return self.queue.add(Task(**({"payload": b"x", "method": "PULL"} | settings)))

    def leased(self) -> taskqueue.Task:
        self.add()
        (task,) = self.queue.lease_tasks(60, 1)
        return task


@contextmanager
def connected(options: ServeOptions | None = None, ticket: str | None = None) -> Iterator[World]:
    store = FailingStore()
    with a_server(store, options) as server:
        appengine.connect(server.url, ticket=ticket)
        yield World(server, store, taskqueue.Queue(QUEUE))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("API_HOST", "API_PORT", "HTTP_X_APPENGINE_API_TICKET", "HTTP_HOST", "TOWLINE_WORKER"):
        monkeypatch.delenv(name, raising=False)
    with connected() as world:
        yield world


def _rpc(method: str, request: object, response: object) -> None:
    apiproxy_stub_map.MakeSyncCall("taskqueue", method, request, response)


# -- what works -------------------------------------------------------------------------------------------------------


def test_a_task_comes_back_as_it_was_added(world: World) -> None:
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


def test_a_lease_is_modified_by_its_end_whatever_the_microsecond(world: World) -> None:
    task = world.leased()
    for seconds in (0.1, 1.000_001, 33.333_333, 604_799.5, 7):
        world.queue.modify_task_lease(task, seconds)
    world.queue.modify_task_lease(task, 0)
    (again,) = world.queue.lease_tasks(60, 10)
    assert (again.name, again.retry_count) == (task.name, 2)


def test_deleting_says_which_tasks_were_there(world: World) -> None:
    tasks = [world.leased(), world.leased()]
    world.queue.delete_tasks_by_name(tasks[0].name)
    world.queue.delete_tasks(tasks)
    assert [task.was_deleted for task in tasks] == [False, True]
    assert not world.queue.delete_tasks_by_name("never").was_deleted


def test_a_batch_says_which_tasks_were_added_when_some_were_there(world: World) -> None:
    world.add(name="b")
    tasks = [Task(payload=b"", method="PULL", name=name) for name in ("a", "b", "c")]
    with pytest.raises(taskqueue.TaskAlreadyExistsError):
        world.queue.add(tasks)
    assert [task.was_enqueued for task in tasks] == [True, False, True]


def test_statistics_tell_of_the_queue(world: World) -> None:
    assert world.queue.fetch_statistics().oldest_eta_usec is None
    world.leased()
    world.add()
    stats = world.queue.fetch_statistics()
    assert (stats.tasks, stats.in_flight, stats.executed_last_minute) == (2, 1, 1)
    of_two = taskqueue.QueueStatistics.fetch([QUEUE, "nowhere"])
    assert [(one.queue.name, one.tasks) for one in of_two] == [(QUEUE, 2), ("nowhere", 0)]


def test_asynchronous_calls_run_beside_each_other_and_call_back(world: World) -> None:
    called: list[str] = []
    calls = [taskqueue.create_rpc(deadline=10, callback=lambda: called.append("back")) for _ in range(8)]
    for call in calls:
        world.queue.add_async(Task(payload=b"x", method="PULL"), rpc=call)
    for call in calls:
        call.get_result()
    assert called == ["back"] * 8
    assert len(world.queue.lease_tasks_async(60, 100).get_result()) == 8


def test_a_thread_that_ran_before_the_connection_was_made_is_connected_too(world: World) -> None:
    begin, found = threading.Event(), []
    thread = threading.Thread(target=lambda: (begin.wait(), found.append(world.queue.lease_tasks(60, 1))))
    thread.start()
    appengine.connect(world.server.url)
    world.add()
    begin.set()
    thread.join()
    assert [len(tasks) for tasks in found] == [1]


# -- exceptions -------------------------------------------------------------------------------------------------------

Cause = Callable[[World], object]


def _failing(failure: QueueError) -> Cause:
    def cause(world: World) -> object:
        world.store.failure = failure
        return world.queue.lease_tasks(60, 1)

    return cause


def _twice(world: World) -> object:
    world.add(name="n")
    return world.add(name="n")


def _tombstoned(world: World) -> object:
    world.add(name="n")
    world.queue.delete_tasks_by_name("n")
    return world.add(name="n")


def _expired(world: World) -> object:
    task = world.leased()
    world.queue.modify_task_lease(task, 0)
    return world.queue.modify_task_lease(task, 60)


def _modified_elsewhere(world: World) -> object:
    task = world.leased()
    same = Task(payload=b"", method="PULL", name=task.name, eta=task.eta)
    world.queue.modify_task_lease(same, 120)
    return world.queue.modify_task_lease(task, 60)


def _gone(world: World) -> object:
    task = world.leased()
    world.queue.delete_tasks_by_name(task.name)
    return world.queue.modify_task_lease(task, 60)


def _gone_by_name(world: World) -> object:
    world.add(name="n")
    (task,) = world.queue.lease_tasks(60, 1)
    world.queue.delete_tasks_by_name("n")
    return world.queue.modify_task_lease(task, 60)


def _paused(world: World) -> object:
    task = world.leased()
    world.pause()
    return world.queue.modify_task_lease(task, 60)


def _too_long(world: World) -> object:
    world.set_queue(QueueSpec(QUEUE, lease_seconds=5.0, max_lease_seconds=10.0))
    return world.queue.lease_tasks(60, 1)


def _just_too_large(world: World) -> object:
    """The client counts payload and headers; the server counts the name and the tag as well."""
    return world.add(payload=b"x" * ((1 << 20) - 100), tag="t" * 400)


def _too_large_a_batch(world: World) -> object:
    return world.queue.add([Task(payload=b"x" * 1_000_000, method="PULL") for _ in range(40)])


def _far_too_large_a_batch(world: World) -> object:
    return world.queue.add([Task(payload=b"x" * 1_000_000, method="PULL") for _ in range(90)])


def _deleted_twice(world: World) -> object:
    task = world.leased()
    world.queue.delete_tasks(task)
    return world.queue.delete_tasks(task)


def _memcache(world: World) -> object:
    return apiproxy_stub_map.MakeSyncCall("memcache", "Get", remote_pb2.Response(), remote_pb2.Response())


SERVERS = [
    pytest.param(
        lambda world: taskqueue.Queue("no").lease_tasks(1, 1), taskqueue.UnknownQueueError, id="lease: no queue"
    ),
    pytest.param(lambda world: taskqueue.Queue("no").purge(), taskqueue.UnknownQueueError, id="purge: no queue"),
    pytest.param(
        lambda world: taskqueue.Queue("no").delete_tasks_by_name("n"),
        taskqueue.UnknownQueueError,
        id="delete: no queue",
    ),
    pytest.param(
        lambda world: taskqueue.Queue("no").add(Task(payload=b"", method="PULL")),
        taskqueue.UnknownQueueError,
        id="add: no queue",
    ),
    pytest.param(lambda world: taskqueue.add(url="/x"), taskqueue.UnknownQueueError, id="push to the default queue"),
    pytest.param(_failing(StoreUnavailableError("away")), taskqueue.TransientError, id="the store is away"),
    pytest.param(_failing(StoreCorruptError("damaged")), taskqueue.InternalError, id="the store is damaged"),
    pytest.param(_just_too_large, taskqueue.TaskTooLargeError, id="a request over 1 MiB"),
    pytest.param(lambda world: world.add(name="n\n"), taskqueue.InvalidTaskNameError, id="a name and a line's end"),
    pytest.param(
        lambda world: world.add(name="_1"), taskqueue.InvalidTaskNameError, id="a name that the queue chooses"
    ),
    pytest.param(
        lambda world: taskqueue.Queue("work\n").lease_tasks(1, 1), taskqueue.InvalidQueueNameError, id="a queue's name"
    ),
    pytest.param(_twice, taskqueue.TaskAlreadyExistsError, id="a name that is taken"),
    pytest.param(_tombstoned, taskqueue.TombstonedTaskError, id="the name of a deleted task"),
    pytest.param(_gone, taskqueue.TombstonedTaskError, id="modify: deleted"),
    pytest.param(_gone_by_name, taskqueue.TombstonedTaskError, id="modify: deleted under its given name"),
    pytest.param(_too_long, taskqueue.Error, id="a lease longer than the queue's bound"),
    pytest.param(
        lambda world: world.queue.modify_task_lease(Task(payload=b"", method="PULL", name="n"), 1),
        taskqueue.Error,
        id="modify: no such task",
    ),
    pytest.param(lambda world: world.queue.add(Task(url="/x")), taskqueue.InvalidQueueModeError, id="a push task"),
    pytest.param(_expired, taskqueue.TaskLeaseExpiredError, id="modify: given back"),
    pytest.param(_modified_elsewhere, taskqueue.TaskLeaseExpiredError, id="modify: moved by another"),
    pytest.param(_paused, taskqueue.QueuePausedError, id="modify: the queue is paused"),
    pytest.param(lambda world: world.add(tag="a\x00b"), taskqueue.InvalidTagError, id="a tag with NUL"),
    pytest.param(lambda world: world.add(tag="ä" * 251), taskqueue.InvalidTagError, id="a tag of 502 bytes"),
    pytest.param(
        lambda world: world.queue.lease_tasks_by_tag(1, 1, "a\x00b"),
        taskqueue.InvalidTagError,
        id="lease: a tag with NUL",
    ),
    pytest.param(_too_large_a_batch, apiproxy_errors.RequestTooLargeError, id="a batch over 32 MiB"),
    pytest.param(_far_too_large_a_batch, apiproxy_errors.RequestTooLargeError, id="a batch over the body's limit"),
    pytest.param(_memcache, apiproxy_errors.CallNotFoundError, id="another service"),
]


@pytest.mark.parametrize(("cause", "kind"), SERVERS)
def test_what_the_server_refuses_is_the_exception_of_the_documentation(
    world: World, cause: Cause, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as raised:
        cause(world)
    assert raised.type is kind


CLIENTS = [
    pytest.param(lambda world: world.add(name="a b"), taskqueue.InvalidTaskNameError, id="a name with a blank"),
    pytest.param(lambda world: world.add(tag="t" * 501), taskqueue.InvalidTagError, id="a tag of 501 characters"),
    pytest.param(lambda world: world.add(payload=b"x" * (1 << 20)), taskqueue.TaskTooLargeError, id="1 MiB"),
    pytest.param(lambda world: world.add(payload=None), taskqueue.InvalidTaskError, id="no payload"),
    pytest.param(lambda world: world.add(url="/x"), taskqueue.InvalidTaskError, id="a pull task with a URL"),
    pytest.param(lambda world: world.add(countdown=31 * 86_400), taskqueue.InvalidEtaError, id="31 days ahead"),
    pytest.param(lambda world: world.queue.lease_tasks(-1, 1), taskqueue.InvalidLeaseTimeError, id="a negative lease"),
    pytest.param(lambda world: world.queue.lease_tasks(604_801, 1), taskqueue.InvalidLeaseTimeError, id="8 days"),
    pytest.param(lambda world: world.queue.lease_tasks(1, 0), taskqueue.InvalidMaxTasksError, id="no tasks"),
    pytest.param(lambda world: world.queue.lease_tasks(1, 1001), taskqueue.InvalidMaxTasksError, id="1,001 tasks"),
    pytest.param(lambda world: world.queue.lease_tasks(1, 1, deadline=0), taskqueue.InvalidDeadlineError, id="no time"),
    pytest.param(
        lambda world: world.queue.add([Task(payload=b"", method="PULL") for _ in range(101)]),
        taskqueue.TooManyTasksError,
        id="101 tasks",
    ),
    pytest.param(
        lambda world: world.queue.add([Task(payload=b"", method="PULL", name="n") for _ in range(2)]),
        taskqueue.DuplicateTaskNameError,
        id="a name twice",
    ),
    pytest.param(_deleted_twice, taskqueue.BadTaskStateError, id="deleted twice"),
    pytest.param(lambda world: world.queue.add(world.leased()), taskqueue.BadTaskStateError, id="added twice"),
    pytest.param(
        lambda world: world.queue.add(Task(payload=b"", method="PULL"), transactional=True),
        taskqueue.BadTransactionStateError,
        id="a transaction outside of one",
    ),
]


@pytest.mark.parametrize(("cause", "kind"), CLIENTS)
def test_what_the_client_refuses_by_itself_never_comes_to_the_server(
    world: World, cause: Cause, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        cause(world)


def test_an_eta_beyond_the_servers_month_is_the_servers_to_refuse() -> None:
    """The client judges by its own clock, which may run ahead."""
    store, clock = MemoryStore(), ManualClock()
    QueueService(store, clock=clock).run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    thread = ServerThread(store, ServeOptions(port=0), clock=clock)
    appengine.connect(thread.start())
    try:
        with pytest.raises(taskqueue.InvalidEtaError):
            taskqueue.Queue(QUEUE).add(Task(payload=b"", method="PULL"))
    finally:
        thread.stop()


def test_a_task_of_a_transaction_is_refused_as_the_datastores_error(world: World) -> None:
    request = service_pb2.TaskQueueBulkAddRequest()
    add = request.add_request.add(queue_name=QUEUE.encode(), task_name=b"", eta_usec=0, body=b"", mode=1)
    add.datastore_transaction = b"t"
    with pytest.raises(apiproxy_errors.ApplicationError) as raised:
        _rpc("BulkAdd", request, service_pb2.TaskQueueBulkAddResponse())
    assert raised.value.application_error == service_pb2.TaskQueueServiceError.DATASTORE_BAD_REQUEST


@pytest.mark.parametrize("ticket", [None, "wrong", SECRET + " "])
def test_a_ticket_that_is_no_secret_is_denied(ticket: str | None) -> None:
    tokens = (AccessToken(Role.WORKER, SECRET),)
    with connected(ServeOptions(tokens=tokens), SECRET) as world:
        world.add()
        with pytest.raises(taskqueue.PermissionDeniedError):
            world.queue.purge()  # for administrators
        appengine.connect(world.server.url, ticket=ticket)
        if ticket == SECRET + " ":  # as in a header, blanks around it are none of it
            assert world.queue.lease_tasks(1, 1)
            return
        with pytest.raises(taskqueue.PermissionDeniedError):
            world.queue.lease_tasks(1, 1)


def test_a_server_that_is_gone_is_a_failed_call() -> None:
    with connected() as world:
        queue = world.queue
    with pytest.raises(apiproxy_errors.RPCFailedError):
        queue.lease_tasks(1, 1)


# -- connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["unix:///run/towline.sock", "sqlite:///towline.db", "http://", "http://a:b:c", "x"])
def test_a_url_that_the_client_cannot_use_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidSettingError, match="http://"):
        appengine.connect(url)


def test_the_environment_is_set_for_the_sdks_own_stub() -> None:
    environment = {"HTTP_HOST": "app.example"}
    appengine.set_environment(environment, "http://[::1]:7878", SECRET)
    assert environment == {
        "API_HOST": "::1",
        "API_PORT": "7878",
        "HTTP_X_APPENGINE_API_TICKET": SECRET,
        "HTTP_HOST": "app.example",
    }


def test_a_back_end_that_pull_queues_do_not_have_is_warned_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPENGINE_USE_CLOUDTASK_PUSH_QUEUE", "true")
    with pytest.warns(RuntimeWarning, match="unset it"):
        appengine.connect(world.server.url)


def test_a_supervised_worker_holds_its_leases_under_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWLINE_WORKER", "pool/1")
    appengine.connect(world.server.url)
    world.leased()
    held = QueueService(world.store).look(lambda turn: turn.transaction.live_leases(QUEUE, limit=9, now=turn.now))
    assert [lease.worker for lease in held] == ["pool/1"]


def test_without_the_sdk_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "queue_core.appengine_stub")
    monkeypatch.setitem(sys.modules, "google.appengine.api.apiproxy_rpc", None)
    monkeypatch.delattr("google.appengine.api.apiproxy_rpc")
    with pytest.raises(AppImportError, match="pip install appengine-python-standard"):
        appengine.connect("http://127.0.0.1:1")
