"""A queue.yaml: its grammar, what `gcloud app deploy` refuses, and every mistake with its place."""

from pathlib import Path

import pytest

import queue_core
from queue_core.config.yaml_document import DocumentError
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.limits import MAX_LEASES
from queue_core.task import QueueSpec

DAY = 86_400.0
PAGE = Path(queue_core.__file__).parents[1] / "docs/reference/queue-yaml.md"


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as raised:
        read_queue_yaml(text)
    return list(raised.value.lines)


def a_pull_queue(*lines: str) -> str:
    return "\n".join(("queue:", "- name: thumbs", "  mode: pull", *(f"  {line}" for line in lines), ""))


def a_push_queue(*lines: str) -> str:
    return "\n".join(("queue:", "- name: mail", *(f"  {line}" for line in lines), ""))


def test_a_pull_queue_has_app_engines_settings() -> None:
    (queue,) = read_queue_yaml(a_pull_queue()).queues
    assert queue == QueueSpec("thumbs", on_exhausted="delete", max_leases=None, name_retention_seconds=9 * DAY)


def test_a_whole_file_is_read_and_push_queues_are_named_and_left_out() -> None:
    text = """\
application: my-app
total_storage_limit: 1.5G
resume_paused_queues: False
queue:
- name: thumbs
  mode: pull
  retry_parameters:
    task_retry_limit: 7
  acl:
  - user_email: worker@example.com
    writer_email: web@example.com
  - user_email: second@example.com
- name: mail
  mode: push
  rate: 10.5/m
  bucket_size: 40
  max_concurrent_requests: 10
  target: v1.mailer
  retry_parameters:
    task_retry_limit: 0
    task_age_limit: 2d
    min_backoff_seconds: 10
    max_backoff_seconds: 200.5
    max_doublings: 0
  acl: [{user_email: web@example.com}]
- name: default
  rate: 5/s
"""
    thumbs = QueueSpec(
        "thumbs",
        max_leases=7,
        on_exhausted="delete",
        user_emails=("worker@example.com", "second@example.com"),
        writer_emails=("web@example.com",),
    )
    assert read_queue_yaml(text) == QueueFileEntries((thumbs,), ("mail", "default"), 3 << 29, False)


@pytest.mark.parametrize("text", ["queue:", "queue: []", "queue: ~", "{}", "resume_paused_queues: True\n"])
def test_a_file_may_say_that_there_are_no_queues(text: str) -> None:
    assert read_queue_yaml(text) == QueueFileEntries()


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        pytest.param("1", 1, id="the least"),
        pytest.param(str(MAX_LEASES), MAX_LEASES, id="the most"),
        pytest.param('"5"', 5, id="in quotes"),
        pytest.param('"010"', 10, id="a zero in front, in quotes"),
        pytest.param("5.0", 5, id="a whole float"),
        pytest.param("1e3", 1000, id="an exponent"),
        pytest.param("1_000", 1000, id="an underscore, as YAML 1.1 has"),
        pytest.param("0x10", 16, id="hexadecimal"),
        pytest.param("+5", 5, id="a sign"),
        pytest.param("~", None, id="nothing"),
    ],
)
def test_a_retry_limit_is_the_number_of_leases_after_which_a_task_is_deleted(written: str, limit: int | None) -> None:
    (queue,) = read_queue_yaml(a_pull_queue(f"retry_parameters: {{task_retry_limit: {written}}}")).queues
    assert (queue.max_leases, queue.on_exhausted) == (limit, "delete")


@pytest.mark.parametrize("written", ["0", "-1", str(MAX_LEASES + 1), "true", "5.5", "1:30", "010", "x", "[5]", "''"])
def test_a_retry_limit_that_is_no_number_of_leases_is_refused_where_it_stands(written: str) -> None:
    (line,) = problems(a_pull_queue(f"retry_parameters: {{task_retry_limit: {written}}}"))
    assert line.startswith("queue.yaml:4:")
    assert "queue[0].retry_parameters.task_retry_limit: " in line


@pytest.mark.parametrize(
    ("setting", "phrase"),
    [
        ("rate: 5/s", "Refill rate must not be specified for pull-based queue"),
        ("rate: 0", "Refill rate must not be specified for pull-based queue"),
        ("bucket_size: 5", "Bucket size must not be specified for pull-based queue"),
        ("max_concurrent_requests: 5", "Max concurrent requests must not be specified for pull-based queue"),
        ("target: worker", "Target must not be specified for pull-based queue"),
        ("retry_parameters: {task_age_limit: 1d}", "Can't specify task_age_limit for a pull queue"),
        ("retry_parameters: {min_backoff_seconds: 1}", "Can't specify min_backoff_seconds for a pull queue"),
        ("retry_parameters: {max_backoff_seconds: 1}", "Can't specify max_backoff_seconds for a pull queue"),
        ("retry_parameters: {max_doublings: 1}", "Can't specify max_doublings for a pull queue"),
        ("retry_parameters: {task_retry_limit: -1}", "Task retry limit must not be less than zero"),
    ],
)
def test_a_pull_queue_with_a_push_queues_setting_is_refused_in_gclouds_words(setting: str, phrase: str) -> None:
    (line,) = problems(a_pull_queue(setting))
    assert phrase in line


