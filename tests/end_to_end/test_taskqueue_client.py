"""Google's own client, built from our discovery document, against a real server: every method, and its errors."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any  # the client's classes are made at run time, and have no types

import pytest
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from queue_core.server.options import AccessToken, Role, ServeOptions
from queue_core.service import QueueService
from queue_core.task import QueueSpec
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores import STORES, opened

HERE = {"project": "s~app", "taskqueue": QUEUE}
SECRETS = {"user@x.org": "u" * 16, "writer@x.org": "w" * 16, "else@x.org": "e" * 16, None: "n" * 16}
ADMIN = "a" * 16


@contextmanager
def a_client(server: RunningServer, *, token: str | None = None) -> Iterator[Any]:
    """The stock client; it takes the place of the API from the document."""
    url = server.url + "/discovery/v1/apis/{api}/{apiVersion}/rest"
    credentials = None if token is None else Credentials(token=token)
    with build(
        "taskqueue", "v1beta2", discoveryServiceUrl=url, credentials=credentials, cache_discovery=False
    ) as client:
        yield client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with opened("sqlite", tmp_path) as store, a_server(store) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    with a_client(server) as made:
        yield made


def put(server: RunningServer, spec: QueueSpec) -> None:
    QueueService(server.store).run(lambda turn: turn.put_queue(spec))


def payload(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def insert(client: Any, data: bytes = b"", **more: object) -> dict[str, Any]:
    task: dict[str, Any] = client.tasks().insert(**HERE, body={"payloadBase64": payload(data), **more}).execute()
    return task


def lease(client: Any, *, count: int = 1, seconds: int = 60, **more: object) -> list[dict[str, Any]]:
    told = client.tasks().lease(**HERE, numTasks=count, leaseSecs=seconds, **more).execute()
    assert told["kind"] == "taskqueue#tasks"
    items: list[dict[str, Any]] = told.get("items", [])
    return items


def names(tasks: list[dict[str, Any]]) -> list[str]:
    return [task["id"] for task in tasks]


@contextmanager
def refused(status: int, reason: str, about: str = "") -> Iterator[None]:
    with pytest.raises(HttpError) as raised:
        yield
    error = json.loads(raised.value.content)["error"]
    assert (raised.value.status_code, error["code"], error["errors"][0]["reason"]) == (status, status, reason)
    assert about in error["message"]
    assert raised.value.reason == error["message"]


# -- the methods ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_a_task_goes_through_all_methods_on_every_store(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as store, a_server(store) as server, a_client(server) as client:
        tasks = client.tasks()
        first = insert(client, b"first", tag="t")
        eta = int(first["enqueueTimestamp"]) + 3600 * 1_000_000
        later = insert(client, b"later", id="later", leaseTimestamp=str(eta))
        assert names(tasks.list(**HERE).execute()["items"]) == [first["id"], "later"]
        (leased,) = lease(client, count=10)
        leased = tasks.update(**HERE, task=first["id"], newLeaseSeconds=600, body=leased).execute()
        tasks.patch(**HERE, task=first["id"], newLeaseSeconds=0, body=leased).execute()
        later = tasks.update(**HERE, task="later", newLeaseSeconds=60, body=later).execute()
        assert tasks.get(**HERE, task="later").execute() == later
        assert names(lease(client, count=10, groupByTag=True)) == [first["id"]]
        stats = client.taskqueues().get(**HERE, getStats=True).execute()["stats"]
        assert stats["totalTasks"] == 2
        for task in (first["id"], "later", "later"):
            tasks.delete(**HERE, task=task).execute()
        assert tasks.list(**HERE).execute() == {"kind": "taskqueues#tasks"}
        with refused(400, "duplicate"):
            insert(client, id="later")


def test_a_task_is_inserted_leased_renewed_and_deleted(client: Any) -> None:
    inserted = insert(client, b"\xfb\xff work", id="one", tag="t")
    assert (inserted["id"], inserted["queueName"], inserted["tag"]) == ("one", QUEUE, "t")
    assert (inserted["leaseTimestamp"], inserted["retry_count"]) == ("0", 0)

    (leased,) = lease(client)
    assert leased["queueName"] == f"projects/app/taskqueues/{QUEUE}"
    assert leased["retry_count"] == 1
    assert urlsafe_b64decode(leased["payloadBase64"]) == b"\xfb\xff work"
    assert leased["enqueueTimestamp"] == inserted["enqueueTimestamp"]
    assert int(leased["leaseTimestamp"]) > int(leased["enqueueTimestamp"])
    assert lease(client) == []

    renewed = client.tasks().update(**HERE, task="one", newLeaseSeconds=600, body=leased).execute()
    assert int(renewed["leaseTimestamp"]) > int(leased["leaseTimestamp"])
    assert renewed["queueName"] == QUEUE
    assert client.tasks().get(**HERE, task="one").execute() == renewed

    assert client.tasks().delete(**HERE, task="one").execute() == ""
    with refused(404, "notFound", "one"):
        client.tasks().get(**HERE, task="one").execute()


def test_a_list_has_leased_tasks_too_and_no_payloads(client: Any) -> None:
    assert client.tasks().list(**HERE).execute() == {"kind": "taskqueues#tasks"}
    insert(client, b"1", id="one")
    insert(client, b"2", id="two")
    lease(client)
    listed = client.tasks().list(**HERE).execute()["items"]
    assert names(listed) == ["one", "two"]
    assert [task["retry_count"] for task in listed] == [1, 0]
    assert not any("payloadBase64" in task for task in listed)


def test_a_list_has_a_hundred_tasks_at_most(client: Any) -> None:
    batch = client.new_batch_http_request()
    for _ in range(101):
        batch.add(client.tasks().insert(**HERE, body={"payloadBase64": ""}))
    batch.execute()
    assert len(client.tasks().list(**HERE).execute()["items"]) == 100
    assert client.taskqueues().get(**HERE, getStats=True).execute()["stats"]["totalTasks"] == 101


def test_a_queue_tells_its_settings_and_when_asked_its_counts(server: RunningServer, client: Any) -> None:
    assert client.taskqueues().get(**HERE).execute() == {"kind": "taskqueues#taskqueue", "id": QUEUE, "maxLeases": 0}
    put(server, QueueSpec(QUEUE, max_leases=3, user_emails=("user@x.org",)))
    empty = client.taskqueues().get(**HERE, getStats=True).execute()
    assert (empty["maxLeases"], empty["acl"]) == (3, {"consumerEmails": ["user@x.org"]})
    assert empty["stats"] == {"totalTasks": 0, "oldestTask": "0", "leasedLastMinute": "0", "leasedLastHour": "0"}

    inserted = insert(client, id="one")
    insert(client, id="two")
    lease(client)
    (second,) = lease(client)
    client.tasks().delete(**HERE, task=second["id"]).execute()
    stats = client.taskqueues().get(**HERE, getStats=True).execute()["stats"]
    assert (stats["totalTasks"], stats["leasedLastMinute"], stats["leasedLastHour"]) == (1, "2", "2")
    assert int(stats["oldestTask"]) >= int(inserted["enqueueTimestamp"]) // 1_000_000


def test_patch_wants_the_queue_and_may_leave_out_the_rest(client: Any) -> None:
    insert(client, id="one")
    (leased,) = lease(client)
    patched = client.tasks().patch(**HERE, task="one", newLeaseSeconds=600, body={"queueName": QUEUE}).execute()
    assert int(patched["leaseTimestamp"]) > int(leased["leaseTimestamp"])
    again = client.tasks().patch(**HERE, task="one", newLeaseSeconds=30, body=patched).execute()
    assert int(again["leaseTimestamp"]) < int(patched["leaseTimestamp"])


def test_update_goes_by_the_body_whatever_the_path_says(client: Any) -> None:
    insert(client, id="one")
    (leased,) = lease(client)
    renewed = client.tasks().update(**HERE, task="another", newLeaseSeconds=600, body=leased).execute()
    assert renewed["id"] == "one"


def test_a_lease_of_no_length_is_over_and_one_cut_to_nothing_as_well(client: Any) -> None:
    insert(client, id="one")
    assert names(lease(client, seconds=0, count=10)) == ["one"]
    (leased,) = lease(client)
    assert leased["retry_count"] == 2
    ended = client.tasks().update(**HERE, task="one", newLeaseSeconds=0, body=leased).execute()
    assert int(ended["leaseTimestamp"]) < int(leased["leaseTimestamp"])
    (third,) = lease(client)
    assert third["retry_count"] == 3


def test_a_task_with_an_eta_waits_for_it_and_update_moves_it(client: Any) -> None:
    eta = int(insert(client)["enqueueTimestamp"]) + 3600 * 1_000_000
    lease(client)
    later = insert(client, id="later", leaseTimestamp=str(eta))
    assert later["leaseTimestamp"] == str(eta)
    assert lease(client) == []
    sooner = client.tasks().update(**HERE, task="later", newLeaseSeconds=60, body=later).execute()
    assert int(later["enqueueTimestamp"]) < int(sooner["leaseTimestamp"]) < eta
    with refused(400, "invalid", "The task lease has expired"):
        client.tasks().update(**HERE, task="later", newLeaseSeconds=60, body=later).execute()
    client.tasks().update(**HERE, task="later", newLeaseSeconds=0, body=sooner).execute()
    assert names(lease(client)) == ["later"]


def test_tasks_are_leased_in_the_order_of_their_etas_and_by_tag(client: Any) -> None:
    for name, tag in (("a1", "a"), ("b1", "b"), ("none", ""), ("a2", "a"), ("b2", "b")):
        insert(client, id=name, tag=tag)
    assert names(lease(client, count=10, groupByTag=True, tag="b")) == ["b1", "b2"]
    assert names(lease(client, count=10, groupByTag=True)) == ["a1", "a2"]
    (untagged,) = lease(client, count=10, groupByTag=True)
    assert (untagged["id"], "tag" in untagged) == ("none", False)


def test_one_answer_has_a_megabyte_at_most_and_what_did_not_fit_is_not_charged(client: Any) -> None:
    data = bytes(300_000)
    for number in range(5):
        insert(client, data, id=f"large-{number}")
    first = lease(client, count=5)
    assert names(first) == ["large-0", "large-1"]
    rest = lease(client, count=5)
    assert names(rest) == ["large-2", "large-3"]
    assert [task["retry_count"] for task in rest] == [1, 1]
    insert(client, bytes(1 << 20), id="largest")
    assert names(lease(client, count=5)) == ["large-4"]
    assert names(lease(client, count=5)) == ["largest"]


def test_many_small_tasks_fit_one_answer_and_come_once_each(client: Any) -> None:
    batch = client.new_batch_http_request()
    for number in range(120):
        batch.add(client.tasks().insert(**HERE, body={"payloadBase64": "YQ", "id": f"t{number}", "tag": "t"}))
    batch.execute()
    leased = lease(client, count=1000, groupByTag=True)
    assert sorted(names(leased)) == sorted(f"t{number}" for number in range(120))


def test_a_paused_queue_grants_nothing(server: RunningServer, client: Any) -> None:
    insert(client, id="one")
    (leased,) = lease(client)
    insert(client, id="two")
    QueueService(server.store).run(lambda turn: turn.set_paused(QUEUE, "paused"))
    assert lease(client) == []
    with refused(400, "invalid", "paused"):
        client.tasks().update(**HERE, task="one", newLeaseSeconds=60, body=leased).execute()


def test_fields_cut_an_answer_down(client: Any) -> None:
    insert(client, b"x", id="one", tag="t")
    assert client.tasks().list(**HERE, fields="items(id,tag)").execute() == {"items": [{"id": "one", "tag": "t"}]}
    assert client.tasks().get(**HERE, task="one", fields="payloadBase64").execute() == {"payloadBase64": "eA=="}
    assert client.taskqueues().get(**HERE, getStats=True, fields="stats/totalTasks").execute() == {
        "stats": {"totalTasks": 1}
    }
    told = client.tasks().lease(**HERE, numTasks=1, leaseSecs=60, fields="items/leaseTimestamp").execute()
    assert list(told["items"][0]) == ["leaseTimestamp"]


def test_a_batch_answers_every_call_by_itself(client: Any) -> None:
    insert(client, b"x", id="one")
    told: dict[str, object] = {}

    def note(call: str, answer: object, error: HttpError | None) -> None:
        told[call] = answer if error is None else error.status_code

    batch = client.new_batch_http_request(callback=note)
    batch.add(client.tasks().get(**HERE, task="one", fields="id"), request_id="there")
    batch.add(client.tasks().get(**HERE, task="two"), request_id="not there")
    batch.add(client.tasks().insert(**HERE, body={"payloadBase64": "ä"}), request_id="wrong")
    batch.add(client.tasks().delete(**HERE, task="three"), request_id="gone")
    batch.execute()
    assert told == {"there": {"id": "one"}, "not there": 404, "wrong": 400, "gone": ""}


# -- errors -----------------------------------------------------------------------------------------------------------


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
