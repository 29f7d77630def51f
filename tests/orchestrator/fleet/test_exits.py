"""What an end is called in words: memory in figures, what else the runtime knows, work in its hands."""

import signal

import pytest

from orchestrator.fleet.exits import Cause, cause_of, death_notice, detail_at_work, ending_of, unreachable_notice
from tests.support.fleet.fleet_builders import AnExit

MIB = 2**20
UNCAUGHT = [
    "Traceback (most recent call last):",
    '  File "/srv/own.py", line 8, in <module>',
    "    work(lease)",
    '  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode',
    "    ^^^^^^^^^^^",
    "cards.BadCard: 4111-1111",
    "and a second line",
]
UNFINISHED = (
    '{"event":"lease.lost","queue":"jobs","handler":"resize","task":"a","lease_number":1,"seconds":3.1,'
    '"place":"tasks.py:14","reason":"the worker gave it back"}'
)
OF_THE_WORKER = '  File "/srv/queue_core/worker/invocation.py", line 154 in _call'


@pytest.mark.parametrize(
    ("ended", "cause", "told"),
    [
        pytest.param(
            AnExit("w1", signal=signal.SIGKILL, out_of_memory=True),
            Cause.OUT_OF_MEMORY,
            "the kernel ended it: out of memory",
            id="nothing more is known",
        ),
        pytest.param(
            AnExit("w1", code=137, out_of_memory=True, memory_peak_bytes=498 * MIB, memory_limit_bytes=512 * MIB),
            Cause.OUT_OF_MEMORY,
            "the kernel ended it: out of memory, it had 498 MiB, with a limit of 512 MiB",
            id="peak and limit",
        ),
        pytest.param(
            AnExit("w1", out_of_memory=True, memory_peak_bytes=310 * MIB, memory_own_bytes=60 * MIB, is_forked=True),
            Cause.OUT_OF_MEMORY,
            "the kernel ended this worker, not its template: out of memory, it had 310 MiB, 60 MiB of it its own",
            id="a forked worker",
        ),
        pytest.param(
            AnExit("w1", out_of_memory=True, memory_limit_bytes=2048 * MIB),
            Cause.OUT_OF_MEMORY,
            "the kernel ended it: out of memory, with a limit of 2,048 MiB",
            id="the limit alone",
        ),
        pytest.param(
            AnExit("w1", code=1, reason="removed by somebody else"),
            Cause.CRASHED,
            "exit code 1 (removed by somebody else)",
            id="what else is known",
        ),
        pytest.param(
            AnExit("w1", code=70),
            Cause.CRASHED,
            "exit code 70: the worker itself failed",
            id="a worker that can't go on",
        ),
        pytest.param(
            AnExit("w1", code=80),
            Cause.HUNG,
            "exit code 80: a handler ran on after its lease had ended, or blocked the event loop of the others",
            id="a worker that a handler kept from going on",
        ),
        pytest.param(
            AnExit("w1", code=81),
            Cause.CRASHED,
            "exit code 81: a handler ended the event loop of the others",
            id="a worker whose loop a handler ended",
        ),
        pytest.param(
            AnExit("w1", code=79),
            Cause.TIMED_OUT,
            "exit code 79: a handler ran beyond its timeout and could not be ended",
            id="a worker that left a call behind its timeout",
        ),
        pytest.param(
            AnExit("w1", code=77),
            Cause.CRASHED,
            "exit code 77: a handler changed the user or group that the process runs as",
            id="a worker that became somebody else",
        ),
        pytest.param(AnExit("w1", code=1, memory_peak_bytes=9 * MIB), Cause.CRASHED, "exit code 1", id="a peak alone"),
    ],
)
def test_an_end_in_words(ended: AnExit, cause: Cause, told: str) -> None:
    assert cause_of(ended, drained=False, overdue=False) == (cause, told)


