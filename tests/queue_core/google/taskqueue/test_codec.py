"""The Task Queue REST API's JSON, parameters, paths and selections: values in, values out."""

import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core import errors
from queue_core.clock import NEVER, START, Instant, after
from queue_core.google.taskqueue import task_json
from queue_core.google.taskqueue.responses import TaskqueueError, error_response, is_expected
from queue_core.google.taskqueue.task_json import TaskBody, parse_task
from queue_core.server.base.problems import refusal
from queue_core.stats import QueueStats
from queue_core.task import Lease, QueueSpec, StoredTask, TaskState

SECOND = 1_000_000

# -- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param("", "", id="an empty payload"),
        pytest.param("asdf", "asdf", id="no padding needed"),
        pytest.param("asdf123", "asdf120=", id="missing padding is added, and what is left over is dropped"),
        pytest.param("YQ", "YQ==", id="two padding characters are missing"),
        pytest.param("YQ=", "YQ==", id="one is missing"),
        pytest.param("YQ==", "YQ==", id="none is missing"),
        pytest.param("asdf====", "asdf", id="more than is needed"),
        pytest.param("-_-_", "-_-_", id="the URL-safe letters"),
    ],
)
def test_a_payload_comes_back_with_its_padding(given: str, shown: str) -> None:
    assert urlsafe_b64encode(task_json.decode_payload(given)).decode() == shown


@pytest.mark.parametrize("text", ["a+bc", "a/bc", "a", "abcde", "ab=cd", "a b", "ab\n", "ä123", "=a", "ab%3D"])
def test_what_is_no_url_safe_base64_is_refused(text: str) -> None:
    with pytest.raises(TaskqueueError) as raised:
        task_json.decode_payload(text)
    assert raised.value.status == 400


@given(st.binary(max_size=100))
def test_every_payload_survives_the_way_there_and_back(payload: bytes) -> None:
    assert task_json.decode_payload(urlsafe_b64encode(payload).decode()) == payload
    assert task_json.decode_payload(urlsafe_b64encode(payload).decode().rstrip("=")) == payload


# -- tasks that arrive ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "task"),
    [
        pytest.param({}, TaskBody(), id="nothing"),
        pytest.param({"id": "n", "tag": "t"}, TaskBody("n", tag="t"), id="name and tag"),
        pytest.param({"id": "", "tag": None}, TaskBody(), id="an empty name and a null are none"),
        pytest.param({"tag": ""}, TaskBody(tag=""), id="an empty tag"),
        pytest.param({"queueName": "work"}, TaskBody(queue="work"), id="the short name of a queue"),
        pytest.param({"queueName": "projects/p/taskqueues/work"}, TaskBody(queue="work"), id="the long one"),
        pytest.param({"queueName": "projects/s~p/taskqueues/work"}, TaskBody(queue="work"), id="with a partition"),
        pytest.param({"queueName": "a/b"}, TaskBody(queue="a/b"), id="neither"),
        pytest.param({"payloadBase64": "YQ"}, TaskBody(payload=b"a"), id="a payload"),
        pytest.param({"leaseTimestamp": "17"}, TaskBody(leased_until=Instant(17)), id="an instant as text"),
        pytest.param({"leaseTimestamp": 17}, TaskBody(leased_until=Instant(17)), id="an instant as a number"),
        pytest.param({"leaseTimestamp": "0"}, TaskBody(leased_until=NEVER), id="no instant"),
        pytest.param({"kind": 5, "retry_count": 1, "enqueueTimestamp": "x", "more": []}, TaskBody(), id="not ours"),
    ],
)
def test_a_body_is_a_task(body: object, task: TaskBody) -> None:
    assert parse_task(json.dumps(body).encode()) == task


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing at all"),
        pytest.param(b"{", id="cut short"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"[" * 100_000, id="deeper than anybody needs"),
        pytest.param(b'{"id": 5}', id="a name that is a number"),
        pytest.param(b'{"tag": ["a"]}', id="a tag that is a list"),
        pytest.param(b'{"payloadBase64": {}}', id="a payload that is an object"),
        pytest.param(b'{"leaseTimestamp": "-1"}', id="before 1970"),
        pytest.param(b'{"leaseTimestamp": -1}', id="before 1970, as a number"),
        pytest.param(b'{"leaseTimestamp": 1.5}', id="a fraction"),
        pytest.param(b'{"leaseTimestamp": true}', id="a truth value"),
        pytest.param(b'{"leaseTimestamp": "1e3"}', id="another notation"),
        pytest.param(b'{"leaseTimestamp": "9999999999999999999"}', id="beyond all instants"),
        pytest.param(b'{"leaseTimestamp": "\xd9\xa1"}', id="digits of another script"),
    ],
)
def test_a_body_that_is_no_task_is_refused(body: bytes) -> None:
    with pytest.raises(TaskqueueError) as raised:
        parse_task(body)
    assert raised.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_task_or_refused(body: bytes) -> None:
    try:
        assert isinstance(parse_task(body), TaskBody)
    except TaskqueueError as error:
        assert error.status == 400


