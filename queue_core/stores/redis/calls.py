"""Calls of the functions of our library: what refuses a call is raised, that somebody waits is passed on."""

from collections.abc import Callable, Sequence
from struct import unpack_from
from typing import NoReturn

from queue_core.errors import OutcomeUnknownError, StoreCorruptError, UnknownQueueError, WorkerRetiredError
from queue_core.store import ClientCall
from queue_core.stores.redis.binary import parse_settings
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.client.connection import Answer, Cell
from queue_core.stores.redis.keys import QUEUES, key_of, queue_of
from queue_core.stores.redis.signals import RedisSignals
from queue_core.task import QueueSpec
from queue_core.validation import check_lease_time, check_not_moved

HAS_WAITERS = 1
"""The flag of an answer that says that somebody waits on the queue."""
DATA = 2
"""Where in an answer its data begin: after a letter and flags."""

_DONE, _UNKNOWN, _MOVED, _RETIRED, _TOO_LONG, _STALE = b"oumrls"


class Calls:
    """The calls of one opened store; for several threads."""

    def __init__(self, client: RedisClient, signals: RedisSignals, *, in_cluster: bool) -> None:
        self.client = client
        self.in_cluster = in_cluster
        self.forget: Callable[[str], None] = lambda _: None
        self.signals = signals
        self.is_repeatable = False

    def of_call(self, call: ClientCall) -> "Calls":
        """The same for one call of a client: what changes a queue takes effect once however often that is made."""
        return IdempotentCalls(self, call)

    def send(self, verb: str, keys: Sequence[str], args: Sequence[Cell]) -> Answer:
        """Call a verb that changes something; see `RedisClient.call`."""
        return self.client.call(verb, keys, args)

    def change(self, verb: str, queue: str, *args: Cell, worker: str = "") -> bytes:
        """Call a verb that changes one queue. Raises for what refuses it."""
        answer = self.send(verb, (key_of(queue),), args)
        data = self.done(answer, worker=worker)
        if data[1] & HAS_WAITERS:
            self.signals.note_waiters(queue)
        return data

    def change_several(
        self,
        verb: str,
        queues: Sequence[str],
        args: Sequence[Cell],
        *,
        worker: str = "",
    ) -> bytes:
        """Call a verb that changes several queues at once, and begins with the first."""
        answer = self.send(verb, [key_of(queue) for queue in queues], args)
        return self.changed(answer, queues, worker=worker)

    def changed(self, answer: Answer, queues: Sequence[str], *, worker: str = "") -> bytes:
        """The answer of a call that changed these queues; whether somebody waits on them is passed on."""
        data = self.done(answer, worker=worker)
        if data[1] & HAS_WAITERS:
            for queue in queues:
                self.signals.note_waiters(queue)
        return data

    def note_waiters(self, queue: str) -> None:
        """Somebody may wait on the queue: what became leasable is to be published."""
        self.signals.note_waiters(queue)

    def read(self, verb: str, queue: str, *args: Cell) -> bytes:
        """Call a verb that only looks at one queue."""
        return self.done(self.client.read(verb, (key_of(queue),), args))

    def done(self, answer: Answer, *, worker: str = "") -> bytes:
        """The answer of a call that was done. Raises for what refused it."""
        if isinstance(answer, bytes) and answer:
            if answer[0] == _DONE:
                return answer
            self._refuse(answer, worker)
        raise StoreCorruptError(f"{self.client.url}: a function of ours answered out of form: {type(answer).__name__}")

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
        raise StoreCorruptError(f"{self.client.url}: a function of ours answered {chr(letter)!r}")

    def unknown(self, name: str) -> UnknownQueueError:
        """The error that says that there is no such queue; a shard is told as the queue it is of."""
        queue = name.partition(":")[0]
        self.forget(queue)
        known = {each.partition(":")[0] for each in self.names()}
        return UnknownQueueError.among(queue, sorted(known)[:5])

    def names(self) -> list[str]:
        """All queues, in the order of their birth; one that is just being dropped may be among them."""
        listed = self.client.execute(QUEUES, "ZRANGE", QUEUES, 0, -1)
        return [name.decode() for name in listed if isinstance(name, bytes)] if isinstance(listed, list) else []


MAX_CALLS = 64
"""Calls of one queue's functions that a client's call may come to."""


class IdempotentCalls(Calls):
    """The calls that one call of a client comes to: a repeat of it is known to Redis, whichever process makes it."""

    def __init__(self, calls: Calls, call: ClientCall) -> None:
        super().__init__(calls.client, calls.signals, in_cluster=calls.in_cluster)
        self.forget = calls.forget
        self.is_repeatable = True
        self._session = f"c.{call.session}"
        self._first = call.number * MAX_CALLS
        self._made: dict[str, int] = {}

    def send(self, verb: str, keys: Sequence[str], args: Sequence[Cell]) -> Answer:
        """See `Calls.send`: each has a number of its own, in the order in which they are made."""
        number = self._made.get(keys[0], 0)
        self._made[keys[0]] = number + 1
        return self.client.call(verb, keys, args, call_id=(self._session, self._first + min(number, MAX_CALLS - 1)))
