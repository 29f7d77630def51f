"""Call the functions that Redis runs for this program, which are joined from `lua/` into one library.

The library's name has its version and content, so that two versions of the program can share a server: each calls the
functions of its own library. A refusal is raised as the store's error.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from struct import Struct, pack, unpack_from
from threading import local
from typing import NoReturn

from queue_core.clock import Instant
from queue_core.errors import OutcomeUnknownError, StoreCorruptError, UnknownQueueError, WorkerRetiredError
from queue_core.stores.redis.binary import parse_settings
from queue_core.stores.redis.client.client import FunctionLibrary, RedisClient
from queue_core.stores.redis.client.connection import Answer, Cell
from queue_core.stores.redis.keys import QUEUES, key_of, queue_of
from queue_core.stores.redis.signals import RedisSignals
from queue_core.task import QueueSpec
from queue_core.verbs import ClientCall, key_reused, too_old
from queue_core.verbs.validation import check_lease_time, check_not_moved

VERSION = 6
"""The version of the layout. Raise it when keys or records change so that an older program would misread them.

Since 2 a task may have its own bound of leases, which a program of version 1 drops with the next lease. Since 3 the
bytes of payloads may be counted, which a program of version 2 does not do. Since 4 a task may have headers, attempts,
progress and a checkpoint, which a program of version 3 would take for a part of its payload, or leave behind. Since 5
a task may have a priority and a queue limits, of which a program of version 4 knows nothing. Since 6 the record of a
lease tells of an id of Celery's, which a program of version 5 takes for a priority.
"""
HAS_WAITERS = 1
"""The flag of an answer for a queue that has waiters."""
HAS_ADMITTED = 8
"""The flag of an answer whose data begin with the numbers of tasks that limits admitted."""
MAX_ADMITTED = 1000
"""The most entries of admitted tasks that are kept for a thread until it takes them: they are hints."""
DATA = 2
"""The index at which the data of an answer begin: behind a letter and flags."""
MAX_CALLS = 64
"""The most calls of one queue's functions that one call of a client makes."""
# The bounds of one queue's kept answers and workers; beyond them the oldest sessions and any workers are forgotten.
MAX_SEEN_WORKERS = 100_000
MAX_SESSIONS = 20_000
MAX_ANSWER_BYTES = 64 << 20

_SHARED = ("base", "wake", "records")
_BLOCKS = (
    "idempotency",
    "settings",
    "queue",
    "names",
    "places",
    "filters",
    "lanes",
    "rotation",
    "expiry",
    "adds",
    "leases",
    "lease_ends",
    "holds",
    "changes",
    "reads",
    "history",
    "peek",
    "workers",
    "queues",
    "transfer",
    "check",
)
"""The files of `lua/` that are each put into a block of their own."""
_ENTRY = Struct(">HH")
_CHANGED_MEANWHILE = b"x"
_YES = ord("1")
_DONE, _UNKNOWN, _MOVED, _RETIRED, _TOO_LONG, _STALE, _REUSED, _FORGOTTEN = b"oumrlskf"


@lru_cache(maxsize=1)
def library() -> FunctionLibrary:
    """Return the library of this program."""
    folder = Path(__file__).with_name("lua")
    texts = {name: (folder / f"{name}.lua").read_text(encoding="utf-8") for name in (*_SHARED, *_BLOCKS)}
    blocks = [texts[name] for name in _SHARED] + [f"do\n{texts[name]}end\n" for name in _BLOCKS]
    source = "\n".join(blocks)
    bounds = f"calls = {MAX_CALLS}, workers = {MAX_SEEN_WORKERS}, sessions = {MAX_SESSIONS}"
    source = f"local MOST = {{ {bounds}, kept_bytes = {MAX_ANSWER_BYTES} }}\n{source}"
    name = f"towline_{VERSION}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return FunctionLibrary(f"{name}_", f"#!lua name={name}\nlocal PREFIX = '{name}_'\n{source}")


