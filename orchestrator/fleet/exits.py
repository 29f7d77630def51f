"""Find the cause of a worker's exit from its exit code, its signal and what was asked of it. Pure."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.last_words import HangingCall, last_traceback, last_words_of, place_in_stack

EXIT_FINISHED: Final = 0
"""The worker drained or recycled itself: nothing is wrong."""
EXIT_QUEUE_LOST: Final = 75
"""The worker gave up: its queue or its supervisor was away for too long (EX_TEMPFAIL of sysexits.h)."""
EXIT_MISCONFIGURED: Final = 78
"""The worker can't run: there is no such app, or its settings are invalid (EX_CONFIG of sysexits.h)."""
EXIT_BROKEN: Final = 70
"""The worker failed itself (EX_SOFTWARE of sysexits.h)."""
EXIT_TIMED_OUT: Final = 79
"""A handler ran beyond its timeout and could not be ended (no code of sysexits.h)."""
EXIT_HUNG: Final = 80
"""A handler ran on without its lease, or blocked the event loop of the others (no code of sysexits.h)."""
EXIT_LOOP_ENDED: Final = 81
"""A handler ended the event loop of async handlers (no code of sysexits.h)."""
EXIT_CHANGED: Final = 77
"""A handler changed the user or group of the worker's process (EX_NOPERM of sysexits.h)."""

_SHELL_SIGNAL_BASE: Final = 128
_IN_WORDS: Final = {
    EXIT_BROKEN: "the worker itself failed",
    EXIT_QUEUE_LOST: "its queue or supervisor was unavailable for too long",
    EXIT_MISCONFIGURED: "its app or its settings cannot be used",
    EXIT_TIMED_OUT: "a handler ran beyond its timeout and could not be ended",
    EXIT_HUNG: "a handler ran on after its lease had ended, or blocked the event loop of the others",
    EXIT_LOOP_ENDED: "a handler ended the event loop of the others",
    EXIT_CHANGED: "a handler changed the user or group that the process runs as",
}
"""The meanings of our own workers' exit codes, where a worker said no more; other programs may use them differently."""
_EXITS: Final = {
    EXIT_QUEUE_LOST: "queue lost",
    EXIT_MISCONFIGURED: "misconfigured",
    EXIT_TIMED_OUT: "timed out",
    EXIT_HUNG: "hung",
}
_UNCAUGHT: Final = 1
"""The exit code with which Python ends for an exception that nobody caught."""
TRACEBACK_OF: Final = "; its last lines are the traceback of "
"""Before the error that a program of the user's own ended with, as its output says."""
MAX_NOTICE_CHARS: Final = 300
"""Length at which the sentence of a death notice is cut."""
_MIB: Final = 2**20
ASKED_TO_FINISH: Final = "asked to finish"
"""How the sentence begins of a worker that finished because its supervisor asked it to."""
_STOP_SIGNALS: Final = frozenset({"SIGTERM", "SIGINT"})
"""The reasons that a worker logs when a signal asked it to finish."""
_RETIRED: Final = "retired by its supervisor"
"""The reason that a worker logs when the queue turned it away."""
_BARE_CODE: Final = re.compile(r"exit code \d+")


Fate = Literal["", "disrupted", "node lost", "removed"]
"""A cluster's word on the end of its worker: `disrupted`, it was evicted, preempted, or refused by its node; `node
lost`, its node does not answer, or is gone; `removed`, somebody removed its Pod."""


class Cause(StrEnum):
    """The cause of a worker's end."""

    DRAINED = "drained"  # it was asked to finish
    FINISHED = "finished"  # by itself, without an error: recycled
    MISCONFIGURED = "misconfigured"
    QUEUE_LOST = "queue lost"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"  # a plain handler ran beyond its timeout: its worker gave the task back and ended
    HUNG = "hung"  # a handler ran on without its lease, or blocked the others: its worker ended itself
    SIGNALLED = "signalled"
    OUT_OF_MEMORY = "out of memory"
    OVERDUE = "overdue"  # it was asked to finish, did not in time, and was killed
    ASKED_TWICE = "asked twice"  # it was asked to finish, and its supervisor was asked again before it had
    KILLED = "killed"  # an operator ordered its end
    UNRESPONSIVE = "unresponsive"  # it did not respond, and was ended for that
    REMOVED = "removed"  # somebody else removed its container, or its Pod
    DISRUPTED = "disrupted"  # its cluster ended it: evicted, preempted, or its node was shut down or refused it
    NODE_LOST = "node lost"  # its node does not answer, or is gone: nobody saw its end
    UNKNOWN = "unknown"  # an adopted process: only its parent gets its exit code


