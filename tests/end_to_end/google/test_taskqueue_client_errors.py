"""What Google's own client of the Task Queue REST API raises: every documented error for its cause, and who may."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import RefreshError
from googleapiclient.errors import HttpError

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.task import QueueSpec
from queue_core.verbs.roles import Role
from tests.support.google.taskqueue_client import HERE, a_client, insert, lease, names, payload, put, refused
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores.stores import opened

SECRETS = {"user@x.org": "u" * 16, "writer@x.org": "w" * 16, "else@x.org": "e" * 16, None: "n" * 16}
ADMIN = "a" * 16


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with opened("sqlite", tmp_path) as store, a_server(store) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    with a_client(server) as made:
        yield made


def test_a_queue_that_is_not_there(client: Any) -> None:
    nowhere = {"project": "app", "taskqueue": "nowhere"}
    calls = [
        client.taskqueues().get(**nowhere),
        client.tasks().list(**nowhere),
        client.tasks().insert(**nowhere, body={"payloadBase64": ""}),
        client.tasks().lease(**nowhere, numTasks=1, leaseSecs=1),
        client.tasks().get(**nowhere, task="t"),
        client.tasks().update(**nowhere, task="t", newLeaseSeconds=1, body={"id": "t", "leaseTimestamp": "1"}),
        client.tasks().patch(**nowhere, task="t", newLeaseSeconds=1, body={"queueName": "nowhere"}),
        client.tasks().delete(**nowhere, task="t"),
    ]
    for call in calls:
        with refused(404, "notFound", "nowhere"):
            call.execute()


def test_a_name_that_is_taken_or_was_not_long_ago(client: Any) -> None:
    insert(client, id="one")
    with refused(400, "duplicate", "one"):
        insert(client, id="one")
    client.tasks().delete(**HERE, task="one").execute()
    with refused(400, "duplicate", "one"):
        insert(client, id="one")


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        pytest.param({}, "required", id="no payload"),
        pytest.param({"payloadBase64": "a+/b"}, "invalid", id="the other base64"),
        pytest.param({"payloadBase64": "", "id": "a b"}, "invalid", id="a name out of form"),
        pytest.param({"payloadBase64": "", "id": "_1"}, "invalid", id="a name that the queue chooses"),
        pytest.param({"payloadBase64": "", "id": "x" * 501}, "invalid", id="a name too long"),
        pytest.param({"payloadBase64": "", "tag": "ä" * 251}, "invalid", id="a tag too long, in bytes"),
        pytest.param({"payloadBase64": "", "leaseTimestamp": str(10**17)}, "invalid", id="an eta too far ahead"),
        pytest.param({"payloadBase64": "", "queueName": "other"}, "invalid", id="another queue"),
        pytest.param({"payloadBase64": payload(bytes((1 << 20) + 1))}, "invalid", id="a payload too large"),
    ],
)
def test_a_task_that_can_not_be_inserted(client: Any, task: dict[str, str], reason: str) -> None:
    with refused(400, reason):
        client.tasks().insert(**HERE, body=task).execute()
    assert "items" not in client.tasks().list(**HERE).execute()


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"numTasks": 0, "leaseSecs": 1}, id="no tasks"),
        pytest.param({"numTasks": 1001, "leaseSecs": 1}, id="too many"),
        pytest.param({"numTasks": 1, "leaseSecs": -1}, id="a lease that is over before it begins"),
        pytest.param({"numTasks": 1, "leaseSecs": 604_801}, id="a lease too long"),
        pytest.param({"numTasks": 1, "leaseSecs": 1, "tag": "t"}, id="a tag without groupByTag"),
        pytest.param({"numTasks": 1, "leaseSecs": 1, "fields": "items(what)"}, id="fields that are not there"),
    ],
)
def test_a_lease_that_can_not_be_asked_for_leases_nothing(client: Any, asked: dict[str, Any]) -> None:
    insert(client, id="one", tag="t")
    with refused(400, "invalidParameter"):
        client.tasks().lease(**HERE, **asked).execute()
    assert names(lease(client)) == ["one"]


def test_a_lease_that_is_not_current_is_told_as_expired(client: Any) -> None:
    insert(client, id="one")
    (leased,) = lease(client, seconds=0)
    tasks = client.tasks()
    with refused(400, "invalid", "The task lease has expired"):
        tasks.update(**HERE, task="one", newLeaseSeconds=60, body=leased).execute()
    with refused(400, "invalid", "The task lease has expired"):
        tasks.patch(**HERE, task="one", newLeaseSeconds=60, body={"queueName": QUEUE}).execute()
    (another,) = lease(client)
    with refused(400, "invalid", "The task lease has expired"):
        tasks.update(**HERE, task="one", newLeaseSeconds=60, body=leased).execute()
    with refused(400, "invalid", "The task lease has expired"):
        tasks.patch(**HERE, task="one", newLeaseSeconds=60, body=leased).execute()
    tasks.update(**HERE, task="one", newLeaseSeconds=60, body=another).execute()


def test_a_task_that_was_never_leased_can_not_be_renewed(client: Any) -> None:
    inserted = insert(client, id="one")
    with refused(400, "invalid", "The task lease has expired"):
        client.tasks().update(**HERE, task="one", newLeaseSeconds=60, body=inserted).execute()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param({"id": "one"}, "required", id="no lease"),
        pytest.param({"leaseTimestamp": "1"}, "required", id="no task"),
        pytest.param({"id": "one", "leaseTimestamp": "soon"}, "invalid", id="a lease that is none"),
        pytest.param({"id": "one", "leaseTimestamp": "1", "queueName": "other"}, "invalid", id="another queue"),
        pytest.param({"id": "two", "leaseTimestamp": "1"}, "notFound", id="a task that is not there"),
        pytest.param({"id": "no such/name", "leaseTimestamp": "1"}, "notFound", id="a name that no task has"),
    ],
)
def test_an_update_that_can_not_be(client: Any, body: dict[str, str], reason: str) -> None:
    insert(client, id="one")
    with refused(404 if reason == "notFound" else 400, reason):
        client.tasks().update(**HERE, task="one", newLeaseSeconds=60, body=body).execute()


@pytest.mark.parametrize(
    ("body", "seconds", "reason"),
    [
        pytest.param({}, 1, "required", id="no queue"),
        pytest.param({"queueName": "other"}, 1, "invalid", id="another queue"),
        pytest.param({"queueName": QUEUE, "id": "two"}, 1, "invalid", id="another task"),
        pytest.param({"queueName": QUEUE}, -1, "invalidParameter", id="a length below none"),
        pytest.param({"queueName": QUEUE}, 604_801, "invalidParameter", id="too long"),
    ],
)
def test_a_patch_that_can_not_be(client: Any, body: dict[str, str], seconds: int, reason: str) -> None:
    insert(client, id="one")
    lease(client)
    with refused(400, reason):
        client.tasks().patch(**HERE, task="one", newLeaseSeconds=seconds, body=body).execute()


def test_a_renewal_beyond_the_queues_own_bound(server: RunningServer, client: Any) -> None:
    put(server, QueueSpec(QUEUE, max_lease_seconds=100.0))
    insert(client, id="one")
    (leased,) = lease(client, seconds=50)
    with refused(400, "invalid", "max_lease"):
        client.tasks().update(**HERE, task="one", newLeaseSeconds=101, body=leased).execute()


# -- who may ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[RunningServer]:
    tokens = tuple(AccessToken(Role.WORKER, secret, email) for email, secret in SECRETS.items())
    with a_server(options=ServeOptions(tokens=(*tokens, AccessToken(Role.ADMIN, ADMIN)))) as running:
        spec = QueueSpec(QUEUE, user_emails=("user@x.org",), writer_emails=("writer@x.org",))
        put(running, spec)
        yield running


@pytest.mark.parametrize(
    ("email", "may_use", "may_insert"),
    [("user@x.org", True, False), ("writer@x.org", False, True), ("else@x.org", False, False), (None, False, False)],
)
def test_an_acl_says_who_may_what(guarded: RunningServer, email: str | None, may_use: bool, may_insert: bool) -> None:
    with a_client(guarded, token=ADMIN) as admin:
        insert(admin, id="one")
        insert(admin, id="two")
        (leased,) = lease(admin)
    with a_client(guarded, token=SECRETS[email]) as client:
        using = [
            client.tasks().list(**HERE),
            client.tasks().get(**HERE, task="one"),
            client.tasks().lease(**HERE, numTasks=1, leaseSecs=1),
            client.tasks().update(**HERE, task="one", newLeaseSeconds=60, body=leased),
            client.tasks().patch(**HERE, task="one", newLeaseSeconds=60, body={"queueName": QUEUE}),
            client.tasks().delete(**HERE, task="one"),
        ]
        calls = [(call, may_use) for call in using]
        calls.append((client.tasks().insert(**HERE, body={"payloadBase64": ""}), may_insert))
        calls.append((client.taskqueues().get(**HERE, getStats=True), may_use or may_insert))
        for call, allowed in calls:
            if allowed:
                call.execute()
            else:
                with refused(403, "forbidden", QUEUE):
                    call.execute()


def test_credentials_are_sent_with_each_call_of_a_batch(guarded: RunningServer) -> None:
    told: list[int] = []

    def note(_call: str, _answer: object, error: HttpError | None) -> None:
        told.append(200 if error is None else error.status_code)

    with a_client(guarded, token=SECRETS["writer@x.org"]) as client:
        batch = client.new_batch_http_request(callback=note)
        batch.add(client.tasks().insert(**HERE, body={"payloadBase64": ""}))
        batch.add(client.tasks().list(**HERE))
        batch.execute()
    assert told == [200, 403]


def test_the_document_is_there_for_everybody_and_nothing_else_is(guarded: RunningServer) -> None:
    with a_client(guarded) as client, refused(401, "authError"):
        client.tasks().list(**HERE).execute()


def test_a_token_that_the_server_does_not_know_is_one_to_refresh_for_the_client(guarded: RunningServer) -> None:
    with a_client(guarded, token="?" * 16) as client, pytest.raises(RefreshError):
        client.tasks().list(**HERE).execute()
