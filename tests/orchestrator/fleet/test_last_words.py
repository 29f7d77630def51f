"""What a worker's own log lines and stack say of its end, whole or cut, and what its user's output never says."""

import json

import pytest

from orchestrator.fleet.last_words import (
    HangingCall,
    LastWords,
    folded_stack,
    last_traceback,
    last_words_of,
    place_in_stack,
    whole_line,
)

CALL = HangingCall("thumbs", "cat-1", "big", 2, "resize", "tasks.py:14", 8.2)


def a_line(event: str, **fields: object) -> str:
    known = {"timestamp": "2026-11-26T00:55:38Z", "level": "info", "event": event, "worker": "w1"}
    return json.dumps(known | fields, separators=(",", ":"))


def of_a_call(event: str, **fields: object) -> str:
    known = {"queue": "thumbs", "handler": "resize", "task": "cat-1", "tag": "big", "lease_number": 2}
    return a_line(event, **known, seconds=8.2, place="tasks.py:14", **fields)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param(["Killed", "{not: json}", '{"event": 7}', "[1]"], "", id="output of a program"),
        pytest.param([a_line("worker.drained", reason="SIGTERM", code=0)], "SIGTERM", id="it ended"),
        pytest.param(
            [a_line("worker.refused", reason="can't import tasks:\n  no such module")],
            "can't import tasks: no such module",
            id="it can't work, in one line",
        ),
        pytest.param([a_line("worker.refused", reason="x" * 400)], "x" * 297 + "...", id="a long reason is cut"),
        pytest.param(
            [a_line("worker.refused", reason="can't import tasks", traceback="File ...")[:-9]],
            "can't import tasks",
            id="a line that was cut in a text",
        ),
        pytest.param(
            [a_line("worker.drained", reason="done", code=80, seconds=1.25)[:-3]], "done", id="one cut in a number"
        ),
        pytest.param(
            [
                a_line("worker.failed", thread="executor", traceback="Traceback\n  File\nRuntimeError: 2 parts\n"),
                a_line("worker.drained", reason="an internal error in its executor", code=70),
            ],
            "an internal error in its executor: RuntimeError: 2 parts",
            id="an error of ours",
        ),
    ],
)
def test_the_reason_is_what_it_logged_last(lines: list[str], reason: str) -> None:
    assert last_words_of(lines).reason == reason


def test_each_call_that_it_could_not_end_is_told_once_and_by_its_kind() -> None:
    words = last_words_of(
        [
            of_a_call("lease.lost", reason="it reached the queue's max_lease"),
            of_a_call("handler.stuck", where="/srv/tasks.py:14 in resize"),
            a_line("handler.stuck", queue="thumbs", reason="resize hung"),
        ]
    )
    assert (words.stuck, words.lost, words.hanging) == ((CALL,), (CALL,), (CALL,))
    assert words.condition == "resize runs on without its lease, at tasks.py:14"
    assert last_words_of([of_a_call("lease.lost", reason="the worker gave it back")]).unfinished == (CALL,)
    assert last_words_of([of_a_call("handler.timed_out")]).timed_out == (CALL,)
    assert last_words_of(["lease.lost"]) == LastWords()


IN_A_HANDLER = [
    "Thread 0x00007f01 (most recent call first):",
    '  File "/srv/queue_core/client/http/transport.py", line 134 in request',
    '  File "/srv/queue_core/worker/renewals.py", line 150 in _renew',
    "Current thread 0x00007f02 (most recent call first):",
    '  File "/usr/lib/python3.11/re/__init__.py", line 166 in match',
    '  File "/srv/shop/tasks.py", line 22 in matches',
    '  File "/srv/shop/tasks.py", line 14 in resize',
    '  File "/srv/queue_core/worker/invocation.py", line 150 in _call',
    '  File "/srv/queue_core/worker/main.py", line 71 in run_worker',
]


def test_a_stack_shows_the_innermost_line_of_the_users_code() -> None:
    assert place_in_stack(IN_A_HANDLER) == "tasks.py:22 in matches"
    assert place_in_stack(IN_A_HANDLER[4:]) == "tasks.py:22 in matches", "its head was cut off"
    assert place_in_stack(IN_A_HANDLER[:4]) == ""
    assert place_in_stack(IN_A_HANDLER[4:7]) == "", "a thread that no worker began"
    assert place_in_stack([]) == ""


def test_a_stack_for_people_counts_the_workers_own_calls() -> None:
    assert folded_stack(IN_A_HANDLER) == [
        *IN_A_HANDLER[:2],
        "  ... and 1 call of the worker itself",
        *IN_A_HANDLER[3:7],
        "  ... and 2 calls of the worker itself",
    ]


def test_a_cut_line_is_made_whole_and_other_output_left_alone() -> None:
    line = a_line("worker.refused", reason="no such module")
    assert json.loads(whole_line(line[:-5]))["reason"] == "no such mod"
    assert whole_line("{'a': 1") == "{'a': 1"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["ValueError: no traceback"], id="a line that looks like an error"),
        pytest.param(["Traceback (most recent call last):", "ValueError: no frames"], id="no frames"),
        pytest.param(['  File "/srv/own.py", line 8, in f', "ValueError: cut"], id="without its begin"),
        pytest.param(["Traceback (most recent call last):", '  File "/srv/own.py", line 8, in f', "!"], id="no error"),
    ],
)
def test_lines_that_are_no_traceback_name_no_error(lines: list[str]) -> None:
    assert last_traceback(lines) == ""