def test_a_lease_timestamp_is_the_eta_of_a_new_task() -> None:
    assert task_json.new_task(TaskBody(payload=b"", leased_until=Instant(17))).eta == 17
    assert task_json.new_task(TaskBody(payload=b"", leased_until=NEVER)).eta is None
    assert task_json.new_task(TaskBody(payload=b"", tag="")).tag is None


def test_a_new_task_needs_a_payload() -> None:
    with pytest.raises(TaskqueueError) as raised:
        task_json.new_task(TaskBody("n"))
    assert (raised.value.reason, raised.value.location) == ("required", "payloadBase64")


# -- tasks that are shown ---------------------------------------------------------------------------------------------

TASK = StoredTask(7, "work", b"\xff\xfe", START, added_at=Instant(START - SECOND), tag="t")


def test_a_task_is_shown_with_the_short_name_of_its_queue() -> None:
    assert task_json.task_json(TASK, now=START) == {
        "kind": "taskqueues#task",
        "id": "_7",
        "queueName": "work",
        "payloadBase64": "__4=",
        "enqueueTimestamp": "1699999999000000",
        "leaseTimestamp": "0",
        "retry_count": 0,
        "tag": "t",
    }


def test_a_list_tells_no_payloads_and_an_untagged_task_has_no_tag() -> None:
    shown = task_json.listed_json(StoredTask(7, "work", b"x", START, START), now=START)
    assert not {"payloadBase64", "tag"} & set(shown)


def test_a_lease_is_shown_with_the_long_name_of_its_queue() -> None:
    lease = Lease("work", "n", None, b"", "7.1", "", 2, START, after(START, 60), START, START)
    shown = task_json.lease_json(lease, project="app")
    assert shown["queueName"] == "projects/app/taskqueues/work"
    assert shown["leaseTimestamp"] == str(START + 60 * SECOND)
    assert shown["retry_count"] == 2


@pytest.mark.parametrize(
    ("state", "eta", "leased_at", "shown"),
    [
        pytest.param(TaskState.READY, START, NEVER, 0, id="never leased"),
        pytest.param(TaskState.DELAYED, START + 1, NEVER, START + 1, id="never leased, and delayed: its eta"),
        pytest.param(TaskState.DELAYED, START, NEVER, 0, id="delayed until now"),
        pytest.param(TaskState.LEASED, START + SECOND, START, START + SECOND, id="leased: the end"),
        pytest.param(TaskState.READY, START - 1, START - SECOND, START - 1, id="leased before: the end it had"),
        pytest.param(TaskState.DEAD, START - 1, START - SECOND, START - 1, id="dead: the end of its last lease"),
    ],
)
def test_the_lease_timestamp_tells_of_the_lease(state: TaskState, eta: int, leased_at: int, shown: int) -> None:
    task = StoredTask(1, "work", b"", Instant(eta), START, state=state, leased_at=Instant(leased_at))
    assert task_json.lease_timestamp(task, now=START) == shown


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        pytest.param(QueueSpec("work"), {"maxLeases": 0}, id="no bound, nobody named"),
        pytest.param(QueueSpec("work", max_leases=3), {"maxLeases": 3}, id="a bound"),
        pytest.param(
            QueueSpec("work", user_emails=("u@x",)), {"maxLeases": 0, "acl": {"consumerEmails": ["u@x"]}}, id="users"
        ),
        pytest.param(
            QueueSpec("work", user_emails=("u@x",), writer_emails=("w@x",)),
            {"maxLeases": 0, "acl": {"consumerEmails": ["u@x"], "producerEmails": ["w@x"]}},
            id="users and writers",
        ),
    ],
)
def test_a_queue_is_shown_with_its_people(spec: QueueSpec, shown: dict[str, object]) -> None:
    assert task_json.queue_json(spec) == {"kind": "taskqueues#taskqueue", "id": "work", **shown}


