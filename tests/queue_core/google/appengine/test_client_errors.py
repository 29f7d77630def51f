"""App Engine's own client for Python against a server: every documented exception, raised for its cause."""

from collections.abc import Callable, Iterator

import pytest

from queue_core.errors import QueueError, StoreCorruptError, StoreUnavailableError
from queue_core.google.appengine import connect
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import QueueSpec
from queue_core.verbs.roles import Role
from tests.support.google.appengine_sdk import apiproxy_errors, apiproxy_stub_map, remote_pb2, service_pb2, taskqueue
from tests.support.google.appengine_world import SECRET, AppEngineWorld, Task, connected, forget_settings
from tests.support.servers import QUEUE, a_timed_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:google")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[AppEngineWorld]:
    forget_settings(monkeypatch)
    with connected() as world:
        yield world


Cause = Callable[[AppEngineWorld], object]


def _failing(failure: QueueError) -> Cause:
    def cause(world: AppEngineWorld) -> object:
        world.store.failure = failure
        return world.queue.lease_tasks(60, 1)

    return cause


def _twice(world: AppEngineWorld) -> object:
    world.add(name="n")
    return world.add(name="n")


def _tombstoned(world: AppEngineWorld) -> object:
    world.add(name="n")
    world.queue.delete_tasks_by_name("n")
    return world.add(name="n")


def _expired(world: AppEngineWorld) -> object:
    task = world.leased()
    world.queue.modify_task_lease(task, 0)
    return world.queue.modify_task_lease(task, 60)


def _modified_elsewhere(world: AppEngineWorld) -> object:
    task = world.leased()
    same = Task(payload=b"", method="PULL", name=task.name, eta=task.eta)
    world.queue.modify_task_lease(same, 120)
    return world.queue.modify_task_lease(task, 60)


def _gone(world: AppEngineWorld) -> object:
    task = world.leased()
    world.queue.delete_tasks_by_name(task.name)
    return world.queue.modify_task_lease(task, 60)


def _gone_by_name(world: AppEngineWorld) -> object:
    world.add(name="n")
    (task,) = world.queue.lease_tasks(60, 1)
    world.queue.delete_tasks_by_name("n")
    return world.queue.modify_task_lease(task, 60)


def _paused(world: AppEngineWorld) -> object:
    task = world.leased()
    world.pause()
    return world.queue.modify_task_lease(task, 60)


def _too_long(world: AppEngineWorld) -> object:
    world.set_queue(QueueSpec(QUEUE, lease_seconds=5.0, max_lease_seconds=10.0))
    return world.queue.lease_tasks(60, 1)


def _just_too_large(world: AppEngineWorld) -> object:
    """The client counts payload and headers; the server counts the name and the tag as well."""
    return world.add(payload=b"x" * ((1 << 20) - 100), tag="t" * 400)


def _too_large_a_batch(world: AppEngineWorld) -> object:
    return world.queue.add([Task(payload=b"x" * 1_000_000, method="PULL") for _ in range(40)])


def _far_too_large_a_batch(world: AppEngineWorld) -> object:
    return world.queue.add([Task(payload=b"x" * 1_000_000, method="PULL") for _ in range(90)])


def _deleted_twice(world: AppEngineWorld) -> object:
    task = world.leased()
    world.queue.delete_tasks(task)
    return world.queue.delete_tasks(task)


def _memcache(world: AppEngineWorld) -> object:
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
    pytest.param(
        lambda world: taskqueue.add(url="/x"), taskqueue.InvalidQueueModeError, id="push to the default queue"
    ),
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
    world: AppEngineWorld, cause: Cause, kind: type[Exception]
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
    world: AppEngineWorld, cause: Cause, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        cause(world)


def test_an_eta_beyond_the_servers_month_is_the_servers_to_refuse() -> None:
    """The client judges by its own clock, which may run ahead."""
    with a_timed_server() as (server, _):
        connect.connect_appengine(server.url)
        with pytest.raises(taskqueue.InvalidEtaError):
            taskqueue.Queue(QUEUE).add(Task(payload=b"", method="PULL"))


def _rpc(method: str, request: object, response: object) -> None:
    apiproxy_stub_map.MakeSyncCall("taskqueue", method, request, response)


def test_a_task_of_a_transaction_is_refused_as_the_datastores_error(world: AppEngineWorld) -> None:
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
        connect.connect_appengine(world.server.url, ticket=ticket)
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
