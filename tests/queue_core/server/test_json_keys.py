"""A body in which an object has a key twice is refused with the key's name, and costs others nothing."""

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.server.base.problems import Problem
from queue_core.server.fast_path import check_every_key, check_keys
from tests.support.servers import QUEUE, RunningServer, a_server

HERE = f"/v1/queues/{QUEUE}"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


TWICE = [
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"text":"a"}],"tasks":[]}', "tasks", id="add"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"text":"a","text":"b"}]}', "text", id="a task's payload"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"tag":"a","t\\u0061g":"b"}]}', "tag", id="one of them escaped"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"tag":"a", "tag" : "a"}]}', "tag", id="the same value"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"text":"{\\"a\\":1}","text":""}]}', "text", id="colons in texts"),
    pytest.param("POST", f"{HERE}/lease", '{"count":1,"count":2}', "count", id="lease"),
    pytest.param("POST", f"{HERE}/lease", '{"worker":"h:1","count":1,"count":2}', "count", id="a worker with a colon"),
    pytest.param("POST", f"{HERE}/lease", '{"worker":"h\\u003a1","count":1,"count":2}', "count", id="an escaped colon"),
    pytest.param("POST", f"{HERE}/lease", '{"worker":"::","worker":""}', "worker", id="colons in what is lost"),
    pytest.param("POST", f"{HERE}/exchange", '{"count":1,"count":2}', "count", id="exchange"),
    pytest.param("POST", f"{HERE}/exchange", '{"deletions":[{"token":"1.1","token":"1.2"}]}', "token", id="a deletion"),
    pytest.param(
        "POST",
        f"{HERE}/exchange",
        '{"deletions":[{"token":"1.1","then":[{"text":"a","text":"b"}]}]}',
        "text",
        id="what follows a deletion",
    ),
    pytest.param("POST", f"{HERE}/renew", '{"tokens":["1.1"],"tokens":["1.2"]}', "tokens", id="renew"),
    pytest.param("POST", f"{HERE}/delete", '{"tokens":["1.1"],"tokens":["1.2"]}', "tokens", id="delete"),
    pytest.param("POST", f"{HERE}/release", '{"tokens":["1.1"],"tokens":["1.2"]}', "tokens", id="release"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"headers":{"a":"1","a":"2"}}]}', "a", id="a header"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"headers":{"a":"b:c","a":""}}]}', "a", id="a header with a colon"),
    pytest.param("POST", f"{HERE}/add", '{"tasks":[{"headers":{},"headers":{"a":"1"}}]}', "headers", id="headers"),
    pytest.param(
        "POST", f"{HERE}/renew", '{"renewals":[{"token":"1.1","token":"1.2"}]}', "token", id="a lease with a report"
    ),
    pytest.param(
        "POST",
        f"{HERE}/renew",
        '{"renewals":[{"token":"1.1","progress":{"fraction":0,"fraction":1}}]}',
        "fraction",
        id="progress",
    ),
    pytest.param(
        "POST", f"{HERE}/release", '{"tokens":[],"error":{"place":"a:1","place":"b:1"}}', "place", id="an error"
    ),
    pytest.param("POST", "/v1/workers/w/release", '{"failure":{"host":"a","host":"b"}}', "host", id="a death"),
    pytest.param("POST", f"{HERE}/history", '{"limit":1,"limit":2}', "limit", id="history"),
    pytest.param("POST", f"{HERE}/purge", '{"dead":"keep","dead":"only"}', "dead", id="purge"),
    pytest.param("PUT", HERE, '{"max_leases":1,"max_leases":2}', "max_leases", id="settings"),
    pytest.param("POST", "/v1/lead", '{"name":"a","holder":"b","seconds":1,"holder":"c"}', "holder", id="lead"),
    pytest.param("POST", "/v1/wait", '{"queues":[{"queue":"work","queue":"b"}]}', "queue", id="wait"),
]


@pytest.mark.parametrize(("method", "path", "body", "key"), TWICE)
def test_a_key_that_is_there_twice_is_named(server: RunningServer, method: str, path: str, body: str, key: str) -> None:
    told = server.ask(method, path, body.encode())
    assert (told.status, told.json()["type"]) == (400, "urn:towline:problem:duplicate-key")
    assert f'"{key}"' in str(told.json()["detail"])


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("add", '{"tasks":[{"text":"{\\"a\\":1,\\"a\\":2}"},{"text":"a:b"}]}'),
        ("lease", '{"worker":"host:1","tags":["a:b"]}'),
        ("exchange", '{"worker":"host:1","deletions":[]}'),
    ],
)
def test_colons_in_texts_are_no_keys(server: RunningServer, verb: str, body: str) -> None:
    assert server.ask("POST", f"{HERE}/{verb}", body.encode()).status == 200


def test_numbers_of_any_length_are_passed_over() -> None:
    check_every_key(b'{"a":%b,"b":[1e999,-0.5]}' % (b"9" * 10_000))


NAMES = st.sampled_from(["a", "b", ":", '"', "\\", "\u00e9"])
VALUES = st.recursive(
    st.one_of(st.integers(), st.sampled_from(["", "a:b", '":', "\\:"]), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(st.tuples(NAMES, inner), max_size=4).map(tuple)),
    max_leaves=8,
)


def _text(value: object, *, is_ascii: bool) -> str:
    """JSON in which an object, given as a tuple of pairs, keeps every pair."""
    if isinstance(value, tuple):
        pairs = (json.dumps(key, ensure_ascii=is_ascii) + ": " + _text(one, is_ascii=is_ascii) for key, one in value)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(one, is_ascii=is_ascii) for one in value) + "]"
    return json.dumps(value, ensure_ascii=is_ascii)


def _keys(value: object) -> int:
    """As a parser counts them that keeps the last of equal ones."""
    if isinstance(value, tuple):
        kept = dict(value)
        return len(kept) + sum(map(_keys, kept.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def _has_twice(value: object) -> bool:
    if isinstance(value, tuple):
        return len(dict(value)) < len(value) or any(_has_twice(one) for _, one in value)
    return isinstance(value, list) and any(map(_has_twice, value))


@given(VALUES, st.booleans())
def test_counting_finds_what_looking_finds(value: object, is_ascii: bool) -> None:
    body = _text(value, is_ascii=is_ascii).encode()
    for check in (lambda: check_keys(body, _keys(value)), lambda: check_every_key(body)):
        if _has_twice(value):
            with pytest.raises(Problem):
                check()
        else:
            check()


def test_the_name_of_a_key_twice_among_very_many_is_found_in_one_pass() -> None:
    def cpu_seconds(count: int) -> float:
        members = ",".join(f'"a{number}":1' for number in range(count))
        body = f'{{{members},"a{count - 1}":1}}'.encode()
        begin = time.process_time()
        with pytest.raises(Problem, match=f"a{count - 1}"):
            check_every_key(body)
        return time.process_time() - begin

    assert min(cpu_seconds(12_000) for _ in range(3)) < 24 * min(cpu_seconds(1_000) for _ in range(3))
