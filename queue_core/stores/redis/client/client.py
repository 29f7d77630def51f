"""The client of Redis: call functions of the library, and retry each call until it is answered or refused.

A changing call carries a session and a number before its own arguments. The functions keep the number and the answer of
each session's last call: the same number gets the same answer and changes nothing; a lower number, from a connection
that was given up, changes nothing either. So a call whose answer was lost is safely sent again. `errors` says what each
failure means.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn
from weakref import WeakSet

from redis.exceptions import RedisError, ResponseError

from queue_core.clock import MICROSECONDS, Instant
from queue_core.config.redis_url import RedisAddress, parse_url
from queue_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from queue_core.stores.redis.client.connection import Answer, Cell, RedisConnection, RedisDriver
from queue_core.stores.redis.client.errors import RedisFailure, failure_of
from queue_core.stores.redis.client.handshake import Handshake
from queue_core.stores.redis.client.topology import Key, topology_of
from queue_core.stores.redis.keys import CLOCK
from queue_core.stores.remote_clock import MAX_OPENING_READS, STALE_SECONDS, RemoteClock, decode_record

RETRY_SECONDS = 5.0
"""How long a call is retried, from its first failure on, if it changes nothing or may have taken effect."""
FRESH_SECONDS = 1.5
"""How long a changing call is retried that can't have arrived.

Short, as the call carries the instant of its first try: a lease that is granted late may end before its worker has it.
"""
HINT_SECONDS = 0.5
"""How long a hint, such as a wake-up, is retried."""
PAUSES_SECONDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""The pauses before retries; the last one repeats."""
_TIME = (b"TIME",)
_CLOCK_KEY = b""
"""The key whose node has the store's clock: in a cluster every node has a clock of its own."""


@dataclass(frozen=True, slots=True)
class FunctionLibrary:
    """The functions that calls name.

    Args:
        prefix: precedes each function's name in the source, with version and checksum, so that the functions of several
            versions live side by side.
        source: the argument of FUNCTION LOAD, with its `#!lua name=` line.
    """

    prefix: str
    source: str