WRONG_BY_ITSELF: Final = frozenset({Cause.CRASHED, Cause.MISCONFIGURED})
"""Causes that lie in the worker, not in its host or its operator."""

ENDS_WELL: Final = frozenset({Cause.DRAINED, Cause.FINISHED})
"""Causes that need no attention."""

GAVE_ITS_TASK_BACK: Final = frozenset({Cause.TIMED_OUT, Cause.HUNG})
"""Causes that lie in a handler, whose task the worker gave back by itself before it ended."""

HANGS: Final = frozenset({Cause.HUNG, Cause.UNRESPONSIVE})
"""Causes for which the leases that the worker let expire belong to its end."""

ENDED_BY_CLUSTER: Final = frozenset({Cause.DISRUPTED, Cause.NODE_LOST})
"""Causes that lie in the cluster: no start with them has failed, and no task is at fault."""

SPARED: Final = ENDED_BY_CLUSTER | {Cause.KILLED}
"""Causes for which the leases of its tasks do not count."""

WITHOUT_FAULT: Final = (
    GAVE_ITS_TASK_BACK
    | ENDED_BY_CLUSTER
    | {
        Cause.DRAINED,
        Cause.OVERDUE,
        Cause.ASKED_TWICE,
        Cause.KILLED,
        Cause.QUEUE_LOST,
        Cause.UNRESPONSIVE,
        Cause.REMOVED,
    }
)
"""Causes for which the tasks that the worker holds are not suspected: it was asked to end, or its queue was away, or it
gave the one at fault back by itself."""


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """A worker's end in texts, for the tasks that it held: each of them keeps it among its attempts.

    Args:
        error: its end in a word or two: `SIGKILL`, `exit code 3`, `out of memory`.
        message: the certificate's sentence, and the command that shows the certificate.
        is_on_this_host: whether it ran on the supervisor's host.
    """

    error: str
    message: str
    is_on_this_host: bool = False


class EndedWorker(Protocol):
    """The exit of a worker as a runtime reports it: exactly one of `code` and `signal`, or neither."""

    @property
    def worker(self) -> str: ...
    @property
    def at(self) -> Monotonic: ...
    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def out_of_memory(self) -> bool: ...
    @property
    def memory_limit_bytes(self) -> int | None: ...
    @property
    def memory_peak_bytes(self) -> int | None: ...
    @property
    def is_forked(self) -> bool: ...
    @property
    def memory_own_bytes(self) -> int | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def is_stopped(self) -> bool: ...
    @property
    def is_removed(self) -> bool: ...
    @property
    def fate(self) -> Fate: ...
    @property
    def last_lines(self) -> Sequence[str]: ...
    @property
    def stack(self) -> Sequence[str]: ...


def cause_of(
    ended: EndedWorker,
    *,
    drained: bool,
    overdue: bool,
    is_cut_short: bool = False,
    gave_tasks_back: bool = False,
    killed_by: str = "",
    hung: str = "",
) -> tuple[Cause, str]:
    """Return why a worker ended, and the same in words for its owner.

    Args:
        drained: the worker had been asked to finish.
        overdue: it was killed: it did not finish in time, or (`is_cut_short`) its supervisor was asked twice to stop.
        gave_tasks_back: it had not finished within its grace, and was told to give its tasks back.
        killed_by: the operator who ordered its end; "" when nobody did.
        hung: how it hung, if it was ended for that; else "".
    """
    cause, detail = _cause_of(ended, drained=drained, overdue=overdue)
    if gave_tasks_back and not overdue and not ended.out_of_memory:
        cause, detail = Cause.OVERDUE, "ended: it did not finish within its grace, and gave its tasks back"
    if cause is Cause.OVERDUE and overdue and is_cut_short:
        cause, detail = Cause.ASKED_TWICE, "ended: you asked twice"
    is_unseen = ended.code is None and ended.signal is None  # adopted: only its parent gets its exit code
    if killed_by and overdue and (cause is Cause.OVERDUE or is_unseen):
        return Cause.KILLED, f"killed by {killed_by}{f': {hung}' if hung else ''}"
    if hung and cause in {Cause.DRAINED, Cause.OVERDUE}:
        cause, detail = Cause.UNRESPONSIVE, f"{hung}; {'it was killed' if cause is Cause.OVERDUE else 'it was ended'}"
    elif cause in {Cause.DRAINED, Cause.OVERDUE} and (unfinished := last_words_of(ended.last_lines).unfinished):
        detail = f"{detail}; {_unfinished(unfinished)}"
    return cause, f"{detail} ({ended.reason})" if ended.reason else detail


