"""Copy containers' output to the folder of workers' logs: one thread for all of them, a socket for each.

A log file's time is the engine's time of its last line: the next supervisor continues from there (ADR 12).
"""

import contextlib
import json
import os
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from orchestrator.base import events
from orchestrator.base.values import value
from orchestrator.runtimes.docker.container_state import nanoseconds
from orchestrator.runtimes.docker.engine import DockerEngine, dial
from orchestrator.runtimes.worker_logs import WorkerLogs
from queue_core.log import get_logger

log = get_logger()

MAX_LINE_CHARS: Final = 500
"""Length at which a text in the supervisor's log is cut."""
MAX_PAIRS: Final = 20
"""Keys of a worker's log entry that the supervisor's log repeats, at most."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""The longest HTTP head accepted."""
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""The longest frame accepted; a longer one means that the output has no frames."""
_HEADER_BYTES: Final = 8
_MAX_STAMP_BYTES: Final = 40
_CHUNK_BYTES: Final = 64 * 1024

_OURS: Final = frozenset({"worker", "pool", "event", "level", "timestamp", "wrote"})
_LOUD: Final = frozenset({"warning", "error", "critical"})


def log_output(data: bytes, *, worker: str, pool: str) -> None:
    """Log one piece of a worker's output."""
    line = data.decode(errors="replace").rstrip("\n")
    entry = parsed(line)
    if entry is None:
        log.debug(events.WORKER_WROTE, worker=worker, pool=pool, line=line[:MAX_LINE_CHARS])
        return
    write = log.warning if entry.get("level") in _LOUD else log.info
    pairs = [(name, value) for name, value in entry.items() if name not in _OURS][:MAX_PAIRS]
    write(events.WORKER_WROTE, worker=worker, pool=pool, wrote=entry["event"], **dict(pairs))


def parsed(line: str) -> dict[str, object] | None:
    """Return a line of a worker's JSON log as values, long texts cut; None for anything else."""
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
        return None
    return {
        name: value[:MAX_LINE_CHARS] if isinstance(value, str) else value
        for name, value in entry.items()
        if isinstance(value, str | int | float | bool | None)
    }


class NoLogError(Exception):
    """The engine does not send this container's output; the message says why."""


@value
class LogPiece:
    """A container's output at one instant: a line, or up to 16 KiB of a longer one. `at` in nanoseconds."""

    at: int
    data: bytes