@pytest.mark.parametrize("key", ["rate", "bucket_size", "target", "max_concurrent_requests", "retry_parameters", "acl"])
def test_a_setting_with_nothing_after_it_is_not_given(key: str) -> None:
    assert read_queue_yaml(a_pull_queue(f"{key}:")) == read_queue_yaml(a_pull_queue())


@pytest.mark.parametrize(
    ("settings", "phrase"),
    [
        ((), "Refill rate must be specified for push-based queue"),
        (("rate: 501/s",), "Refill rate must not exceed 500 per second"),
        (("rate: 5/s", "bucket_size: 501"), "Maximum bucket size is 500"),
        (("rate: 5/s", "bucket_size: -1"), "queue rate is invalid"),
        (("rate: 5/s", "retry_parameters: {task_age_limit: 0s}"), "Task age limit must be greater than zero"),
        (
            ("rate: 5/s", "retry_parameters: {min_backoff_seconds: -1}"),
            "Min backoff seconds must not be less than zero",
        ),
        (
            ("rate: 5/s", "retry_parameters: {max_backoff_seconds: -1}"),
            "Max backoff seconds must not be less than zero",
        ),
        (("rate: 5/s", "retry_parameters: {max_doublings: -1}"), "Max doublings must not be less than zero"),
        (
            ("rate: 5/s", "retry_parameters: {min_backoff_seconds: 2, max_backoff_seconds: 1}"),
            "Min backoff sec must not be greater than",
        ),
    ],
)
def test_a_push_queue_that_gcloud_refuses_is_refused(settings: tuple[str, ...], phrase: str) -> None:
    (line,) = problems(a_push_queue(*settings))
    assert phrase in line


@pytest.mark.parametrize("written", ["0", "5/s", "5./s", "0.5/h", "500/s", "1/d"])
def test_a_rate_is_nought_or_a_number_and_a_unit(written: str) -> None:
    assert read_queue_yaml(a_push_queue(f"rate: {written}")).push_queues == ("mail",)


@pytest.mark.parametrize("written", ["5", "0.0", "5/x", "5/sx", "-5/s", "/s", ".5/s", "s"])
def test_what_is_no_rate_is_refused(written: str) -> None:
    (line,) = problems(a_push_queue(f"rate: {written}"))
    assert "5/s" in line


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("500B", 500),
        ("1K", 1024),
        ("1.5K", 1536),
        ("0.3K", 307),
        ("120M", 120 << 20),
        ("5.B", 5),
        ("5.G", 5 << 30),
        ("2T", 2 << 40),
        ("8388607T", 8388607 << 40),
    ],
)
def test_a_storage_limit_is_in_powers_of_1024(written: str, size: int) -> None:
    assert read_queue_yaml(f"total_storage_limit: {written}\nqueue:\n").total_storage_limit_bytes == size


@pytest.mark.parametrize(
    "written", ["5m", "-1", "5 M", "1.5", "5.", "''", "8388608T", "9" * 40 + "T", "M", "[5]", "1,5M"]
)
def test_what_is_no_storage_limit_is_refused(written: str) -> None:
    (line,) = problems(f"total_storage_limit: {written}\nqueue:\n")
    assert "total_storage_limit: must be" in line


@pytest.mark.parametrize(
    ("written", "resume"),
    [("True", True), ("False", False), ("true", True), ("yes", True), ("off", False), ("'False'", False), ("~", True)],
)
def test_resume_paused_queues_is_a_truth_value_of_yaml_1_1(written: str, resume: bool) -> None:
    assert read_queue_yaml(f"resume_paused_queues: {written}\nqueue:\n").resume_paused_queues is resume


@pytest.mark.parametrize("written", ["1", "'yes'", "'true'", "maybe", "''"])
def test_what_is_no_truth_value_is_refused(written: str) -> None:
    assert "must be True or False" in problems(f"resume_paused_queues: {written}\nqueue:\n")[0]


@pytest.mark.parametrize("name", ["a", "A-1", "5", "'-'", "a" * 100, "089", "'010'", "'yes'", "2001-01-01", "null-1"])
def test_a_name_is_letters_digits_and_hyphens(name: str) -> None:
    (queue,) = read_queue_yaml(f"queue:\n- name: {name}\n  mode: pull\n").queues
    assert queue.name == name.strip("'")


@pytest.mark.parametrize(
    "name", ["a_b", "a" * 101, '"a\\n"', "ä", "''", "a b", "1.5", "010", "0x1F", "1e3", "yes", "-0"]
)
def test_a_name_that_app_engine_would_refuse_or_read_otherwise_is_refused(name: str) -> None:
    (line,) = problems(f"queue:\n- name: {name}\n  mode: pull\n")
    assert line.startswith("queue.yaml:2:9: queue[0].name: ")


