"""Events as lines of a terminal: broken at words, harmless, with the user's part of a traceback; alike ones counted."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from queue_core.cli.event_lines import (
    COUNT_SECONDS,
    EventLine,
    FailureCounts,
    LineLayout,
    folded_traceback,
)
from queue_core.cli.worker_events import EventReader, worker_line
from queue_core.process.wording import shown_clock
from queue_core.task import QueueSpec
from queue_core.worker import events

AT = 1_700_000_000.0
CLOCK = shown_clock(AT, now_seconds=AT)
TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/queue_core/worker/invocation.py", line 154, in _call
    return self.handler.function(self.argument())
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/app/tasks.py", line 10, in resize
    load(path)
    ~~~~^^^^^^
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode
    obj, end = self.raw_decode(s, idx=_w(s, 0).end())
ValueError: not an image
and a second line
"""
FAILED = {
    "timestamp": "2026-11-25T12:04:33Z",
    "level": "error",
    "event": events.HANDLER_FAILED,
    "queue": "thumbs",
    "handler": "resize",
    "task": "_5",
    "tag": "resize",
    "lease_number": 1,
    "error": "ValueError",
    "message": "not an image",
    "place": "tasks.py:9",
    "traceback": TRACEBACK,
}
READER = EventReader({"thumbs": QueueSpec("thumbs", max_leases=5)}, folder=Path("/srv/app"))


def failure(reader: EventReader = READER, entry: Mapping[str, object] = FAILED, /, **fields: object) -> EventLine:
    line = worker_line({**entry, **fields}, reader, name="resize-d2v")
    assert line is not None
    return line


def test_a_failure_is_one_line_then_the_users_part_of_its_traceback() -> None:
    shown = LineLayout(width=110, names=10).lines(failure(), at=AT)
    assert shown == [
        f"{CLOCK}  resize-d2v x task _5 failed (lease 1 of 5): ValueError: not an image, tasks.py:9; again in 1 s",
        "                       Traceback (most recent call last):",
        '                         File "tasks.py", line 10, in resize',
        "                           load(path)",
        "                         ... 2 frames of libraries",
        "                       ValueError: not an image",
        "                       and a second line",
    ]


def test_at_debug_a_traceback_is_whole() -> None:
    assert list(failure(replace(READER, level="debug")).more) == TRACEBACK.strip("\n").split("\n")


def test_no_line_is_longer_than_the_terminal_and_nothing_is_cut() -> None:
    line = failure(message="the image at the other end of the wire is no image at all, but a text about images")
    for width in (100, 80, 60, 40):
        shown = LineLayout(width=width, names=10).lines(line, at=AT)
        assert max(map(len, shown)) <= width
        assert " ".join(" ".join(shown).split()) == " ".join(
            " ".join([CLOCK, "resize-d2v", "x", line.text, *line.more]).split()
        )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"lease_number": 5}, "(lease 5 of 5): ValueError: not an image, tasks.py:9; it is dead", id="last"
        ),
        pytest.param({"queue": "other"}, "(lease 1): ValueError: not an image, tasks.py:9", id="unknown-queue"),
        pytest.param({"count": 4}, "task _5 and 3 more failed (lease 1 of 5)", id="batch"),
        pytest.param({"again_seconds": 90.0, "attempts": 2}, "(lease 1 of 2): ", id="attempts-of-its-handler"),
        pytest.param({"again_seconds": 90.0}, "; again in 90 s", id="back-off-of-its-handler"),
        pytest.param({"lease_number": 3}, "; again in 4 s", id="back-off-doubles"),
        pytest.param({"message": "one\ntwo"}, ": ValueError: one, tasks.py:9;", id="first-line-of-a-message"),
    ],
)
def test_a_failure_says_which_lease_it_was_and_what_comes_next(fields: dict[str, object], text: str) -> None:
    assert text in failure(READER, **fields).text


def test_a_dead_task_names_the_command_that_mends_it() -> None:
    assert failure(lease_number=5).hint == "towline redrive thumbs --named _5"


def test_others_like_a_failure_are_counted_for_a_minute_and_then_told_once() -> None:
    counts = FailureCounts()
    line = replace(failure(), group="resize")
    assert [counts.is_new(line, now=now) for now in (0.0, 1.0, 59.0)] == [True, False, False]
    assert counts.is_new(replace(failure(error="KeyError"), group="resize"), now=59.0)
    assert counts.due(now=59.0) == []
    (told,) = counts.due(now=COUNT_SECONDS)
    assert told.name == "resize"
    assert told.text == "2 more failures like this in the minute after that (not shown): ValueError, tasks.py:9"
    assert told.more == ()
    assert counts.is_new(line, now=61.0)
    assert not counts.is_new(line, now=62.0)
    assert [told.text for told in counts.rest()] == [
        "1 more failure like this since then (not shown): ValueError, tasks.py:9"
    ]