class RedisClient:
    """Thread-safe: each call takes a connection of its own, the most recently used first."""

    def __init__(
        self,
        url: str,
        library: FunctionLibrary,
        *,
        durability: Literal["strict", "relaxed"] = "strict",
        clock: RemoteClock | None = None,
    ) -> None:
        """Connect to every server and check its settings.

        Raises `InvalidSettingError` for the URL, `StoreUnsafeError` for a server that can't keep what `durability`
        promises, `StoreUnavailableError` when none answers.
        """
        self.target = parse_url(url)
        self.clock = clock or RemoteClock()
        self._library = library
        self._names: dict[str, bytes] = {}
        self._topology = topology_of(self.target)
        self._handshake = Handshake(self.target, durability=durability)
        self._idle: list[RedisConnection] = []
        self._made: WeakSet[RedisConnection] = WeakSet()
        self._is_closed = False
        self._clock_read_at = 0.0
        self._open()

    @property
    def url(self) -> str:
        """The store's URL, without secrets."""
        return self.target.shown

    def call(
        self, function: str, keys: Sequence[Key], args: Sequence[Cell] = (), *, call_id: tuple[Cell, Cell] | None = None
    ) -> Answer:
        """Call a function that changes something: its arguments are session, number, then `args`.

        There is at least one key, and all keys are in one slot. `call_id` is a session and a number, with which another
        process may repeat the call; by default they are the connection's own. Raises `StoreUnavailableError` or a
        subclass when nothing took effect, `OutcomeUnknownError`, or `CallFailedError` for an error of the function.
        """
        connection = self._take()
        if call_id is None:
            connection.number += 1
            call_id = (connection.session, connection.number)
        command = (b"FCALL", self._name(function), len(keys), *keys, *call_id, *args)
        return self._finish(connection, keys[0], command, changes=True)

    def read(self, function: str, keys: Sequence[Key], args: Sequence[Cell] = ()) -> Answer:
        """Call a function registered with `no-writes`; it gets `args` only, and works where writes are refused."""
        command = (b"FCALL_RO", self._name(function), len(keys), *keys, *args)
        return self._finish(self._take(), keys[0], command, changes=False)

    def call_hint(self, function: str, keys: Sequence[Key], args: Sequence[Cell] = ()) -> Answer:
        """Call a function that may run twice and gets `args` only, such as a wake-up; retry for `HINT_SECONDS`."""
        command = (b"FCALL", self._name(function), len(keys), *keys, *args)
        return self._finish(self._take(), keys[0], command, changes=False, is_hint=True)

    def execute(self, key: Key, *command: Cell) -> Answer:
        """Run a command that changes nothing, or may run twice, on the server that holds `key`."""
        return self._finish(self._take(), key, command, changes=False)

    def address(self, key: Key) -> RedisAddress:
        """Return the server that holds `key`. Raises `StoreUnavailableError`."""
        try:
            return self._topology.address(key)
        except (RedisError, OSError) as error:
            raise failure_of(error, self.url).error from error

    def forget_topology(self) -> None:
        """Forget which server holds which key; the next call looks it up."""
        self._topology.forget()

    def connect(self, address: RedisAddress) -> RedisDriver:
        """Open a connection that the caller closes, with a single try.

        Raises `StoreUnavailableError` or `StoreUnsafeError`.
        """
        try:
            return self._handshake.connect(address, None)
        except (RedisError, OSError) as error:
            self._topology.forget()
            raise failure_of(error, str(address)).error from error

    def close(self) -> None:
        """Close the connections: those in use when their calls end, the others now."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`. Sessions are the parent's: a number that both used would count as one call."""
        self._idle = []
        made, self._made = self._made, WeakSet()
        for connection in made:
            connection.close()  # sends nothing: redis-py compares the process id
        self.clock.renew_after_fork()
        self._topology.renew_after_fork()
        self._handshake.renew_after_fork()

    # -- one call -------------------------------------------------------------------------------------------------

    def _name(self, function: str) -> bytes:
        name = self._names.get(function)
        if name is None:
            name = self._names[function] = (self._library.prefix + function).encode()
        return name

    def _take(self) -> RedisConnection:
        try:
            return self._idle.pop()  # a list's pop and append are atomic, and a lock would cost as much as they do
        except IndexError:
            if self._is_closed:
                raise StoreUnavailableError(f"the client of {self.url} was closed") from None
            return self._new_connection()

    def _new_connection(self) -> RedisConnection:
        connection = RedisConnection(self._handshake.connect)
        self._made.add(connection)
        return connection

    def _finish(
        self, connection: RedisConnection, key: Key, command: Sequence[Cell], *, changes: bool, is_hint: bool = False
    ) -> Answer:
        try:
            try:
                connection.is_sent = False
                address = self._topology.address(key)
                if self.clock.is_stale:
                    return self._send_with_time(connection, address, command)
                return connection.execute(address, command)
            except (RedisError, OSError) as error:
                longest_seconds = HINT_SECONDS if is_hint else RETRY_SECONDS
                return self._retry(connection, key, command, error, changes=changes, longest_seconds=longest_seconds)
        finally:
            connection.rest()
            self._idle.append(connection)
            if self._is_closed:
                self.close()

    # -- retries --------------------------------------------------------------------------------------------------

    def _retry(
        self,
        connection: RedisConnection,
        key: Key,
        command: Sequence[Cell],
        error: Exception,
        *,
        changes: bool,
        longest_seconds: float,
    ) -> Answer:
        """Retry the call while that may help and time is left."""
        began_at = self.clock.monotonic()
        is_unknown = False
        tries = handshakes = 0
        refusal: StoreError | None = None
        while True:
            failure = failure_of(error, self._address)
            is_unknown = is_unknown or (changes and connection.is_sent and not failure.is_answered)
            if refusal is None or failure.next != "load":  # a failure to load the library says more than "not found"
                refusal = failure.error
            may_last = longest_seconds if is_unknown or not changes else min(longest_seconds, FRESH_SECONDS)
            left = began_at + may_last - self.clock.monotonic()
            if failure.next == "stop" or left <= 0:
                _give_up(refusal, error, is_unknown=is_unknown)
            tries += 1
            if tries > 1:  # the first retry replaces a closed connection, which is not worth a log line
                self._handshake.note_lost(str(refusal), since=handshakes)
            handshakes = self._handshake.handshakes
            try:
                connection.is_sent = False
                return self._try_again(connection, key, command, failure, tries=tries, left=left)
            except (RedisError, OSError) as another:
                error = another
            except StoreError as final:
                _give_up(final, final, is_unknown=is_unknown)

    def _try_again(
        self,
        connection: RedisConnection,
        key: Key,
        command: Sequence[Cell],
        failure: RedisFailure,
        *,
        tries: int,
        left: float,
    ) -> Answer:
        if failure.next == "moved":
            if tries > 1:
                self._pause(tries, left)  # two nodes may point at each other
            self._topology.forget()
            return connection.execute(self._topology.follow(failure.to), command, seconds=left)
        if failure.next == "load":
            self._load(connection, self._topology.address(key), left)
        if failure.next in ("resend", "elsewhere"):
            connection.close()
            self._topology.forget()
        self._pause(tries, left)
        return connection.execute(self._topology.address(key), command, seconds=left)

    def _pause(self, tries: int, left: float) -> None:
        time.sleep(min(left, PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS)) - 1]))

    def _load(self, connection: RedisConnection, address: RedisAddress, left: float) -> None:
        try:
            connection.execute(address, (b"FUNCTION", b"LOAD", self._library.source), seconds=left)
        except ResponseError as error:
            if "already exists" not in str(error):  # another process was quicker
                raise
        connection.is_sent = False

    @property
    def _address(self) -> str:
        """The server, for messages."""
        return str(self.target.addresses[0]) if self.target.kind in ("server", "socket") else self.url

    def _open(self) -> None:
        connection = self._new_connection()
        try:
            reached = self._connect_all(connection)
            with contextlib.suppress(RedisError, OSError):
                for _ in range(MAX_OPENING_READS):
                    self._set_clock(connection, self._topology.address(_CLOCK_KEY))
                    if not self.clock.is_vague:
                        break
            if self.clock.is_stale:  # another node's time until its node is back: they should not differ by much
                self._set_clock(connection, reached)
        except (RedisError, OSError) as error:
            connection.close()
            raise failure_of(error, self._address).error from error
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _connect_all(self, connection: RedisConnection) -> RedisAddress:
        """Check every server that can be reached, and return one of them; others are checked on their first use.

        Raises the errors of redis-py when none can be reached, or one is unfit.
        """
        reached: list[RedisAddress] = []
        away: Exception | None = None
        for address in self._topology.primaries():
            try:
                connection.execute(address, (b"PING",))
                reached.append(address)
            except (RedisError, OSError) as error:
                if failure_of(error, str(address)).next == "stop":
                    raise
                away = error
        if not reached:
            raise away or RedisError("no server holds any key")
        return reached[0]

    # -- time -----------------------------------------------------------------------------------------------------

    def _send_with_time(self, connection: RedisConnection, address: RedisAddress, command: Sequence[Cell]) -> Answer:
        if self._topology.address(_CLOCK_KEY) == address:
            try:
                self._set_clock(connection, address)
            except BaseException:
                connection.is_sent = False  # the call itself was not
                raise
            return connection.execute(address, command)
        now = self.clock.monotonic()
        if now - self._clock_read_at > STALE_SECONDS:
            self._clock_read_at = now
            try:
                self._set_clock(connection, self._topology.address(_CLOCK_KEY))
            except (RedisError, OSError, StoreError):
                self._topology.forget()  # the clock runs on without its node
        return connection.execute(address, command)

    def _set_clock(self, connection: RedisConnection, address: RedisAddress) -> None:
        """Set the clock by a node's time, and by the record of its steps; keep the record if this is the first to see
        one."""
        kept_at = self._topology.address(CLOCK)
        sent_at = self.clock.since_boot()
        if kept_at == address:
            reply, kept = connection.execute_both(address, _TIME, (b"GET", CLOCK))
        else:
            reply = connection.execute(address, _TIME)
        received_at = self.clock.since_boot()
        if kept_at != address:
            kept = connection.execute(kept_at, (b"GET", CLOCK))
        if isinstance(reply, list) and len(reply) == 2:
            seconds, microseconds = (int(part) if isinstance(part, bytes) else 0 for part in reply)
            at = Instant(seconds * MICROSECONDS + microseconds)
            record = decode_record(kept.decode() if isinstance(kept, bytes) else "")
            self.clock.observe(at, sent_at=sent_at, received_at=received_at, record=record)
        if (unkept := self.clock.unkept) is not None:
            with contextlib.suppress(ResponseError):  # one that takes no writes now: the next answer is another chance
                connection.execute(kept_at, (b"SET", CLOCK, unkept.encode()))


def _give_up(refusal: StoreError, cause: Exception, *, is_unknown: bool) -> NoReturn:
    if is_unknown:
        raise OutcomeUnknownError(f"the answer was lost, and then: {refusal}; look before repeating") from cause
    raise refusal from cause
