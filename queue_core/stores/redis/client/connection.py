"""The connection of one caller: a session that numbers its calls, and a driver connection to each server it called.

redis-py's connections are used without its pool and client, which halves the cost of a call.
"""

import contextlib
import select
import socket
import struct
from collections.abc import Callable, Sequence
from inspect import signature
from secrets import token_urlsafe
from typing import Protocol, TypeAlias, cast

from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError

from queue_core.clock import SystemClock
from queue_core.config.redis_url import RedisAddress, RedisUrl

Cell: TypeAlias = str | bytes | int | float
Answer: TypeAlias = "int | bytes | list[Answer] | None"
"""An answer in version 2 of Redis's protocol: numbers, bytes, nil, and lists of these."""

CONNECT_SECONDS = 2.0
"""The timeout of a connect."""
ANSWER_SECONDS = 3.0
"""The timeout of an answer; a server that is merely slow gets the same call again, which is harmless."""
LEAST_SECONDS = 0.25
"""The shortest timeout of a retry that must connect."""
FRESH_SECONDS = 0.05
"""A connection that was used this recently is not checked before it is used again."""
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 5000}
_UNNAMED: dict[str, object] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)
"""The options that keep redis-py from sending its name; they differ by its version."""
_ABRUPT = struct.pack("ii", 1, 0)


class RedisDriver(Protocol):
    """The part of redis-py's connection that is used here."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *words: Cell) -> None: ...

    def send_packed_command(self, command: Sequence[bytes]) -> None: ...

    def pack_commands(self, commands: Sequence[Sequence[Cell]]) -> Sequence[bytes]: ...

    def can_read(self, timeout: float) -> bool: ...

    def read_response(self) -> Answer: ...

    def fileno(self) -> int: ...


class _Abrupt:
    """Closing discards unsent data, so that a call that was given up can't arrive when the network is back."""

    def fileno(self) -> int:
        open_socket: socket.socket | None = self._sock  # type: ignore[attr-defined]
        return -1 if open_socket is None else open_socket.fileno()

    def _connect(self) -> socket.socket:
        connected: socket.socket = super()._connect()  # type: ignore[misc]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPT)
        return connected


class _Plain(_Abrupt, Connection): ...


class _Tls(_Abrupt, SSLConnection): ...


class _Local(_Abrupt, UnixDomainSocketConnection): ...


def new_driver(
    address: RedisAddress, url: RedisUrl, *, seconds: float | None = None, authenticated: bool = True, database: int = 0
) -> RedisDriver:
    """Return a driver connection that is not yet open; connect and answers time out after `seconds` at most."""
    options: dict[str, object] = {
        "db": database,
        "socket_timeout": ANSWER_SECONDS if seconds is None else min(ANSWER_SECONDS, seconds),
        "socket_connect_timeout": CONNECT_SECONDS if seconds is None else min(CONNECT_SECONDS, seconds),
        "protocol": 2,
        **_UNNAMED,
    }
    if authenticated:
        options |= {"username": url.username, "password": url.password}
    # Cast: releases of redis-py disagree about the types of what they build.
    if not address.port:
        return cast("Callable[..., RedisDriver]", _Local)(path=address.host, **options)
    options |= {
        "host": address.host,
        "port": address.port,
        "socket_keepalive": True,
        "socket_keepalive_options": _KEEPALIVE,
    }
    if url.is_tls:
        options |= {"ssl_check_hostname": True, **dict(url.tls_files)}
    return cast("Callable[..., RedisDriver]", _Tls if url.is_tls else _Plain)(**options)


class RedisConnection:
    """For one caller at a time. The calls of its session are numbered from 1."""

    def __init__(self, connect: Callable[[RedisAddress, float | None], RedisDriver]) -> None:
        """Args:
        connect: opens a checked driver connection with a timeout in seconds, None for the usual ones.
        """
        self.session = token_urlsafe(9).encode()
        self.number = 0
        self.is_sent = False
        self._connect = connect
        self._drivers: dict[RedisAddress, RedisDriver] = {}
        self._is_hasty = False
        self._monotonic = SystemClock().monotonic
        self._used_at = 0.0

    def execute(self, address: RedisAddress, command: Sequence[Cell], *, seconds: float | None = None) -> Answer:
        """Send one command and return its answer.

        Args:
            seconds: the timeout if a connection must be opened first; it is not kept if that is given.

        Raises the errors of redis-py; `is_sent` then says whether the server may have received the command.
        """
        driver = self._driver(address, seconds)
        try:
            self.is_sent = True
            driver.send_command(*command)
            return driver.read_response()
        except ResponseError:
            raise  # an answer, completely read: the connection is as good as before
        except BaseException:  # Ctrl-C too: the next caller must never read this call's answer
            self.drop(address)
            raise

    def execute_both(
        self, address: RedisAddress, first: Sequence[Cell], second: Sequence[Cell], *, seconds: float | None = None
    ) -> tuple[Answer, Answer]:
        """Send two commands in one write; an error is raised once both answers are read."""
        driver = self._driver(address, seconds)
        try:
            self.is_sent = True
            driver.send_packed_command(driver.pack_commands((first, second)))
            return _both_answers(driver)
        except ResponseError:
            raise
        except BaseException:
            self.drop(address)
            raise

    def _driver(self, address: RedisAddress, seconds: float | None) -> RedisDriver:
        self.is_sent = False
        driver = self._drivers.get(address)
        if driver is not None and self._monotonic() - self._used_at > FRESH_SECONDS and _is_over(driver):
            self.drop(address)  # a call sent on it would needlessly have an unknown outcome
            driver = None
        if driver is None:
            driver = self._connect(address, None if seconds is None else max(LEAST_SECONDS, seconds))
            self._drivers[address] = driver
            self._is_hasty = self._is_hasty or seconds is not None
        return driver

    def drop(self, address: RedisAddress) -> None:
        """Close the connection to one server."""
        driver = self._drivers.pop(address, None)
        if driver is not None:
            with contextlib.suppress(OSError, RedisError):
                driver.disconnect()

    def rest(self) -> None:
        """End a call; connections that were opened with a short timeout are closed."""
        self._used_at = self._monotonic()
        if self._is_hasty:
            self.close()

    def close(self) -> None:
        """Close all driver connections; the next call opens new ones."""
        self._is_hasty = False
        for address in list(self._drivers):
            self.drop(address)


def _is_over(driver: RedisDriver) -> bool:
    """Return whether the server has closed a connection on which no answer is pending."""
    poll = select.poll()
    poll.register(driver.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _both_answers(driver: RedisDriver) -> tuple[Answer, Answer]:
    try:
        first = driver.read_response()
    except ResponseError:
        driver.read_response()
        raise
    return first, driver.read_response()