class Calls:
    """The calls of one opened store; thread-safe."""

    def __init__(self, client: RedisClient, signals: RedisSignals, *, in_cluster: bool) -> None:
        self.client = client
        self.in_cluster = in_cluster
        self.signals = signals
        self.is_repeatable = False
        self.plain = self
        """The calls without a client's call."""
        self.admitted = Admitted()

    def once_for_call(self, call: ClientCall) -> "Calls":
        """Return the calls for one call of a client: they take effect once, however often that call is repeated."""
        return IdempotentCalls(self, call)

    def close_call(self, queues: Sequence[str]) -> bool:  # noqa: ARG002 - these calls are no client's
        """See `CallOnce.close_call`."""
        return True

    def changed_before(self, queue: str) -> bytes | None:  # noqa: ARG002 - these calls are no client's
        """Return the tasks that the client's call changed before, as `change` was sent; None: it did not."""
        return None

    def change_held(self, queue: str, now: Instant, sent: bytes, outcomes: Sequence[bytes]) -> bool:
        """Call `change` of `lua/changes.lua`.

        False: a task is not as `hold` found it, or another try of the same call has changed other tasks.
        """
        args = (pack(">Q", now), b"1" if self.is_repeatable else b"0", sent, *outcomes)
        answer = self.send("change", (key_of(queue),), args)
        if isinstance(answer, bytes) and answer.startswith(_CHANGED_MEANWHILE):
            return False
        data = self.changed(answer, (queue,))
        return not self.is_repeatable or data[DATA:] == sent

    def send(self, verb: str, keys: Sequence[str], args: Sequence[Cell]) -> Answer:
        """Call a verb that changes something; see `RedisClient.call`."""
        return self.client.call(verb, keys, args)

    def change(self, verb: str, queue: str, *args: Cell, worker: str = "") -> bytes:
        """Call a verb that changes one queue. Raises the error of a refusal."""
        return self.change_several(verb, (queue,), args, worker=worker)

    def change_several(self, verb: str, queues: Sequence[str], args: Sequence[Cell], *, worker: str = "") -> bytes:
        """Call a verb that changes several queues at once. Raises the error of a refusal."""
        answer = self.send(verb, [key_of(queue) for queue in queues], args)
        return self.changed(answer, queues, worker=worker)

    def changed(self, answer: Answer, queues: Sequence[str], *, worker: str = "") -> bytes:
        """Check the answer of a call that changed these queues, and note whether they have waiters."""
        data = self.done(answer, worker=worker)
        if data[1] & HAS_ADMITTED:
            data = self._keep_admitted(data, queues)
        if data[1] & HAS_WAITERS:
            for queue in queues:
                self.signals.note_waiters(queue)
        return data

    def _keep_admitted(self, data: bytes, queues: Sequence[str]) -> bytes:
        """Keep what an answer tells of admitted tasks; return the answer without it."""
        (number,) = unpack_from(">H", data, DATA)
        at = DATA + 2
        for _ in range(number):
            index, size = _ENTRY.unpack_from(data, at)
            end = at + _ENTRY.size + size
            field = data[at + _ENTRY.size : end].decode()
            self.admitted.entries.append((queues[index], field[1:] or None, int.from_bytes(data[end : end + 4], "big")))
            at = end + 4
        return data[:DATA] + data[at:]

    def take_admitted(self) -> list[tuple[str, str | None, int]]:
        """Return, once, what the calls of this thread told of admitted tasks: queue, tag and number."""
        entries = list(self.admitted.entries)
        self.admitted.entries.clear()
        return entries

    def read(self, verb: str, queue: str, *args: Cell) -> bytes:
        """Call a verb that only reads one queue."""
        return self.done(self.client.read(verb, (key_of(queue),), args))

    def done(self, answer: Answer, *, worker: str = "") -> bytes:
        """Return the answer of a call that succeeded. Raises the error of a refusal."""
        if isinstance(answer, bytes) and answer:
            if answer[0] == _DONE:
                return answer
            self._refuse(answer, worker)
        raise StoreCorruptError(f"{self.client.url}: a Redis function gave an invalid answer: {type(answer).__name__}")

    def _refuse(self, answer: bytes, worker: str) -> NoReturn:
        letter, rest = answer[0], answer[1:]
        if letter == _UNKNOWN:
            raise self.unknown(queue_of(rest.decode()))
        if letter == _MOVED:
            key, _, moved_to = rest.decode().partition("\n")
            check_not_moved(QueueSpec(queue_of(key), moved_to=moved_to))
        if letter == _RETIRED:
            raise WorkerRetiredError(f"worker {worker} was retired: finish and exit")
        if letter == _TOO_LONG:
            (seconds,) = unpack_from(">d", rest)
            check_lease_time(parse_settings("the queue", rest[8:]), seconds)
        if letter == _STALE:
            raise OutcomeUnknownError("a later call of the same session was answered already; look before repeating")
        raise StoreCorruptError(f"{self.client.url}: a Redis function gave an unknown answer: {chr(letter)!r}")

    def unknown(self, name: str) -> UnknownQueueError:
        """Return the error for a queue that does not exist."""
        return UnknownQueueError.among(name, sorted(self.names())[:5])

    def names(self) -> list[str]:
        """Return the names of all queues, oldest first; a queue that is being dropped may be among them."""
        listed = self.client.execute(QUEUES, "ZRANGE", QUEUES, 0, -1)
        return [name.decode() for name in listed if isinstance(name, bytes)] if isinstance(listed, list) else []


