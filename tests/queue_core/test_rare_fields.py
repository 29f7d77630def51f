"""The rare fields of a task: their table, and the text by which stores keep them."""

import pytest

from queue_core.errors import InvalidRequestError
from queue_core.rare_fields import (
    FIELDS,
    check_rare_fields,
    has_rare_fields,
    rare_json,
    set_rare_json,
    shown_rare_fields,
)
from queue_core.stores.rare_text import headers_of, rare_text, set_rare_text
from queue_core.task import Lease, NewTask, StoredTask

HEADERS = {"a": 'x "=b":1 \\ ü', "b": ""}


def test_every_rare_field_is_an_attribute_of_tasks_and_leases_and_none_where_nothing_was_given() -> None:
    for kind in (NewTask, StoredTask, Lease):
        defaults = {name: field.default for name, field in kind.__dataclass_fields__.items()}
        assert {field.name: defaults[field.name] for field in FIELDS} == {field.name: None for field in FIELDS}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_task_with_any_one_field_has_rare_fields(field: object) -> None:
    assert has_rare_fields(NewTask(**{field.name: {"a": "b"}}))  # type: ignore[attr-defined]
    assert not has_rare_fields(NewTask())


def test_headers_alone_are_kept_as_a_json_object() -> None:
    assert rare_text(NewTask(headers={"a": "ü", "b": ""})) == '{"a":"ü","b":""}'
    assert [rare_text(task) for task in (NewTask(), NewTask(headers={}))] == [None, None]


def test_what_was_kept_comes_back() -> None:
    text = rare_text(NewTask(headers=HEADERS))
    assert text is not None
    assert set_rare_text(NewTask(), text) == NewTask(headers=HEADERS)
    assert headers_of(text) == HEADERS


def test_a_field_of_a_later_version_is_no_header() -> None:
    assert set_rare_text(NewTask(), '{"=later":[1],"a":"b"}').headers == {"a": "b"}
    assert set_rare_text(NewTask(), '{"=later":{"x":1}}') == NewTask()
    assert headers_of('{"=later":[1],"a":"b"}') == {"a": "b"}


def test_rare_fields_go_as_json_by_name() -> None:
    assert rare_json(NewTask(headers=HEADERS)) == {"headers": HEADERS}
    assert rare_json(NewTask()) == {}
    assert set_rare_json(NewTask(), {"payload": "", "headers": HEADERS}) == NewTask(headers=HEADERS)
    assert set_rare_json(NewTask(), {"headers": {}}) == NewTask()


def test_people_read_headers_as_pairs() -> None:
    assert shown_rare_fields(NewTask(headers={"a": "1", "b": "2"})) == {"headers": "a=1, b=2"}
    assert shown_rare_fields(NewTask(headers={})) == {}


def test_a_value_that_no_task_may_have_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="a header's name must be"):
        check_rare_fields(NewTask(headers={"=a": "b"}))
