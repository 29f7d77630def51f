"""Google's own client, built from our discovery document, against a real server: every method, and our page of it."""

from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.google.taskqueue_client import HERE, a_client, insert, lease, names, put, refused
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores.stores import STORES, opened


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with opened("sqlite", tmp_path) as store, a_server(store) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Any]:
    with a_client(server) as made:
        yield made


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

    assert client.tasks().delete(**HERE, task="one").execute() == b""
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
    assert told == {"there": {"id": "one"}, "not there": 404, "wrong": 400, "gone": b""}
