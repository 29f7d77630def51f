"""Logging of a process, and the lifecycle log file. A log that can't be written costs lines, never work.

Only commands call `configure`; libraries just log.
"""

import contextlib
import errno
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, Literal

from queue_core.log import get_logger  # isort: skip - first: it spares structlog an import
import structlog

from queue_core.clock import Clock, SystemClock
from queue_core.errors import InvalidSettingError
from queue_core.events import LOG_LINES_LOST, LOG_RECOVERED, Lifecycle, QueueEvent
from queue_core.process import forking
from queue_core.process.private_files import FILE_MODE
from queue_core.process.terminal import allows_colours, clean

Level = Literal["debug", "info", "warning", "error"]

LIBRARY_LOGGED: Final = "library.logged"
"""A library wrote a warning or an error to its own log."""
PROGRAM_LOGGED: Final = "program.logged"
"""The application wrote to its own log."""
_LIBRARIES: Final = ("asyncio", "uvicorn")
"""Standard-library loggers of the server's loop and connections, whose warnings are logged too."""
LOSS_LOG_SECONDS: Final = 60.0
"""Shortest time between two warnings about lost lines of the lifecycle log."""

log = get_logger()

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(
    *,
    level: Level = "info",
    shape: Literal["auto", "json", "text"] = "auto",
    sink: Callable[[Mapping[str, object]], None] | None = None,
) -> None:
    """Log to stderr: coloured lines on a terminal, else a JSON object a line.

    Args:
        level: the lowest level that is logged.
        shape: `auto` is text on a terminal, else JSON.
        sink: gets each entry, with a traceback as text in `exception`, in place of stderr. It must not block.
    """
    is_text = shape == "text" or (shape == "auto" and sys.stderr.isatty())
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,  # a worker's handlers have their task there
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not is_text),
    ]
    last: list[structlog.typing.Processor]
    if sink is not None:
        last = [structlog.processors.format_exc_info, _handing_over(sink)]
    elif is_text:
        colours = sys.stderr.isatty() and allows_colours()
        shown = structlog.dev.ConsoleRenderer(colors=colours, pad_event_to=22)
        last = [_short_time, _clean_values, shown]
    else:
        rendered = structlog.processors.JSONRenderer(serializer=_dumps)
        last = [structlog.processors.format_exc_info, _ordered, rendered]
    structlog.configure(
        processors=before + last,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        # Unbuffered: a rest that a closed stderr did not take would make the process fail at its exit.
        logger_factory=_LineLoggers(getattr(sys.stderr.buffer, "raw", sys.stderr.buffer)),
        cache_logger_on_first_use=True,
    )
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _LibraryHandler) for handler in logger.handlers):
            logger.addHandler(_LibraryHandler(_LEVELS["warning"]))


def configure_program() -> None:
    """Log what the user's program logs by the standard library's `logging` as our own lines, with its task.

    Nothing where the program has configured `logging` or structlog itself. The level stays the program's own: warnings,
    unless it sets another.
    """
    root = logging.getLogger()
    if not root.handlers and isinstance(structlog.get_config()["logger_factory"], _LineLoggers):
        root.addHandler(_ProgramHandler())


class _LibraryHandler(logging.Handler):
    """Logs records of the standard library's `logging` through structlog."""

    event = LIBRARY_LOGGED

    def logger(self) -> structlog.typing.FilteringBoundLogger:
        """Return the logger to write to."""
        return get_logger()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        error = record.exc_info[1] if record.exc_info else None
        self.logger().log(
            min(record.levelno, logging.ERROR),
            self.event,
            logger=record.name,
            message=record.getMessage(),
            exc_info=error,
        )


class _ProgramHandler(_LibraryHandler):
    """Logs the records of a user's program, by the logger configured now: a later one may lead back to `logging`."""

    event = PROGRAM_LOGGED

    def __init__(self) -> None:
        super().__init__()
        self._logger: structlog.typing.FilteringBoundLogger = get_logger().bind()

    def logger(self) -> structlog.typing.FilteringBoundLogger:
        """See `_LibraryHandler.logger`."""
        return self._logger

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out the records that a `_LibraryHandler` logs."""
        return record.name.partition(".")[0] not in _LIBRARIES and bool(super().filter(record))


@contextlib.contextmanager
def warnings_to_stderr() -> Iterator[None]:
    """Log only warnings, to stderr, during a command whose stdout is its result."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS["warning"]),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        if not was_configured:
            structlog.reset_defaults()


