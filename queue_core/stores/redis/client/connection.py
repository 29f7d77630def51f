"""One caller's line to Redis: a session that numbers its calls, and a connection to each server it has called.

redis-py's connection is used without its pool and client: measured, that halves what a call costs here.
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
"""What Redis answers in its second protocol: numbers, bytes, nil, and lists of these."""

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 3.0
"""Silence after which a link counts as cut; a server that is merely slow gets the same call again, without harm."""
LEAST_SECONDS = 0.25
FRESH_SECONDS = 0.05
"""A connection used this lately is not looked at before it is used again."""
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 5000}
_UNNAMED: dict[str, object] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)
"""Saves telling the server the driver's name: redis-py changed how that is asked for."""
_ABRUPT = struct.pack("ii", 1, 0)


class RedisDriver(Protocol):
    """What is used of redis-py's connection."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *words: Cell) -> None: ...

    def send_packed_command(self, command: Sequence[bytes]) -> None: ...

    def pack_commands(self, commands: Sequence[Sequence[Cell]]) -> Sequence[bytes]: ...

    def can_read(self, timeout: float) -> bool: ...

    def read_response(self) -> Answer: ...

    def fileno(self) -> int: ...


class _Abrupt:
    """Closing discards what was not sent yet: a call that was given up must not arrive when the link is mended."""

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
    """A connection, not yet made, of which no step takes longer than `seconds`."""
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
    """Used by one caller at a time. Calls of its session are numbered from 1 in the order they are made."""

    def __init__(self, connect: Callable[[RedisAddress, float | None], RedisDriver]) -> None:
        """Args:
        connect: makes a connection whose server was looked at; None seconds: with the usual patience.
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
            seconds: patience for a connection that must be made first; one made with less than the usual is not kept.

        Raises what redis-py raises; `is_sent` then tells whether the server may have heard it.
        """
        driver = self._driver(address, seconds)
        try:
            self.is_sent = True
            driver.send_command(*command)
            return driver.read_response()
        except ResponseError:
            raise  # an answer, completely read: the connection is as good as before
        except BaseException:  # also a Ctrl-C: the next caller must never read this call's answer
            self.drop(address)
            raise

    def execute_both(
        self, address: RedisAddress, first: Sequence[Cell], second: Sequence[Cell], *, seconds: float | None = None
    ) -> tuple[Answer, Answer]:
        """Send two commands in one write; an error among the answers is raised once both are read."""
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
            self.drop(address)  # a call sent into it would have an unknown outcome, for nothing
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
        """End of a call: connections that were made in haste are closed."""
        self._used_at = self._monotonic()
        if self._is_hasty:
            self.close()

    def close(self) -> None:
        """Close all connections; the next call makes new ones."""
        self._is_hasty = False
        for address in list(self._drivers):
            self.drop(address)


def _is_over(driver: RedisDriver) -> bool:
    """Whether the server has closed a connection on which nothing is awaited."""
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