class Admitted(local):
    """The entries of admitted tasks that answers to a thread's calls had."""

    def __init__(self) -> None:
        self.entries = deque[tuple[str, str | None, int]](maxlen=MAX_ADMITTED)


class IdempotentCalls(Calls):
    """The calls that one call of a client makes: Redis recognises a repeat of it, from whichever process (ADR 28)."""

    def __init__(self, calls: Calls, call: ClientCall) -> None:
        super().__init__(calls.client, calls.signals, in_cluster=calls.in_cluster)
        self.is_repeatable = True
        self.plain = calls.plain
        self.admitted = calls.admitted
        self._call = call
        self._is_repeat = call.is_repeat
        self._session = f"c.{call.session}"
        self._first = call.number * MAX_CALLS
        self._made: dict[str, int] = {}
        self._changed: dict[str, int] = {}

    def send(self, verb: str, keys: Sequence[str], args: Sequence[Cell]) -> Answer:
        """See `Calls.send`; each call has a number of its own, in the order in which the calls are made."""
        session = self._session_of_change(keys[0]) if verb == "change" else self._session
        number = self._number(keys[0])
        self._made[keys[0]] = self._made.get(keys[0], 0) + 1
        return self.client.call(verb, keys, args, call_id=(session, number))

    def _session_of_change(self, key: str) -> str:
        """Return the session of the next `change` of a queue: each has one of its own, so that all answers are kept."""
        changed = self._changed.get(key, 0)
        return f"{self._session}.{changed}" if changed else self._session

    def _number(self, key: str) -> int | str:
        """Return the number of the next call; behind it the fingerprint of the client's, and the age of a repeat."""
        call, number = self._call, self._first + min(self._made.get(key, 0), MAX_CALLS - 1)
        if call.is_repeat and call.age_seconds:
            return f"{number}{call.meaning}@{call.age_seconds}"
        return f"{number}{call.meaning}" if call.meaning else number

    def _refuse(self, answer: bytes, worker: str) -> NoReturn:
        if answer[0] == _REUSED:
            raise key_reused(self._call)
        if answer[0] == _FORGOTTEN:
            raise too_old(self._call)
        super()._refuse(answer, worker)

    def changed_before(self, queue: str) -> bytes | None:
        """See `Calls.changed_before`."""
        if not self._is_repeat:
            return None
        key = key_of(queue)
        data = self.done(self.client.read("changed_before", (key,), (self._session_of_change(key), self._number(key))))
        return data[DATA + 1 :] if data[DATA] == _YES else None

    def change_held(self, queue: str, now: Instant, sent: bytes, outcomes: Sequence[bytes]) -> bool:
        """See `Calls.change_held`. What was not done is tried again under the same number."""
        key = key_of(queue)
        is_done = super().change_held(queue, now, sent, outcomes)
        if is_done:
            self._changed[key] = self._changed.get(key, 0) + 1
        else:
            self._made[key] -= 1
            self._is_repeat = True
        return is_done

    def close_call(self, queues: Sequence[str]) -> bool:
        """See `CallOnce.close_call`. Every later try has a lower number than the one that is noted here."""
        numbers = pack(">QQ", self._first, self._first + MAX_CALLS - 1)
        args = (self._session, numbers, self._call.meaning.removeprefix("#"))
        closed = [self.done(self.client.call("close_call", (key_of(queue),), args))[DATA:] for queue in queues]
        return all(one == b"1" for one in closed)
