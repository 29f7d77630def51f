"""Histories of callers: requests and answers, written before and after every call so that a kill can't erase them."""

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from pydantic import TypeAdapter, ValidationError

from queue_core.task import Lease, NewTask, TagFilter
from tests.faults.skewed_clock import true_time_ns

Verb = Literal["add", "lease", "renew", "release", "delete", "delete_by_name", "release_worker"]
Outcome = Literal["ok", "fail", "unknown"]
"""`fail`: the caller learned that nothing changed. `unknown`: killed before the answer, or the answer left it open."""


@dataclass(frozen=True, slots=True)
class RequestedAdd:
    """One task of an add. `uid` is known before the call: its given name, or the start of its payload."""

    uid: str
    digest: str
    queue: str
    name: str | None = None
    tag: str | None = None
    eta: int | None = None
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RequestedEnd:
    """One token given to renew, release or delete, and what a delete adds in the same transaction."""

    token: str
    then: tuple[RequestedAdd, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call of one verb. A lease with `ends` is an exchange: it deletes them first.

    `failure`: the message of the error that a release gave; "" for none.
    """

    verb: Verb
    queue: str = ""
    adds: tuple[RequestedAdd, ...] = ()
    ends: tuple[RequestedEnd, ...] = ()
    count: int = 0
    seconds: float = 0.0
    delay_seconds: float | None = None
    charge: Literal["counted", "uncounted"] = "counted"
    filter_kind: Literal["any", "tags", "untagged", "oldest"] = "any"
    tags: tuple[str, ...] = ()
    worker: str = ""
    names: tuple[str, ...] = ()
    failure: str = ""

    @property
    def filter(self) -> TagFilter:
        """The tasks a lease may take."""
        return TagFilter(self.filter_kind, self.tags)


@dataclass(frozen=True, slots=True)
class ReturnedLease:
    """A lease as its worker got it."""

    uid: str
    name: str
    digest: str
    token: str
    number: int
    leased_at: int
    expires_at: int
    ready_at: int
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class ReturnedAdd:
    """An add's answer for one task. Empty `status`: it is in the queue, since an unknown time."""

    name: str
    status: Literal["added", "exists", "tombstoned", ""]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call; `lost` are the tokens it refused, `ends` maps renewed tokens to their new ends."""

    added: tuple[ReturnedAdd, ...] = ()
    leases: tuple[ReturnedLease, ...] = ()
    lost: tuple[str, ...] = ()
    ends: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()


NO_ANSWER = Answer()


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The wall clock in microseconds, comparable with the queue's instants, and CLOCK_MONOTONIC in nanoseconds."""

    at: int
    ns: int


@dataclass(frozen=True, slots=True)
class Invoked:
    """The line written before a call."""

    call: int
    moment: ClockReading
    request: RequestedCall


@dataclass(frozen=True, slots=True)
class Answered:
    """The line written after a call returned or raised."""

    call: int
    moment: ClockReading
    outcome: Outcome
    error: str = ""
    answer: Answer = NO_ANSWER


@dataclass(frozen=True, slots=True)
class HistoryCall:
    """An invocation and its answer; without one its outcome is `unknown`."""

    request: RequestedCall
    invoked: ClockReading
    outcome: Outcome = "unknown"
    answered: ClockReading | None = None
    answer: Answer = NO_ANSWER
    error: str = ""
    process: str = ""


class History(Protocol):
    """The target of a recording caller."""

    def write(self, line: Invoked | Answered) -> None:
        """Keep the line, even if the process is killed next."""


_LINES: TypeAdapter[Invoked | Answered] = TypeAdapter(Invoked | Answered)


class FileHistory:
    """One process's file. Each line is one unbuffered append, so it survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def write(self, line: Invoked | Answered) -> None:
        """See `History.write`."""
        os.write(self._fd, _LINES.dump_json(line) + b"\n")


class MemoryHistory:
    """One process's lines in memory, for faults that the process survives; thread-safe."""

    def __init__(self) -> None:
        self._lines: list[Invoked | Answered] = []
        self._lock = threading.Lock()

    def write(self, line: Invoked | Answered) -> None:
        """See `History.write`."""
        with self._lock:
            self._lines.append(line)

    def __len__(self) -> int:
        return len(self._lines)

    def calls(self, *, first_lines: int | None = None) -> list[HistoryCall]:
        """Return the calls; with `first_lines`, as of when the history was that long."""
        return pair(self._lines[:first_lines])


def read_clocks() -> ClockReading:
    """Read both clocks; the true time, also in a process with a skewed wall clock."""
    return ClockReading(true_time_ns() // 1000, time.monotonic_ns())


def read_histories(directory: Path) -> list[HistoryCall]:
    """Return all calls of all processes that wrote into `directory`; a last line cut by a kill is ignored."""
    calls: list[HistoryCall] = []
    for path in sorted(directory.glob("*.jsonl")):
        calls.extend(pair(_lines_of(path), process=path.stem))
    return calls


def _lines_of(path: Path) -> Iterator[Invoked | Answered]:
    raw = path.read_bytes().split(b"\n")
    for number, text in enumerate(raw):
        if not text:
            continue
        try:
            yield _LINES.validate_json(text)
        except ValidationError:
            if number != len(raw) - 1:
                raise


def pair(lines: Iterable[Invoked | Answered], *, process: str = "") -> list[HistoryCall]:
    """Match invocations with answers, in order of invocation."""
    calls: dict[int, HistoryCall] = {}
    for line in lines:
        if isinstance(line, Invoked):
            calls[line.call] = HistoryCall(line.request, line.moment, process=process)
        else:
            call = calls[line.call]
            calls[line.call] = HistoryCall(
                call.request, call.invoked, line.outcome, line.moment, line.answer, line.error, process
            )
    return list(calls.values())


def digest_of(payload: bytes, headers: Mapping[str, str] | None = None) -> str:
    """Return a digest of a payload and its headers."""
    hashed = blake2b(payload, digest_size=8)
    if headers:
        hashed.update(json.dumps(dict(headers), sort_keys=True).encode())
    return f"{len(payload)}:{hashed.hexdigest()}+{len(headers or ())}"


def uid_of(name: str | None, payload: bytes) -> str:
    """Return a task's unique id: its given name, or else its payload up to the first `;`."""
    if name is not None and not name.startswith("_"):
        return name
    return payload[:80].partition(b";")[0].decode("utf-8", "replace")


def requested_adds(tasks: Sequence[NewTask], queue: str) -> tuple[RequestedAdd, ...]:
    """Return new tasks as the history records them."""
    return tuple(
        RequestedAdd(
            uid_of(task.name, task.payload),
            digest_of(task.payload, task.headers),
            task.queue or queue,
            task.name,
            task.tag,
            task.eta,
            task.delay_seconds,
        )
        for task in tasks
    )


def returned_lease(lease: Lease) -> ReturnedLease:
    """Return a lease as the history records it."""
    return ReturnedLease(
        uid_of(lease.name, lease.payload),
        lease.name,
        digest_of(lease.payload, lease.headers),
        lease.token,
        lease.lease_number,
        lease.leased_at,
        lease.expires_at,
        lease.ready_at,
        lease.tag,
    )


NUMBERS_EACH = 1_000_000_000


class NumberedHistory:
    """Writes into another history, with one caller's call numbers shifted so that callers don't collide."""

    def __init__(self, history: History, caller: int) -> None:
        self._history = history
        self._offset = caller * NUMBERS_EACH

    def write(self, line: Invoked | Answered) -> None:
        """See `History.write`."""
        self._history.write(replace(line, call=line.call + self._offset))
