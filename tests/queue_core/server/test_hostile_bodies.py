"""A body of wrong values is refused by its first mistake, and one of more values than any call has by their number."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from queue_core.server.base import problems
from queue_core.server.base.bodies.value_count import MAX_VALUES, check_values
from queue_core.server.base.problems import Problem
from queue_core.server.fast_path import LONG_BODY_BYTES, MAX_PLAIN_BODY_BYTES
from queue_core.task import NewTask
from tests.support.servers import QUEUE, RunningServer, a_server

MIB = 1 << 20
PLAIN = ["lease", "release", "delete-by-name", "purge", "redrive", "peek", "search", "history", "observe"]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


@pytest.mark.parametrize(
    ("verb", "body", "pointer"),
    [
        ("peek", b'{"names":[' + b"1," * 20_000 + b"1]}", "/names/0"),
        ("peek", b'{"states":[' + b'"lost",' * 5_000 + b'"lost"]}', "/states/0"),
        ("add", b'{"tasks":[' + b"{}," * 60 + b'{"b":1},{"c":1}]}', "/tasks/60/b"),
        ("delete", b'{"tokens":[' + b"1," * 20_000 + b"1]}", "/tokens/0"),
        ("exchange", b'{"deletions":[' + b"[]," * 20_000 + b"[]]}", "/deletions/0"),
        ("renew", b'{"renewals":[' + b"{}," * 20_000 + b"{}]}", "/renewals/0/token"),
    ],
)
def test_of_a_list_the_first_mistake_is_named(server: RunningServer, verb: str, body: bytes, pointer: str) -> None:
    told = server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body).json()
    assert [one["pointer"] for one in told["errors"]] == [pointer]  # type: ignore[attr-defined]


def test_very_many_unknown_members_are_counted_and_not_named(server: RunningServer) -> None:
    count = problems.MAX_BUILT_ERRORS + 1
    body = b"{" + b",".join(b'"x%d":1' % number for number in range(count)) + b"}"
    told = server.ask("POST", f"/v1/queues/{QUEUE}/peek", body).json()
    assert (told["status"], told["detail"]) == (422, f"{count} members of the body are unknown or wrong")


@pytest.mark.parametrize("verb", ["add", "exchange", "delete", "renew"])
@pytest.mark.parametrize(
    "value",
    [b"1", b"{}", b"[]", b'""', b'{"a":1}', b"\\", b'"\\""', b'"\\\\"'],
    ids=["numbers", "objects", "lists", "texts", "members", "no JSON", "quotes", "backslashes"],
)
def test_more_values_than_any_call_has_are_refused_unparsed(server: RunningServer, verb: str, value: bytes) -> None:
    body = b'{"tasks":[' + (value + b",") * (MAX_VALUES + 1) + value + b"]}"
    told = server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", body).json()
    assert (told["status"], told["type"]) == (422, "urn:towline:problem:too-many-values")


@pytest.mark.parametrize("text", ["a,", 'a,"', "a,\\", 'a,\\"', "é,\n"])
def test_commas_in_a_text_are_no_values(server: RunningServer, text: str) -> None:
    whole = text * (MAX_VALUES + 1)
    with closing(server.queue()) as queue:
        added = queue.add([NewTask(whole.encode())])[0]
        assert queue.peek(names=[added.name], payload_bytes=MIB).tasks[0].payload == whole.encode()
        queue.delete_by_name([added.name])


def test_a_body_that_ends_in_a_text_is_counted_to_its_end() -> None:
    check_values(b'{"a":"' + b"," * (MAX_VALUES + 1))
    check_values(b'{"a":"' + b",\\" * (MAX_VALUES + 1))
    with pytest.raises(Problem, match="too-many-values"):
        check_values(b'{"a":"\\' + b"," * 10 + b'"' + b"," * (MAX_VALUES + 1))


@pytest.mark.parametrize("verb", PLAIN)
def test_a_verb_without_payloads_takes_a_body_of_a_mebibyte(server: RunningServer, verb: str) -> None:
    blank = b" " * (MAX_PLAIN_BODY_BYTES - 2)
    assert server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", b"{" + blank + b"}").status in (200, 422)
    told = server.ask("POST", f"/v1/queues/{QUEUE}/{verb}", b"{ " + blank + b"}").json()
    assert (told["status"], told["type"]) == (413, "urn:towline:problem:body-too-large")


def test_a_long_body_takes_effect_and_its_mistake_is_told(server: RunningServer) -> None:
    path = f"/v1/queues/{QUEUE}"
    payload = b"x" * (LONG_BODY_BYTES // 2 + 1)
    with closing(server.queue()) as queue:
        names = [one.name for one in queue.add([NewTask(payload), NewTask(payload)])]
        body = b'{"count":2,"deletions":[{"token":"1.1","then":[{"text":"%b"},{"text":"%b"}]}]}' % (payload, payload)
        done = server.ask("POST", f"{path}/exchange", body).json()
        assert done["lost"] == ["1.1"]
        assert [one["name"] for one in done["leases"]] == names  # type: ignore[attr-defined]
        told = server.ask("POST", f"{path}/add", b'{"tasks":[{"text":"%b"},{"text":"%b","b":1}]}' % (payload, payload))
        assert (told.status, told.json()["errors"][0]["pointer"]) == (422, "/tasks/1/b")  # type: ignore[index]