def at_fault(ended: EndedWorker, cause: Cause) -> tuple[HangingCall, ...]:
    """Return the calls that a worker of this cause ended for, or could not finish, as far as it said so."""
    words = last_words_of(ended.last_lines)
    if cause is Cause.TIMED_OUT:
        return words.timed_out
    return words.hanging if cause in HANGS else words.unfinished


def _unfinished(calls: Sequence[HangingCall]) -> str:
    """Return which calls were not done at the end of the grace, and where the first of them was."""
    first = calls[0]
    place = f", at {first.place}," if first.place else ""
    return f"{first.handler}{place} {'and others were' if len(calls) > 1 else 'was'} not done by then"


def unreachable_notice(worker: str) -> DeathNotice:
    """Return what the tasks keep of a worker that is to be killed and can't be reached."""
    return DeathNotice("unreachable", f"its node can't be reached to end it; see `towline why-died {worker}`")


def ending_of(ended: EndedWorker, cause: Cause) -> str:
    """Return a worker's end in a word or two: its signal, its exit code, or else its cause."""
    if cause in {Cause.OUT_OF_MEMORY, Cause.REMOVED} or cause in ENDED_BY_CLUSTER:
        return cause.value
    number = _signal_of(ended)
    if number is not None:
        return _signal_name(number)
    return cause.value if ended.code is None else f"exit code {ended.code}"


def death_notice(worker: str, cause: Cause, detail: str, *, ending: str, is_on_this_host: bool) -> DeathNotice:
    """Return what the tasks of a dead worker keep about its end; `ending` as `ending_of` gives it."""
    said = detail_at_work(cause, detail)
    cut = said if len(said) <= MAX_NOTICE_CHARS else f"{said[: MAX_NOTICE_CHARS - 3]}..."
    return DeathNotice(ending, f"{cut}; see `towline why-died {worker}`", is_on_this_host)


def detail_at_work(cause: Cause, detail: str) -> str:
    """Describe the exit of a worker that held tasks: `finished` is then no regular end, nor is a bare exit code."""
    if cause is Cause.CRASHED and _BARE_CODE.fullmatch(detail):
        return f"{detail}, in the middle of its work: its handler, or what that called, ended the process (os._exit)"
    if cause is not Cause.FINISHED:
        return detail
    return f"exit code {EXIT_FINISHED}, in the middle of its work: a handler ended the process, or made a daemon of it"


def _cause_of(ended: EndedWorker, *, drained: bool, overdue: bool) -> tuple[Cause, str]:
    number = _signal_of(ended)
    if ended.out_of_memory:
        whom = "this worker, not its template" if ended.is_forked else "it"
        return Cause.OUT_OF_MEMORY, f"the kernel ended {whom}: out of memory{_memory_text(ended)}"
    if ended.fate:
        return _by_cluster(ended)
    is_killed = number == signal.SIGKILL or (number is None and ended.code is None)
    if ended.is_removed and is_killed and not (drained or overdue):
        return Cause.REMOVED, "its container was removed by somebody else"
    if ended.is_stopped and not (drained or overdue):
        if number == signal.SIGKILL:
            return Cause.OVERDUE, "somebody else stopped it, and ended it before it had finished"
        if number == signal.SIGTERM or (number is None and ended.code == EXIT_FINISHED):
            return Cause.DRAINED, "asked to finish by somebody else"
    if number is not None:
        cause, detail = _cause_of_signal(number, drained=drained, overdue=overdue)
        place = place_in_stack(ended.stack) if cause is Cause.SIGNALLED else ""
        return cause, f"{detail} at {place}" if place else detail
    if ended.code is None and not drained:
        return Cause.UNKNOWN, "adopted: its exit is not known"
    if ended.code in {EXIT_FINISHED, None}:
        return (Cause.DRAINED, f"{ASKED_TO_FINISH}{_why(ended)}") if drained else _voluntary_exit(ended)
    return Cause(_EXITS.get(ended.code, "crashed")), _code_in_words(ended, ended.code)


