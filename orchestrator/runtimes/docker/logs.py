"""Follows what containers write into the folder of workers' logs: one thread for all of them, a socket for each.

The time of a log file is the engine's time of its last line: from there the next supervisor goes on.
"""

import contextlib
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

import structlog

from orchestrator import events
from orchestrator.runtimes.docker.engine import DockerEngine, dial
from orchestrator.runtimes.docker.frames import Frames, NoLogError, Piece
from orchestrator.runtimes.docker.told import told
from orchestrator.runtimes.worker_logs import WorkerLogs

log = structlog.get_logger()

_CHUNK_BYTES: Final = 64 * 1024


@dataclass(eq=False, slots=True)
class Stream:
    """The output of one container; `ended` is set when there is no more to come."""

    worker: str
    pool: str
    container: str
    frames: Frames = field(default_factory=Frames)
    connection: socket.socket | None = None
    last: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class LogFollower:
    """All streams of one engine. Any thread may ask it to follow a container."""

    def __init__(self, engine: DockerEngine, logs: WorkerLogs) -> None:
        self._engine = engine
        self._logs = logs
        self._selector = selectors.EpollSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)
        self._asked: deque[Callable[[], None]] = deque()
        self._streams: dict[str, Stream] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def follow(self, *, worker: str, pool: str, container: str) -> threading.Event:
        """Write what this container writes to its worker's log, from where the log ends; once at a time.

        The answer is set when the container has no more to say, or cannot be heard.
        """
        known = self._streams.get(worker)
        if known is not None and not known.ended.is_set():
            return known.ended
        stream = self._streams[worker] = Stream(worker, pool, container, last=self._heard(worker))
        if self._is_closed:
            stream.ended.set()
            return stream.ended
        self._ask(lambda: self._open(stream))
        return stream.ended

    def forget(self, worker: str) -> None:
        """Nobody is interested in this worker any more."""
        stream = self._streams.pop(worker, None)
        if stream is not None and not self._is_closed:
            self._ask(lambda: self._end(stream))

    def close(self) -> None:
        """Let go of all streams; workers are not disturbed by it."""
        self._is_closed = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread is not None:
            self._thread.join()
        for stream in self._streams.values():
            self._end(stream)
        self._selector.close()
        os.close(self._wake_fd)

    def _ask(self, what: Callable[[], None]) -> None:
        self._asked.append(what)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="docker-logs", daemon=True)
            self._thread.start()
        os.eventfd_write(self._wake_fd, 1)

    def _heard(self, worker: str) -> int:
        """When the engine had the last line that we have, in nanoseconds of its clock; 0 when we have none."""
        try:
            status = self._logs.path(worker).stat()
        except OSError:
            return 0
        return status.st_mtime_ns if status.st_size else 0

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select():
                stream: Stream | None = key.data
                if stream is None:
                    os.eventfd_read(self._wake_fd)
                else:
                    self._read(stream)
            while self._asked:
                self._asked.popleft()()

    def _open(self, stream: Stream) -> None:
        try:
            stream.connection = dial(self._engine)
            stream.connection.sendall(_request(stream))
            stream.connection.setblocking(False)  # noqa: FBT003
            self._selector.register(stream.connection, selectors.EVENT_READ, stream)
        except OSError as error:
            log.debug(events.WORKER_UNHEARD, worker=stream.worker, error=str(error))
            self._end(stream)
            return
        if isinstance(stream.connection, ssl.SSLSocket) and stream.connection.pending():
            self._read(stream)

    def _read(self, stream: Stream) -> None:
        if stream.connection is None:
            return
        pieces: list[Piece] = []
        try:
            data = stream.connection.recv(_CHUNK_BYTES)
            while data:
                pieces += stream.frames.feed(data)
                # What TLS has decoded already makes no socket readable.
                more = stream.connection.pending() if isinstance(stream.connection, ssl.SSLSocket) else 0
                if not more:
                    break
                data = stream.connection.recv(more)
        except (BlockingIOError, ssl.SSLWantReadError):
            data = b"-"
        except (OSError, NoLogError) as error:
            log.debug(events.WORKER_UNHEARD, worker=stream.worker, error=str(error))
            data = b""
        if pieces:
            self._write(stream, pieces)
        if not data:
            self._end(stream)

    def _write(self, stream: Stream, pieces: list[Piece]) -> None:
        pieces.sort(key=lambda piece: piece.at)  # the engine has two pipes of each, and is late with one or the other
        stream.last = max(stream.last, *(piece.at for piece in pieces))
        file = self._logs.open(stream.worker)
        try:
            os.write(file, b"".join(piece.data for piece in pieces))
            if stream.last:
                os.utime(file, ns=(stream.last, stream.last))
        except OSError as error:  # a full disk, most likely: the rest of the worker goes on
            log.debug(events.WORKER_UNHEARD, worker=stream.worker, error=str(error))
        finally:
            os.close(file)
        for piece in pieces:
            told(piece.data, worker=stream.worker, pool=stream.pool)

    def _end(self, stream: Stream) -> None:
        if stream.connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(stream.connection)
            stream.connection.close()
            stream.connection = None
        stream.ended.set()


def _request(stream: Stream) -> bytes:
    seconds, nanoseconds = divmod(stream.last + 1, 1_000_000_000)
    since = f"{seconds}.{nanoseconds:09d}" if stream.last else "0"
    path = f"/containers/{quote(stream.container)}/logs?follow=1&stdout=1&stderr=1&timestamps=1&since={since}"
    # HTTP/1.0 has no chunks: what comes after the head is the output until the connection ends.
    return f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode()