@pytest.mark.parametrize("mode", ["PULL", "Push", "''", "pull ed", "[pull]"])
def test_a_mode_is_in_lower_case(mode: str) -> None:
    (line,) = problems(f"queue:\n- name: a\n  mode: {mode}\n")
    assert line.startswith("queue.yaml:3:9: queue[0].mode: must be")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "empty"),
        ("# nothing\n", "1:1", "empty"),
        ("queue:\n---\nqueue:\n", "2:1", "second document"),
        ("queue: []\nqueue: []\n", "2:1", "given twice"),
        ("queue", "1:1", "mapping"),
        ("[]", "1:1", "mapping"),
        ("queue: {}", "1:8", "list"),
        ("queue: a", "1:8", "list"),
        ("queue:\n- a\n", "2:3", "mapping"),
        ("queue:\n- ~\n", "2:3", "mapping"),
        ("queue:\n- mode: pull\n", "2:3", "name"),
        ("queue:\n- name:\n  mode: pull\n", "2:3", "name"),
        ("Queue:\n", "1:1", "did you mean 'queue'?"),
        ("queue:\n- name: a\n  mod: pull\n  rate: 5/s\n", "3:3", "did you mean 'mode'?"),
        (a_pull_queue("retry_parameters: {retry_limit: 5}"), "4:22", "did you mean 'task_retry_limit'?"),
        (a_pull_queue("retry-parameters: {}"), "4:3", "did you mean 'retry_parameters'?"),
        (a_pull_queue("retry_parameters: 5"), "4:21", "mapping"),
        (a_pull_queue("acl: {user_email: a}"), "4:8", "list"),
        (a_pull_queue("acl: [a@b.c]"), "4:9", "mapping"),
        (a_pull_queue("acl: [{user_email: a, user_email: b}]"), "4:25", "given twice"),
        (a_pull_queue("acl: [{user-email: a}]"), "4:10", "did you mean 'user_email'?"),
        (a_pull_queue("acl: [{user_email: ''}]"), "4:22", "address"),
        (a_pull_queue("mode: pull"), "4:3", "given twice"),
        (a_pull_queue() + "- name: thumbs\n  rate: 5/s\n", "4:3", "the first in line 2"),
        ("application: My App\nqueue:\n", "1:14", "application"),
        ("queue:\n- name: !secret a\n  mode: pull\n", "2:9", "!secret"),
        ("queue:\n- &a {name: x, mode: pull}\n- *a\n", "2:3", "anchors"),
        ("queue: []\napplication: &a b\n", "2:14", "anchors"),
        ("queue:\n- name: a\n  <<: {mode: pull}\n  rate: 5/s\n", "3:3", "unknown setting"),
        ("queue: []\n? ' '\n", "2:3", "' ': unknown setting"),
        ("queue:\n- ? [a]\n  : b\n  name: a\n  rate: 1/s\n", "2:5", "key must be text"),
        ("queue:\n- name: a\n\tmode: pull\n", "3:1", "tab"),
        ("queue: [\n", "2:1", "expected"),
    ],
)
def test_a_mistake_is_told_with_line_and_column(text: str, place: str, message: str) -> None:
    (line,) = problems(text)
    assert line.startswith(f"queue.yaml:{place}: ")
    assert message in line


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """\
total_storage_limit: 5m
queue:
- name: a_b
  mode: PULL
- mode: pull
  rate: 5/s
  retry_parameters:
    task_retry_limit: 0
    task_age_limit: 1d
- name: x
"""
    places = [line.split(": ")[0].removeprefix("queue.yaml:") for line in problems(text)]
    assert places == ["1:22", "3:9", "4:9", "5:3", "6:3", "8:5", "9:5", "10:3"]


def test_an_address_listed_twice_counts_once_and_a_thousand_are_the_most() -> None:
    entries = read_queue_yaml(a_pull_queue("acl: [{user_email: a}, {user_email: a}, {writer_email: a}]"))
    assert (entries.queues[0].user_emails, entries.queues[0].writer_emails) == (("a",), ("a",))
    many = ", ".join(f"{{user_email: a{index}}}" for index in range(1001))
    assert "at most 1000" in problems(a_pull_queue(f"acl: [{many}]"))[0]


def test_aliases_that_would_expand_to_a_billion_values_are_told_in_no_time() -> None:
    levels = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    assert "anchors" in problems("\n".join(levels))[0]
    assert "nested deeper than 40 levels" in problems("queue: " + "[" * 5000)[0]
    assert "anchors" in problems("queue: &a [*a]")[0]
    assert "at most 262144 bytes" in problems("#" * 300_000)[0]
    assert "more than 20000" in problems("queue: [" + "a," * 20_000)[0]


def test_a_hundred_mistakes_are_told_and_how_many_more_there_are() -> None:
    lines = problems("queue:\n" + "- a\n" * 150)
    assert (len(lines), lines[-1]) == (101, "queue.yaml:102:3: and 50 more mistakes from here")


def test_the_example_of_the_documentation_is_right() -> None:
    example = PAGE.read_text().split("```yaml\n")[1].split("```")[0]
    entries = read_queue_yaml(example)
    assert [(queue.name, queue.max_leases) for queue in entries.queues] == [("thumbs", 7)]
    assert (entries.push_queues, entries.total_storage_limit_bytes) == (("mail",), 3 << 29)
