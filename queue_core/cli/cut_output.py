"""Guard against a stdout that is cut (its reader gone, its disk full) while a command changes something.

The change in progress is finished in any case, and the command reports on stderr what was done.
"""

import array
import errno
import fcntl
import io
import os
import select
import stat
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, TextIO

from queue_core.cli.output import print_info

WhenCut = Literal["stop", "stderr", "count"]
"""A command's behaviour when stdout is cut: "stop", if it only shows; "stderr": go on, and repeat its output there;
"count": go on without output, if it prints a count on stderr at its end."""

MAX_REPEATED_LINES: Final = 1000
"""Lines that are repeated on stderr at most: as many as one call leases."""
MAX_REPEATED_CHARACTERS: Final = 8 << 20
UNREAD_CHECKS: Final = 100
UNREAD_CHECK_MILLISECONDS: Final = 10


class OutputCutError(Exception):
    """Stdout was cut. `is_reader_gone`: by its reader; `is_reported`: stderr says so already."""

    def __init__(self, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        self.is_reader_gone = isinstance(error, BrokenPipeError)
        self.is_reported = False
        super().__init__(self.reason)


class _GuardedOutput(io.TextIOBase):
    """A text stream in front of another one: a failed write is recorded, and all further output is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failed: OutputCutError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.stream.errors

    @property
    def buffer(self) -> object:
        return self.stream.buffer

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        size = len("" + text)  # raises TypeError for bytes, by which click recognises text streams
        if self.failed is None:
            try:
                self.stream.write(text)
            except OSError as error:
                self._fail(error)
        return size

    def flush(self) -> None:
        if self.failed is None and not self.stream.closed:
            try:
                self.stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> OutputCutError:
        self.failed = OutputCutError(error)
        return self.failed


class _StoppingOutput(_GuardedOutput):
    """Stdout of a command that only shows: a failed write ends it."""

    def _fail(self, error: OSError) -> OutputCutError:
        raise super()._fail(error) from error


class _RepeatingOutput(_GuardedOutput):
    """Stdout of a command that changes something: all its output is repeated on stderr when stdout is cut.

    A reader that is gone may have left most of its input unread, or not shown what it read.
    """

    def __init__(self, stream: TextIO, *, limit: int) -> None:
        super().__init__(stream)
        self._limit = limit
        self._written: list[str] = []
        self._left = MAX_REPEATED_CHARACTERS if limit else 0

    def write(self, text: str) -> int:
        size = super().write(text)
        if self._left > 0:
            self._left -= size
            self._written.append(text)
        return size

    def end(self) -> None:
        """Flush, and fail if the reader is gone without reading all."""
        self.flush()
        if self.failed is None and _is_left_unread(self.stream):
            self._fail(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def repeat_on_stderr(self) -> None:
        """Print on stderr what was written to stdout."""
        lines = "".join(self._written).splitlines()
        for line in lines[: self._limit]:
            print_info(line)
        if len(lines) > self._limit or (self._limit and self._left <= 0):
            print_info("and more")

    def _fail(self, error: OSError) -> OutputCutError:
        failed = super()._fail(error)
        failed.is_reported = True
        print_info(f"stdout was cut ({failed.reason}); the change is finished anyway")
        return failed


def _is_left_unread(stream: TextIO) -> bool:
    """Return whether a pipe's reader is gone and left some of it unread. Wait for a slow one, a second at most."""
    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        watch = select.poll()
        watch.register(descriptor, 0)  # a pipe without a reader is always reported
        for _ in range(UNREAD_CHECKS):
            gone = bool(watch.poll(UNREAD_CHECK_MILLISECONDS if _unread_bytes(descriptor) else 0))
            if gone or not _unread_bytes(descriptor):
                return gone and _unread_bytes(descriptor) > 0
    except (OSError, ValueError):
        pass  # no descriptor, or not that of a pipe
    return False


def _unread_bytes(descriptor: int) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, found)
    return found[0]


@contextmanager
def guarded_output(when_cut: WhenCut) -> Iterator[None]:
    """Run a command with guarded output. Raises `OutputCutError` at its end, or where it stops."""
    stdout, stderr = sys.stdout, sys.stderr
    if stdout is None or stderr is None:  # closed before this process was started: nothing can be printed
        yield
        return
    stream = stdout.stream if isinstance(stdout, _GuardedOutput) else stdout  # the innermost command decides
    limit = MAX_REPEATED_LINES if when_cut == "stderr" else 0
    guarded = _StoppingOutput(stream) if when_cut == "stop" else _RepeatingOutput(stream, limit=limit)
    sys.stdout = guarded
    if when_cut != "stop":
        sys.stderr = _GuardedOutput(stderr)
    try:
        yield
        if isinstance(guarded, _RepeatingOutput):
            guarded.end()
        else:
            guarded.flush()
        if guarded.failed is not None:
            raise guarded.failed
    except BrokenPipeError as error:  # from the stream's buffer, which is not guarded
        if when_cut == "stop":
            raise OutputCutError(error) from error
        raise
    finally:
        if guarded.failed is not None:
            if isinstance(guarded, _RepeatingOutput):
                guarded.repeat_on_stderr()
            _forget(stream)
        sys.stdout, sys.stderr = stdout, stderr


def was_cut() -> bool:
    """Return whether stdout was cut, so that its reader does not know what was done."""
    return isinstance(sys.stdout, _GuardedOutput) and sys.stdout.failed is not None


def _forget(stream: TextIO) -> None:
    """Keep the interpreter from flushing the stream at its exit, and from reporting that this failed."""
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)
