"""How a call of the Task Queue REST API is read: its parameters, its selection of fields, its path and method."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.google.taskqueue.call import FORM, Parameters, TaskqueueRequest, method_of, parameters_of, parse_path
from queue_core.google.taskqueue.responses import TaskqueueError
from queue_core.google.taskqueue.selection import EVERYTHING, parse_selection, select
from queue_core.google.taskqueue.task_json import QUEUE_SHAPE, TASK_SHAPE, TASKS_SHAPE

# -- parameters -------------------------------------------------------------------------------------------------------


def test_the_query_comes_before_the_form() -> None:
    parameters = parameters_of(b"numTasks=1&tag=", b"numTasks=2&leaseSecs=3", FORM + "; charset=UTF-8")
    assert parameters.integer("numTasks", least=0, most=9) == 1
    assert parameters.integer("leaseSecs", least=0, most=9) == 3
    assert parameters.text("tag") == ""
    assert parameters.text("other") is None


def test_a_body_that_is_no_form_has_no_parameters() -> None:
    assert parameters_of(b"", b"numTasks=2", "application/json").pairs == []
    assert parameters_of(b"", b"", "").pairs == []


@pytest.mark.parametrize("query", [b"\xff", b"a=%ff", b"&".join([b"a=1"] * 101)])
def test_parameters_that_can_not_be_read_are_refused(query: bytes) -> None:
    with pytest.raises(TaskqueueError) as raised:
        parameters_of(query, b"", "")
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(None, "required", id="not given"),
        pytest.param("", "invalidParameter", id="empty"),
        pytest.param("1.5", "invalidParameter", id="a fraction"),
        pytest.param("ten", "invalidParameter", id="a word"),
        pytest.param("٣", "invalidParameter", id="a digit of another script"),
        pytest.param("-1", "invalidParameter", id="below the range"),
        pytest.param("11", "invalidParameter", id="above the range"),
        pytest.param("9" * 5000, "invalidParameter", id="beyond reason"),
    ],
)
def test_a_number_that_is_none_is_named(text: str | None, reason: str) -> None:
    parameters = Parameters([] if text is None else [("numTasks", text)])
    with pytest.raises(TaskqueueError) as raised:
        parameters.integer("numTasks", least=0, most=10)
    assert (raised.value.reason, raised.value.location) == (reason, "numTasks")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("1", True), ("false", False), ("FALSE", False), ("0", False)]
)
def test_truth_values(text: str, value: bool) -> None:
    assert Parameters([("groupByTag", text)]).flag("groupByTag") is value
    assert Parameters([]).flag("groupByTag") is False


@pytest.mark.parametrize("text", ["", "yes", "2"])
def test_a_truth_value_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TaskqueueError):
        Parameters([("groupByTag", text)]).flag("groupByTag")


# -- selections -------------------------------------------------------------------------------------------------------

ANSWER = {"kind": "k", "items": [{"id": "1", "tag": "a"}, {"id": "2"}]}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(None, ANSWER, id="no selection"),
        pytest.param("", ANSWER, id="an empty one"),
        pytest.param("*", ANSWER, id="all"),
        pytest.param("kind", {"kind": "k"}, id="one name"),
        pytest.param("kind,items", ANSWER, id="two names"),
        pytest.param("items(id)", {"items": [{"id": "1"}, {"id": "2"}]}, id="in brackets"),
        pytest.param("items/id", {"items": [{"id": "1"}, {"id": "2"}]}, id="after a slash"),
        pytest.param("items(id,tag),kind", ANSWER, id="several in brackets"),
        pytest.param("items/id,items/tag,kind", ANSWER, id="joined"),
        pytest.param("items/id,items", {"items": ANSWER["items"]}, id="all of it wins"),
        pytest.param("items/*", {"items": ANSWER["items"]}, id="all below"),
        pytest.param("items(tag)", {"items": [{"tag": "a"}, {}]}, id="what not every item has"),
        pytest.param("items(payloadBase64)", {"items": [{}, {}]}, id="what none of them has"),
    ],
)
def test_a_selection_leaves_what_it_names(text: str | None, left: object) -> None:
    assert select(ANSWER, parse_selection(text, TASKS_SHAPE)) == left


@pytest.mark.parametrize(
    "text", ["other", "items(", "items(id", "items)", "items(id))", "kind/id", "items//id", ",", "kind,", "*x", "a b",
             "items()", "kind(*)", "items(id)tag", "(" * 1900, "x" * 2001, "items/items/id", "*/id"],
)  # fmt: skip
def test_a_selection_out_of_form_or_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(TaskqueueError) as raised:
        parse_selection(text, TASKS_SHAPE)
    assert (raised.value.status, raised.value.location) == (400, "fields")


@given(st.text(alphabet="kinditems(),/*abc \n", max_size=40))
def test_any_text_is_a_selection_or_refused(text: str) -> None:
    for shape in (TASK_SHAPE, TASKS_SHAPE, QUEUE_SHAPE):
        try:
            select(ANSWER, parse_selection(text, shape))
        except TaskqueueError as error:
            assert error.status == 400


def test_no_selection_is_everything() -> None:
    assert parse_selection(None, TASK_SHAPE) == EVERYTHING


# -- paths and methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param("app/taskqueues/q", ("app", "q", "", ("queue",)), id="a queue"),
        pytest.param("s~app/taskqueues/q", ("app", "q", "", ("queue",)), id="with a partition"),
        pytest.param("e~x.org:app/taskqueues/q", ("x.org:app", "q", "", ("queue",)), id="of a domain"),
        pytest.param("app/taskqueues/q/tasks", ("app", "q", "", ("tasks",)), id="its tasks"),
        pytest.param("app/taskqueues/q/tasks/t", ("app", "q", "t", ("task",)), id="a task"),
        pytest.param("app/taskqueues/q/tasks/lease", ("app", "q", "lease", ("lease", "task")), id="lease"),
        pytest.param("app/taskqueues", None, id="no queue"),
        pytest.param("app/taskqueues/", None, id="an empty queue"),
        pytest.param("app/taskqueues/q/", None, id="a slash at the end"),
        pytest.param("app/taskqueues/q/tasks/", None, id="an empty task"),
        pytest.param("app/taskqueues/q/tasks/t/u", None, id="too deep"),
        pytest.param("app/taskqueues/q/other", None, id="something else"),
        pytest.param("/taskqueues/q", None, id="no project"),
    ],
)
def test_a_path_leads_somewhere_or_nowhere(path: str, found: tuple[object, ...] | None) -> None:
    resource = parse_path("/taskqueue/v1beta2/projects/" + path)
    assert (resource and (resource.project, resource.queue, resource.task, resource.kinds)) == found


@pytest.mark.parametrize(
    ("method", "override", "meant"),
    [
        ("GET", b"", "GET"),
        ("HEAD", b"", "GET"),
        ("POST", b"", "POST"),
        ("POST", b"PATCH", "PATCH"),
        ("POST", b"get", "GET"),
        ("POST", b"CONNECT", "POST"),
        ("GET", b"DELETE", "GET"),
    ],
)
def test_a_post_may_mean_another_method(method: str, override: bytes, meant: str) -> None:
    headers = [(b"x-http-method-override", override)] if override else []
    assert method_of(TaskqueueRequest(method, "/", b"", headers, b"")) == meant