def test_a_task_that_is_dead_by_a_failure_is_another_kind() -> None:
    counts = FailureCounts()
    assert counts.is_new(failure(), now=0.0)
    assert counts.is_new(failure(lease_number=5), now=1.0)


def test_nothing_that_a_stranger_wrote_is_obeyed() -> None:
    evil = "\x1b]0;title\x07\x9b2J"
    line = failure(message=evil, task=evil, traceback=f"Trace:\n  {evil}", place=evil)
    shown = "".join(LineLayout(width=80, has_colours=True, names=10).lines(replace(line, name=evil), at=AT))
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown


def test_what_is_no_news_is_not_shown_and_warnings_are_sentences() -> None:
    started = {"event": events.WORKER_STARTED, "level": "info", "queue": "thumbs", "tags": ["resize"], "concurrency": 2}
    assert worker_line(started, READER) is None
    alone = worker_line(started, replace(READER, is_alone=True))
    assert alone is not None
    assert alone.text == "Works on thumbs, tags resize, 2 tasks at a time. Ctrl-C lets it finish."
    warned = worker_line({"event": "loop.blocked", "level": "warning", "reason": "for 3 s"}, READER)
    assert warned == EventLine("loop blocked: for 3 s", mark="!")
    assert worker_line({"event": "loop.blocked", "level": "warning"}, replace(READER, level="error")) is None


def test_a_programs_own_entries_are_its_output() -> None:
    own = {"event": "sized", "level": "info", "timestamp": "x", "worker": "w", "path": "cat.jpg", "wide": 3}
    assert worker_line(own, READER) == EventLine("sized   path=cat.jpg wide=3", mark="|")
    logged = {"event": "program.logged", "level": "warning", "logger": "tasks", "message": "odd size"}
    assert worker_line(logged, READER) == EventLine("warning: odd size", mark="|")


def test_a_traceback_that_is_none_stays_as_it_is() -> None:
    assert folded_traceback("no frames\n  here") == ["no frames", "  here"]


STOOD = (
    "/usr/lib/python3.11/asyncio/tasks.py:649 in sleep < /srv/app/pages/get.py:3 in get < /srv/app/tasks.py:14 in fetch"
    " < /opt/venv/lib/python3.11/site-packages/queue_core/worker/functions/function.py:212 in __call__"
)
TIMED_OUT = FAILED | {
    "event": events.HANDLER_TIMED_OUT,
    "timeout_seconds": 1.0,
    "place": "pages/get.py:3",
    "where": STOOD,
}


def test_a_timeout_names_the_lines_of_the_users_program_at_which_it_stood() -> None:
    line = failure(READER, TIMED_OUT)
    assert line.text == (
        "task _5 ran beyond its timeout (lease 1 of 5): the limit of 1 s is over, pages/get.py:3; again in 1 s"
    )
    assert line.more == ("it stood at pages/get.py:3 in get", "called at tasks.py:14 in fetch")
    at_debug = failure(replace(READER, level="debug"), TIMED_OUT)
    assert [one.rpartition(" in ")[2] for one in at_debug.more] == ["sleep", "get", "fetch", "__call__"]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        pytest.param({"again_seconds": 1200.0}, "pages/get.py:3; again in 20 min", id="Retry"),
        pytest.param(
            {"again_seconds": 60.0, "lease_number": 5}, "pages/get.py:3; again in 60 s", id="Retry, at the last"
        ),
        pytest.param({}, "the limit of 1 s is over, pages/get.py:3", id="Dead, which a line of its own tells"),
    ],
)
def test_a_timeout_that_its_handler_maps_says_what_that_means(fields: dict[str, object], end: str) -> None:
    line = failure(READER, TIMED_OUT, level="info", **fields)
    assert line.text.endswith(end)
    assert line.hint == ""


@pytest.mark.parametrize("where", ["", "/srv/app/tasks.py:14 in fetch < /lib/python3.11/x.py:1 in f"])
def test_a_place_that_a_timeout_names_already_is_not_told_twice(where: str) -> None:
    assert failure(READER, TIMED_OUT, where=where).more == ()


def test_the_end_of_a_worker_by_a_timeout_is_told_by_its_supervisor_or_by_itself() -> None:
    entry = {
        "level": "info",
        "event": events.HANDLER_TIMED_OUT,
        "queue": "q",
        "reason": "it can't be ended",
        "tasks": 0,
    }
    assert worker_line(entry, READER, name="resize-d2v") is None
    line = worker_line(entry, replace(READER, is_alone=True))
    assert line is not None
    assert line.text == "ends: it can't be ended"


def test_a_refusal_is_told_once_though_the_workers_end_repeats_it() -> None:
    refused = {"event": events.WORKER_REFUSED, "queue": "words", "reason": "no queue 'words'; queues: other"}
    told = worker_line({**refused, "level": "error", "error": "UnknownQueueError"}, READER)
    assert told is not None
    assert told.text == "can't work: no queue 'words'; queues: other"
    assert worker_line({**refused, "level": "info", "tasks": 0}, READER) is None
