"""Cloud Tasks' names, filters, masks and errors: by table, and any input at all."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.errors import QueueError
from queue_core.google.cloudtasks.failures import MAX_MESSAGE_CHARACTERS, CloudTasksError, RpcStatus, failure_of
from queue_core.google.cloudtasks.filters import QueueFilter, lease_filter
from queue_core.google.cloudtasks.masks import check_mask, masked, parse_fields, partial
from queue_core.google.cloudtasks.names import parse_place, parse_project, parse_queue, parse_task
from queue_core.google.cloudtasks.queues import queue_values
from queue_core.task import ANY, QueueSpec, TagFilter

# -- names ------------------------------------------------------------------------------------------------------------

PLACE = "projects/example.com:shop/locations/europe-west1"


def test_names_are_taken_apart_and_put_together_again() -> None:
    name = f"{PLACE}/queues/q-1/tasks/T_1-a"
    parsed = parse_task(name, field="name")
    assert (str(parsed), parsed.parent.queue, parsed.task) == (name, "q-1", "T_1-a")
    assert parse_place(PLACE, field="parent") == PLACE
    assert parse_project("projects/p", field="name") == "projects/p"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "q",
        f"{PLACE}/queues/",
        f"{PLACE}/queues/a_b",
        f"{PLACE}/queues/{'q' * 101}",
        f"{PLACE}/queues/q\n",
        f"{PLACE}/queues/q/tasks",
        "projects//locations/l/queues/q",
        f"/{PLACE}/queues/q",
    ],
)
def test_a_malformed_name_is_refused_with_its_form(name: str) -> None:
    with pytest.raises(
        CloudTasksError, match="parent must be projects/PROJECT_ID/locations/LOCATION_ID/queues/QUEUE_ID"
    ):
        parse_queue(name, field="parent")


# -- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("", ANY),
        ("  ", ANY),
        ("tag=a", TagFilter.of("a")),
        ('tag="a"', TagFilter.of("a")),
        ("tag = a b ", TagFilter.of("a b")),
        ('tag=" a "', TagFilter.of(" a ")),
        (r'tag="say \"hi\" \\"', TagFilter.of('say "hi" \\')),
        ("tag=a=b", TagFilter.of("a=b")),
        ('tag=5"', TagFilter.of('5"')),
        ("tag=tag_function=oldest_tag()", TagFilter.of("tag_function=oldest_tag()")),
        ("tag_function=oldest_tag()", TagFilter.oldest()),
        (" tag_function = oldest_tag() ", TagFilter.oldest()),
    ],
)
def test_a_filter_of_leases_is_read(text: str, tags: TagFilter) -> None:
    assert lease_filter(text) == tags


@pytest.mark.parametrize("text", ["tag=", 'tag=""', 'tag="a', "tag_function=newest_tag()", "a", "tag!=a", "Tag=a"])
def test_a_filter_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CloudTasksError):
        lease_filter(text)


@given(st.text(max_size=40))
def test_any_filter_is_read_or_refused(text: str) -> None:
    for read in (lease_filter, QueueFilter):
        try:
            read(text)
        except QueueError:
            continue


@given(st.text(alphabet=string.printable, min_size=1, max_size=20))
def test_any_tag_can_be_asked_for_in_quotes(tag: str) -> None:
    quoted = tag.replace("\\", r"\\").replace('"', r"\"")
    assert lease_filter(f'tag="{quoted}"') == TagFilter.of(tag)


QUEUE = queue_values(QueueSpec("thumbs", max_leases=5), parse_queue(f"{PLACE}/queues/thumbs", field="name"))


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", True),
        ("state: RUNNING", True),
        ("state=PAUSED", False),
        ("NOT state=PAUSED", True),
        ("-state=PAUSED", True),
        ("state!=PAUSED name:thumb", True),
        ("name:thumb AND state=PAUSED", False),
        (f'name="{PLACE}/queues/thumbs"', True),
        ("name:th*", True),
        ("pull_target:*", True),
        ("pullTarget: *", True),
        ("httpTarget: *", False),
        ("retry_config.max_attempts >= 5", True),
        ("retryConfig.maxAttempts > 5", False),
        ("retry_config.max_attempts < 6 AND retry_config.max_attempts != 4", True),
        ("retry_config.max_attempts:*", True),
    ],
)
def test_queues_are_filtered(text: str, accepted: bool) -> None:
    assert QueueFilter(text).accepts(QUEUE) == accepted


@pytest.mark.parametrize(
    "text", ["state", "=1", "a=1", "state=PAUSED AND", "(state=PAUSED)", "state=PAUSED OR state=X"]
)
def test_a_filter_of_queues_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(CloudTasksError):
        QueueFilter(text)


# -- masks ------------------------------------------------------------------------------------------------------------


def test_a_mask_keeps_what_it_leads_to() -> None:
    values = {"name": "n", "retryConfig": {"maxAttempts": 1, "maxDoublings": 2}, "state": 1}
    assert masked(values, ["retry_config.max_attempts"]) == {"retryConfig": {"maxAttempts": 1}}
    assert masked(values, ["name", "retry_config"]) == {"name": "n", "retryConfig": values["retryConfig"]}
    assert masked(values, ["*"]) == values
    check_mask("Queue", ["retry_config.max_attempts", "stats", "*"], place="read_mask")
    for path in ("colour", "name.first", "retry_config.", ""):
        with pytest.raises(CloudTasksError):
            check_mask("Queue", [path], place="read_mask")


ANSWER = {"tasks": [{"name": "a", "status": {"attemptDispatchCount": 1}, "view": "FULL"}], "nextPageToken": "t"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("*", ANSWER),
        ("nextPageToken", {"nextPageToken": "t"}),
        ("next_page_token", {"nextPageToken": "t"}),
        ("tasks/name", {"tasks": [{"name": "a"}]}),
        ("tasks.name,nextPageToken", {"tasks": [{"name": "a"}], "nextPageToken": "t"}),
        ("tasks(name,status(attemptDispatchCount))", {"tasks": [{"name": "a", "status": {"attemptDispatchCount": 1}}]}),
        ("tasks(view),tasks/name", {"tasks": [{"name": "a", "view": "FULL"}]}),
        ("*/name", {"tasks": [{"name": "a"}], "nextPageToken": "t"}),
        ("nothing", {}),
    ],
)
def test_fields_cut_an_answer_down(text: str, kept: object) -> None:
    assert partial(ANSWER, parse_fields(text)) == kept


@pytest.mark.parametrize("text", ["", ",", "a,", "a(", "a)", "a(b", "/a", "a//b", "(" * 100, "a(" * 30 + ")" * 30])
def test_fields_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CloudTasksError):
        parse_fields(text)


@given(st.text(alphabet="ab*,/.()", max_size=30))
def test_any_fields_are_read_or_refused(text: str) -> None:
    try:
        partial(ANSWER, parse_fields(text))
    except CloudTasksError as error:
        assert error.code is RpcStatus.INVALID_ARGUMENT


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_long_message_is_cut_and_an_unknown_error_is_told_without_detail() -> None:
    cut = failure_of(CloudTasksError(RpcStatus.NOT_FOUND, "x" * 5000))
    assert (cut.code, len(cut.message)) == (RpcStatus.NOT_FOUND, MAX_MESSAGE_CHARACTERS)
    told = failure_of(KeyError("secret"))
    assert told.code is RpcStatus.INTERNAL
    assert "secret" not in told.message