def test_counts_are_text_where_the_original_has_int64() -> None:
    stats = QueueStats("work", ready=1, delayed=2, in_flight=3, dead=4)
    assert task_json.stats_json(stats, oldest=START, last_minute=5, last_hour=6) == {
        "totalTasks": 6,
        "oldestTask": "1700000000",
        "leasedLastMinute": "5",
        "leasedLastHour": "6",
    }
    assert task_json.stats_json(stats, oldest=None, last_minute=0, last_hour=0)["oldestTask"] == "0"


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        pytest.param(errors.InvalidEtaError("m"), 400, "invalid", id="a value out of range"),
        pytest.param(errors.TaskTooLargeError("m"), 400, "invalid", id="a task too large"),
        pytest.param(errors.UnknownQueueError("m"), 404, "notFound", id="no such queue"),
        pytest.param(errors.QueueMovedError("m"), 404, "notFound", id="a queue that moved"),
        pytest.param(errors.UnauthenticatedError("m"), 401, "authError", id="no token"),
        pytest.param(errors.PermissionDeniedError("m"), 403, "forbidden", id="not allowed"),
        pytest.param(errors.StoreUnavailableError("m"), 503, "backendError", id="the store is away"),
        pytest.param(errors.StoreFullError("m"), 503, "backendError", id="the disk is full"),
        pytest.param(errors.OutcomeUnknownError("m"), 503, "backendError", id="nobody knows"),
        pytest.param(errors.StoreCorruptError("m"), 500, "internalError", id="a damaged store"),
        pytest.param(refusal(421, "foreign-host", "m"), 421, "invalid", id="a foreign host"),
        pytest.param(refusal(403, "foreign-origin", "m"), 403, "forbidden", id="a foreign page"),
        pytest.param(TaskqueueError(405, "httpMethodNotAllowed", "m"), 405, "httpMethodNotAllowed", id="our own"),
    ],
)
def test_every_error_has_googles_shape(error: Exception, status: int, reason: str) -> None:
    told = error_response(error)
    assert is_expected(error)
    assert told.status == status
    assert json.loads(told.body) == {
        "error": {
            "code": status,
            "message": "m",
            "errors": [{"domain": "global", "reason": reason, "message": "m"}],
        }
    }


def test_an_error_of_a_parameter_says_which() -> None:
    told = json.loads(error_response(TaskqueueError(400, "required", "m", "leaseSecs")).body)
    assert told["error"]["errors"][0]["locationType"] == "parameter"
    assert told["error"]["errors"][0]["location"] == "leaseSecs"


def test_a_mistake_of_ours_tells_no_detail() -> None:
    told = error_response(ValueError("secret"))
    assert not is_expected(ValueError("secret"))
    assert told.status == 500
    assert b"secret" not in told.body


def test_waiting_and_signing_in_are_told_in_headers() -> None:
    assert dict(error_response(errors.StoreUnavailableError("m")).headers) == {"retry-after": "1"}
    assert "www-authenticate" in dict(error_response(errors.UnauthenticatedError("m")).headers)
