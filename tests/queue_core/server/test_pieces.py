"""A long body of tasks is read in pieces, as if it were read whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.server import fast_path
from queue_core.server.base.bodies import pieces
from queue_core.server.base.bodies.pieces import has_short_parts, pieces_of
from queue_core.server.base.problems import Problem
from queue_core.server.fast_path import read_tasks

TASK = {"text": 'a,]"}\\' * 300, "headers": {"a": "[{,"}, "name": None}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 4_000)
    monkeypatch.setattr(fast_path, "LONG_BODY_BYTES", 8_000)


def test_pieces_have_the_same_tasks_in_order() -> None:
    tasks = [{**TASK, "tag": f"t{number}"} for number in range(20)]
    for indent in (None, 2):
        found = pieces_of(json.dumps({"tasks": tasks}, indent=indent).encode())
        assert len(found) > 5
        assert [task for piece in found for task in json.loads(piece)["tasks"]] == tasks


@given(st.lists(st.dictionaries(st.text(), st.text() | st.lists(st.text()) | st.integers(), max_size=4), max_size=200))
def test_any_list_of_tasks_is_the_same_in_pieces(tasks: list[dict[str, object]]) -> None:
    found = pieces_of(json.dumps({"tasks": tasks}).encode())
    assert [task for piece in found for task in json.loads(piece)["tasks"]] == tasks


LONG = json.dumps([TASK] * 20)[1:-1].encode()


@pytest.mark.parametrize(
    "body",
    [
        b'{"tasks":[%b,]}' % LONG,
        b'{"tasks":[%b' % LONG,
        b'{"tasks":[%b]' % LONG,
        b'{"tasks":[%b]}x' % LONG,
        b'{"tasks":[%b],"tasks":[]}' % LONG,
        b'{"tasks":[%b,%b,%b]}' % (LONG, b" " * 5_000, LONG),
        b'{"tasks":[%b}}' % LONG,
        b'{"tasks":%b}' % (b"[" * 100_000),
        b'{"tasks":[%b]}' % (b"{}" * 1_000_000),
        b'{"tasks":["%b' % (b"a" * 10_000),
        b'{"task":[%b]}' % LONG,
        b"[%b]" % LONG,
    ],
)
def test_what_is_no_plain_list_of_tasks_is_left_whole(body: bytes) -> None:
    assert pieces_of(body) == [body]
    with pytest.raises((Problem, ValueError)):
        read_tasks(body)


def test_a_mistake_is_told_with_its_place_in_the_whole() -> None:
    tasks = [TASK] * 15 + [{"text": "x", "colour": "red"}]
    with pytest.raises(Problem) as told:
        read_tasks(json.dumps({"tasks": tasks}).encode())
    assert told.value.members["errors"] == [{"pointer": "/tasks/15/colour", "detail": "Extra inputs are not permitted"}]


def test_broken_json_in_a_later_piece_is_told_with_the_task_before_it() -> None:
    with pytest.raises(Problem, match="the task at /tasks/"):
        read_tasks(b'{"tasks":[%b,{"a" 1}]}' % LONG)


@pytest.mark.parametrize(
    ("body", "is_short"),
    [
        (b'{"a":"123456"}', True),
        (b'{"a":"1234567"}', False),
        (b'{"a":"\\"\\"\\""}', True),
        (b'{"a":"\\"\\"\\"\\""}', False),
        (b'{"a":"' + b"1" * 9, False),
        (b'["1","2"]', True),
        (b"1" * 4_000, True),
        (b"1" * 4_001, False),
        (b'{"a":' + b" " * 4_000 + b'""}', False),
    ],
)
def test_a_value_longer_than_any_payload_is_found(body: bytes, is_short: bool) -> None:
    assert has_short_parts(body, most=6) is is_short