class LogFrames:
    """Parses one stream of output: an HTTP head, then frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_head = False

    def feed(self, data: bytes) -> list[LogPiece]:
        """Return the pieces that are complete now. Raises `NoLogError`."""
        self._buffer += data
        if not self._has_head:
            head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not found:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise NoLogError("no answer of an engine")
                return []
            status = head.split(b"\r\n", 1)[0].split(b" ")
            if len(status) < 2 or status[1] != b"200":
                raise NoLogError(rest.decode(errors="replace").strip() or head.decode(errors="replace"))
            self._has_head = True
            self._buffer = bytearray(rest)
        return self._pieces()

    def _pieces(self) -> list[LogPiece]:
        pieces = []
        start = 0
        while len(self._buffer) - start >= _HEADER_BYTES:
            length = int.from_bytes(self._buffer[start + 4 : start + _HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise NoLogError("its output has no frames: it has a terminal")
            end = start + _HEADER_BYTES + length
            if end > len(self._buffer):
                break
            pieces.append(_piece(bytes(self._buffer[start + _HEADER_BYTES : end])))
            start = end
        del self._buffer[:start]
        return pieces


def _piece(frame: bytes) -> LogPiece:
    stamp, found, rest = frame.partition(b" ")
    instant = nanoseconds(stamp.decode(errors="replace")) if found and len(stamp) <= _MAX_STAMP_BYTES else None
    return LogPiece(0, frame) if instant is None else LogPiece(instant, rest)


@dataclass(eq=False, slots=True)
class OutputStream:
    """The output stream of one container; `ended` is set at its end."""

    worker: str
    pool: str
    container: str
    frames: LogFrames = field(default_factory=LogFrames)
    connection: socket.socket | None = None
    last: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class LogFollower:
    """All output streams of one engine. Any thread may follow a container."""

    def __init__(self, engine: DockerEngine, logs: WorkerLogs) -> None:
        self._engine = engine
        self._logs = logs
        self._selector = selectors.EpollSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)
        self._calls: deque[Callable[[], None]] = deque()
        self._streams: dict[str, OutputStream] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def follow(self, *, worker: str, pool: str, container: str) -> threading.Event:
        """Copy a container's output to its worker's log, from where the log ends; one stream per worker.

        The returned event is set when the output has ended or can't be read.
        """
        known = self._streams.get(worker)
        if known is not None and not known.ended.is_set():
            return known.ended
        stream = self._streams[worker] = OutputStream(worker, pool, container, last=self._last_line_at(worker))
        if self._is_closed:
            stream.ended.set()
            return stream.ended
        self._call(lambda: self._open(stream))
        return stream.ended

    def forget(self, worker: str) -> None:
        """Stop following this worker."""
        stream = self._streams.pop(worker, None)
        if stream is not None and not self._is_closed:
            self._call(lambda: self._end(stream))

    def close(self) -> None:
        """Close all streams; this does not disturb the workers."""
        self._is_closed = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None:
            self._thread.join()
        for stream in self._streams.values():
            self._end(stream)
        self._selector.close()
        os.close(self._wake_fd)

    def _call(self, what: Callable[[], None]) -> None:
        self._calls.append(what)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="docker-logs", daemon=True)
            self._thread.start()
        os.eventfd_write(self._wake_fd, 1)

    def _last_line_at(self, worker: str) -> int:
        """Return the engine's time of our log's last line, in nanoseconds since the epoch; 0 without one."""
        try:
            status = self._logs.path(worker).stat()
        except OSError:
            return 0
        return status.st_mtime_ns if status.st_size else 0

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select():
                stream: OutputStream | None = key.data
                if stream is None:
                    os.eventfd_read(self._wake_fd)
                else:
                    self._read(stream)
            while self._calls:
                self._calls.popleft()()

    def _open(self, stream: OutputStream) -> None:
        try:
            stream.connection = dial(self._engine)
            stream.connection.sendall(_request(stream))
            stream.connection.setblocking(False)  # noqa: FBT003
            self._selector.register(stream.connection, selectors.EVENT_READ, stream)
        except OSError as error:
            log.debug(events.WORKER_OUTPUT_LOST, worker=stream.worker, error=str(error))
            self._end(stream)
            return
        if isinstance(stream.connection, ssl.SSLSocket) and stream.connection.pending():
            self._read(stream)

    def _read(self, stream: OutputStream) -> None:
        if stream.connection is None:
            return
        pieces: list[LogPiece] = []
        try:
            data = stream.connection.recv(_CHUNK_BYTES)
            while data:
                pieces += stream.frames.feed(data)
                # Data that TLS has already decoded does not make the socket readable.
                more = stream.connection.pending() if isinstance(stream.connection, ssl.SSLSocket) else 0
                if not more:
                    break
                data = stream.connection.recv(more)
        except (BlockingIOError, ssl.SSLWantReadError):
            data = b"-"
        except (OSError, NoLogError) as error:
            log.debug(events.WORKER_OUTPUT_LOST, worker=stream.worker, error=str(error))
            data = b""
        if pieces:
            self._write(stream, pieces)
        if not data:
            self._end(stream)

    def _write(self, stream: OutputStream, pieces: list[LogPiece]) -> None:
        pieces.sort(key=lambda piece: piece.at)  # stdout and stderr are two pipes, and either may be late
        stream.last = max(stream.last, *(piece.at for piece in pieces))
        file = self._logs.open(stream.worker)
        try:
            os.write(file, b"".join(piece.data for piece in pieces))
            if stream.last:
                os.utime(file, ns=(stream.last, stream.last))
        except OSError as error:  # a full disk, most likely: the worker goes on
            log.debug(events.WORKER_OUTPUT_LOST, worker=stream.worker, error=str(error))
        finally:
            os.close(file)
        for piece in pieces:
            log_output(piece.data, worker=stream.worker, pool=stream.pool)

    def _end(self, stream: OutputStream) -> None:
        if stream.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(stream.connection)
            stream.connection.close()
            stream.connection = None
        stream.ended.set()


def _request(stream: OutputStream) -> bytes:
    seconds, nanoseconds = divmod(stream.last + 1, 1_000_000_000)
    since = f"{seconds}.{nanoseconds:09d}" if stream.last else "0"
    path = f"/containers/{quote(stream.container)}/logs?follow=1&stdout=1&stderr=1&timestamps=1&since={since}"
    # HTTP/1.0 has no chunks: after the head comes the output, until the connection ends.
    return f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode()