@pytest.mark.parametrize(
    ("ended", "drained", "cause", "told"),
    [
        pytest.param(
            AnExit("w1", code=78, last_lines=['{"event":"worker.refused","reason":"no module named tasks"}']),
            False,
            Cause.MISCONFIGURED,
            "exit code 78: no module named tasks",
            id="why it can't work",
        ),
        pytest.param(
            AnExit("w1", code=0, last_lines=['{"event":"worker.drained","reason":"SIGTERM","code":0}']),
            False,
            Cause.DRAINED,
            "asked to finish by somebody else, with SIGTERM",
            id="somebody else's signal",
        ),
        pytest.param(
            AnExit(
                "w1",
                code=0,
                last_lines=['{"event":"worker.drained","reason":"retired by its supervisor","code":0}'],
            ),
            False,
            Cause.DRAINED,
            "asked to finish",
            id="turned away by the queue before a signal came",
        ),
        pytest.param(
            AnExit("w1", code=0, last_lines=['{"event":"worker.drained","reason":"7 tasks done, at most 7","code":0}']),
            False,
            Cause.FINISHED,
            "finished: 7 tasks done, at most 7",
            id="recycled",
        ),
        pytest.param(
            AnExit("w1", code=0, last_lines=[UNFINISHED]),
            True,
            Cause.DRAINED,
            "asked to finish; resize, at tasks.py:14, was not done by then",
            id="a call at the end of the grace",
        ),
        pytest.param(
            AnExit("w1", code=1, last_lines=["hello", *UNCAUGHT]),
            False,
            Cause.CRASHED,
            "exit code 1; its last lines are the traceback of BadCard (own.py:8)",
            id="a program that an exception ended, without what it says",
        ),
        pytest.param(
            AnExit("w1", code=3, last_lines=UNCAUGHT), False, Cause.CRASHED, "exit code 3", id="another code after one"
        ),
        pytest.param(
            AnExit("w1", signal=signal.SIGSEGV, stack=['  File "/srv/tasks.py", line 41 in decode', OF_THE_WORKER]),
            False,
            Cause.SIGNALLED,
            "ended by SIGSEGV at tasks.py:41 in decode",
            id="the line that called native code",
        ),
    ],
)
def test_an_end_in_the_workers_own_words(ended: AnExit, *, drained: bool, cause: Cause, told: str) -> None:
    assert cause_of(ended, drained=drained, overdue=False) == (cause, told)


def test_an_end_that_looks_well_is_none_for_a_worker_with_work_in_its_hands() -> None:
    assert detail_at_work(Cause.FINISHED, "finished") == (
        "exit code 0, in the middle of its work: a handler ended the process, or made a daemon of it"
    )
    assert detail_at_work(Cause.CRASHED, "exit code 3") == (
        "exit code 3, in the middle of its work: its handler, or what that called, ended the process (os._exit)"
    )
    of_error = "exit code 1; its last lines are the traceback of BadCard (own.py:8)"
    assert detail_at_work(Cause.CRASHED, of_error) == of_error
    assert detail_at_work(Cause.CRASHED, "exit code 70: the worker itself failed") == (
        "exit code 70: the worker itself failed"
    )


@pytest.mark.parametrize(
    ("ended", "overdue", "told"),
    [
        pytest.param(AnExit("w1", signal=signal.SIGKILL), True, "silent for 9 s; it was killed", id="ended"),
        pytest.param(AnExit("w1", code=0), False, "silent for 9 s; it was ended", id="it could still hear"),
    ],
)
def test_a_worker_that_was_ended_because_it_hung_is_told_as_unresponsive(
    ended: AnExit, overdue: bool, told: str
) -> None:
    assert cause_of(ended, drained=True, overdue=overdue, hung="silent for 9 s") == (Cause.UNRESPONSIVE, told)


def test_a_worker_that_hung_and_crashed_is_told_as_crashed() -> None:
    assert cause_of(AnExit("w1", code=1), drained=True, overdue=False, hung="silent")[0] is Cause.CRASHED


@pytest.mark.parametrize(
    ("ended", "cause", "told"),
    [
        pytest.param(AnExit("w1", signal=signal.SIGKILL), Cause.SIGNALLED, "SIGKILL", id="a signal"),
        pytest.param(AnExit("w1", signal=99), Cause.SIGNALLED, "signal 99", id="one without a name"),
        pytest.param(AnExit("w1", code=137), Cause.SIGNALLED, "SIGKILL", id="one that a shell reports"),
        pytest.param(AnExit("w1", code=3), Cause.CRASHED, "exit code 3", id="a code"),
        pytest.param(
            AnExit("w1", signal=signal.SIGKILL, out_of_memory=True), Cause.OUT_OF_MEMORY, "out of memory", id="memory"
        ),
        pytest.param(AnExit("w1"), Cause.UNKNOWN, "unknown", id="an adopted worker"),
    ],
)
def test_an_end_in_a_word_or_two(ended: AnExit, cause: Cause, told: str) -> None:
    assert ending_of(ended, cause) == told


def test_the_notice_of_a_death_names_its_certificate_however_long_its_sentence_is() -> None:
    notice = death_notice("w1", Cause.CRASHED, "x" * 900, ending="exit code 1", is_on_this_host=True)
    assert notice.error == "exit code 1"
    assert notice.message.endswith("...; see `towline why-died w1`")
    assert len(notice.message) < 500
    at_work = death_notice("w1", Cause.FINISHED, "finished", ending="exit code 0", is_on_this_host=True)
    assert "in the middle of its work" in at_work.message
    assert "towline why-died w1" in unreachable_notice("w1").message


@pytest.mark.parametrize("code", [0, 1])
def test_a_worker_that_gave_its_tasks_back_when_told_twice_is_overdue(code: int) -> None:
    cause, detail = cause_of(AnExit("w", code=code), drained=True, overdue=False, gave_tasks_back=True)
    assert (cause, detail) == (Cause.OVERDUE, "ended: it did not finish within its grace, and gave its tasks back")