class LifecycleFile:
    """An `EventLog` in a file, one JSON object per line. A full disk costs lines, never a task.

    Lost lines are counted and logged at most once a minute. A file that was moved away (by logrotate) is created again.
    """

    def __init__(self, path: Path, *, lifecycle: Lifecycle, clock: Clock | None = None) -> None:
        """Raises `OSError` when the file can't be opened, `InvalidSettingError` when it is no file."""
        self.lifecycle: Lifecycle = lifecycle
        self.dropped_total = 0
        self._path = path
        self._file = _opened(path)
        self._lock = Lock()
        forking.renew_after_forks(self)
        self._clock = clock or SystemClock()
        self._is_torn = False
        self._warned_at: float | None = None
        self._warned_total = 0

    def renew_after_fork(self) -> None:
        """Replace the lock in the child of a fork, which appends whole lines to the same file."""
        self._lock = Lock()

    def record(self, events: Sequence[QueueEvent]) -> None:
        """See `EventLog.record`."""
        lines = b"".join(_line(event) for event in events)
        with self._lock:
            written: int | None = None
            reason = "cut short"
            try:
                self._reopen_if_moved()
                if self._is_torn:
                    lines = b"\n" + lines
                written = self._file.write(lines)
            except (OSError, ValueError, InvalidSettingError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            if written == len(lines):
                self._is_torn = False
                if self._warned_at is not None:
                    self._log_recovered()
            else:
                self._is_torn = self._is_torn or bool(written)
                self.dropped_total += len(events)
                self._log_lost(reason)

    def close(self) -> None:
        """Close the file; later events are dropped."""
        with self._lock, contextlib.suppress(OSError):
            self._file.close()

    def _log_lost(self, reason: str) -> None:
        now = self._clock.monotonic()
        if self._warned_at is None or now - self._warned_at >= LOSS_LOG_SECONDS:
            lost, self._warned_at, self._warned_total = self.dropped_total - self._warned_total, now, self.dropped_total
            log.warning(LOG_LINES_LOST, path=str(self._path), lines=lost, total=self.dropped_total, error=reason)

    def _log_recovered(self) -> None:
        log.info(LOG_RECOVERED, path=str(self._path), lost=self.dropped_total)
        self._warned_at, self._warned_total = None, self.dropped_total

    def _reopen_if_moved(self) -> None:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        ours = os.fstat(self._file.fileno())
        if there is None or (there.st_ino, there.st_dev) != (ours.st_ino, ours.st_dev):
            anew = _opened(self._path)
            self._file.close()
            self._file = anew
            self._is_torn = False


def _opened(path: Path) -> FileIO:
    """Open the file for appending. Never blocks: a FIFO needs a reader, and loses lines if the reader is slow."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISDIR(mode):
        raise InvalidSettingError(f"log: {path} is a folder: name a file in it, such as {path / 'lifecycle.jsonl'}")
    if stat.S_ISSOCK(mode) or stat.S_ISBLK(mode):
        raise InvalidSettingError(f"log: {path} is not a file: name one")
    nonblocking = os.O_NONBLOCK if stat.S_ISFIFO(mode) else 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | nonblocking, FILE_MODE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise InvalidSettingError(f"log: {path} is a FIFO without a reader: start its reader first") from error
    return FileIO(descriptor, "ab")


def _line(event: QueueEvent) -> bytes:
    given = {name: value for name in _EVENT_FIELDS if (value := getattr(event, name)) is not None}
    return json.dumps(given, separators=(",", ":")).encode() + b"\n"


_EVENT_FIELDS: Final = tuple(field.name for field in fields(QueueEvent))


def _dumps(value: object, **_settings: object) -> bytes:
    return json.dumps(value, default=str, separators=(",", ":")).encode()


def _ordered(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Put time, level and event first."""
    return {name: event.pop(name) for name in ("timestamp", "level", "event")} | dict(event)


def _handing_over(sink: Callable[[Mapping[str, object]], None]) -> structlog.typing.Processor:
    """Return a processor that hands an entry over, so that nothing is left to write."""

    def handed_over(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        sink(event)
        raise structlog.DropEvent

    return handed_over


def _short_time(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Shorten the timestamp to the time of day, for a terminal."""
    event["timestamp"] = str(event["timestamp"])[11:23]
    return event


def _clean_values(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters in values, which a terminal would obey; JSON escapes them itself."""
    return {name: clean(value) if isinstance(value, str) else value for name, value in event.items()}


class _LineLoggers:
    """A structlog logger factory whose loggers share one stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._logger = _LineLogger(stream)

    def __call__(self, *_arguments: object) -> "_LineLogger":
        return self._logger


class _LineLogger:
    """Writes whole lines; drops them when the stream fails (a closed pipe, a full disk)."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = Lock()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """Replace the lock in the child of a fork."""
        self._lock = Lock()

    def msg(self, message: str | bytes) -> None:
        """Write one line at once."""
        line = (message if isinstance(message, bytes) else message.encode("utf-8", "backslashreplace")) + b"\n"
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()

    debug = info = warning = warn = error = critical = exception = fatal = log = msg