def _by_cluster(ended: EndedWorker) -> tuple[Cause, str]:
    """Return why a worker ended that its cluster, or somebody who may change it, has ended."""
    if ended.fate == "disrupted":
        return Cause.DISRUPTED, "its cluster ended it"
    if ended.fate == "node lost":
        return Cause.NODE_LOST, "its node is lost, and nobody saw its end"
    return Cause.REMOVED, "its Pod was removed by somebody else"


def _why(ended: EndedWorker) -> str:
    """Return why a worker that was asked to finish had begun to by itself, as text to append."""
    reason = last_words_of(ended.last_lines).reason
    return f"; it was already exiting: {reason}" if reason and reason not in {*_STOP_SIGNALS, _RETIRED} else ""


def finished_by_itself(ended: EndedWorker, *, leases: int) -> bool:
    """Return whether a worker that the queue was told to turn away ended for another reason, or amid its leases."""
    reason = last_words_of(ended.last_lines).reason
    return ended.code == EXIT_FINISHED and reason != _RETIRED and bool(reason or leases)


def _voluntary_exit(ended: EndedWorker) -> tuple[Cause, str]:
    """Return why a worker ended well that the supervisor had not asked to."""
    reason = last_words_of(ended.last_lines).reason
    if reason in _STOP_SIGNALS:
        return Cause.DRAINED, f"asked to finish by somebody else, with {reason}"
    if reason == _RETIRED:
        return Cause.DRAINED, ASKED_TO_FINISH
    return Cause.FINISHED, f"finished: {reason}" if reason else "finished"


def _code_in_words(ended: EndedWorker, code: int) -> str:
    """Return an exit code with what the worker said of it, or else with its meaning."""
    meaning = _IN_WORDS.get(code)
    if meaning is None:
        error = last_traceback(ended.last_lines) if code == _UNCAUGHT else ""
        return f"exit code {code}{TRACEBACK_OF + error if error else ''}"
    return f"exit code {code}: {last_words_of(ended.last_lines).reason or meaning}"


def _memory_text(ended: EndedWorker) -> str:
    """Return the peak and the limit in words, as far as they are known."""
    peak, limit = ended.memory_peak_bytes, ended.memory_limit_bytes
    had = "" if peak is None else f", it had {peak / _MIB:,.0f} MiB"
    if had and ended.memory_own_bytes is not None:
        had += f", {ended.memory_own_bytes / _MIB:,.0f} MiB of it its own"
    return had if limit is None else f"{had}, with a limit of {limit / _MIB:,.0f} MiB"


def _signal_of(ended: EndedWorker) -> int | None:
    """Return the signal that ended it, also if a shell reports that as an exit code (128 + signal)."""
    if ended.signal is None and ended.code in {
        _SHELL_SIGNAL_BASE + signal.SIGTERM,
        _SHELL_SIGNAL_BASE + signal.SIGKILL,
    }:
        return ended.code - _SHELL_SIGNAL_BASE
    return ended.signal


def _cause_of_signal(number: int, *, drained: bool, overdue: bool) -> tuple[Cause, str]:
    if overdue and number == signal.SIGKILL:
        return Cause.OVERDUE, "ended: it did not finish within its grace"
    if drained and number == signal.SIGTERM:
        return Cause.DRAINED, ASKED_TO_FINISH
    return Cause.SIGNALLED, f"ended by {_signal_name(number)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
