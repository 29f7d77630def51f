"""Standard output that may be cut (its reader gone, its disk full) while a command changes something.

The change in hand is finished whatever becomes of the output, and what was done is told on stderr.
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

from queue_core.cli.output import say

WhenCut = Literal["stop", "tell", "count"]
"""What a command does when stdout is cut: stop, for one that only shows; go on and print on stderr; go on and print
nothing more, for one that counts what it does and says that at its end."""

MAX_TOLD_LINES: Final = 1000
"""Lines that are printed on stderr instead: as many as one call leases."""
MAX_TOLD_CHARACTERS: Final = 8 << 20
UNREAD_LOOKS: Final = 100
UNREAD_LOOK_MILLISECONDS: Final = 10


class OutputCutError(Exception):
    """Stdout took no more. `is_reader_gone`: nobody wants to read on. `is_told`: stderr has it already."""

    def __init__(self, error: OSError) -> None:
        self.reason = error.strerror or str(error)
        self.is_reader_gone = isinstance(error, BrokenPipeError)
        self.is_told = False
        super().__init__(self.reason)


class _Output(io.TextIOBase):
    """A text stream in front of another one: a write that fails is remembered, and what follows is dropped."""

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
        size = len("" + text)  # TypeError for bytes, by which click tells text streams from others
        if self.failed is None:
            try:
                self.stream.write(text)
            except OSError as error:
                self._fail(error)
        return size

    def flush(self) -> None:
        if self.failed is None:
            try:
                self.stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> OutputCutError:
        self.failed = OutputCutError(error)
        return self.failed


class _Stopping(_Output):
    """Stdout of a command that only shows: a write that fails ends it."""

    def _fail(self, error: OSError) -> OutputCutError:
        raise super()._fail(error) from error


class _Keeping(_Output):
    """Stdout of a command that changes something: what it should have shown is printed on stderr, all of it.

    A reader that has gone may have left the greater part of what it was given unread, or not shown what it read.
    """

    def __init__(self, stream: TextIO, *, limit: int) -> None:
        super().__init__(stream)
        self._limit = limit
        self._written: list[str] = []
        self._left = MAX_TOLD_CHARACTERS if limit else 0

    def write(self, text: str) -> int:
        size = super().write(text)
        if self._left > 0:
            self._left -= size
            self._written.append(text)
        return size

    def end(self) -> None:
        """Write what is left, and see whether it is read."""
        self.flush()
        if self.failed is None and _is_left_unread(self.stream):
            self._fail(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def tell_written(self) -> None:
        """Print on stderr what stdout was to show."""
        lines = "".join(self._written).splitlines()
        for line in lines[: self._limit]:
            say(line)
        if len(lines) > self._limit or (self._limit and self._left <= 0):
            say("and more")

    def _fail(self, error: OSError) -> OutputCutError:
        failed = super()._fail(error)
        failed.is_told = True
        say(f"stdout was cut ({failed.reason}); the change is finished all the same")
        return failed


def _is_left_unread(stream: TextIO) -> bool:
    """Whether the reader of a pipe has gone and left some of it. A slow one is waited for, a second at most."""
    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        watch = select.poll()
        watch.register(descriptor, 0)  # an end without a reader is told whatever is asked for
        for _ in range(UNREAD_LOOKS):
            gone = bool(watch.poll(UNREAD_LOOK_MILLISECONDS if _unread_bytes(descriptor) else 0))
            if gone or not _unread_bytes(descriptor):
                return gone and _unread_bytes(descriptor) > 0
    except (OSError, ValueError):
        pass  # no descriptor, or one that can't be asked
    return False


def _unread_bytes(descriptor: int) -> int:
    found = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, found)
    return found[0]


@contextmanager
def kept_output(when_cut: WhenCut) -> Iterator[None]:
    """Run a command with its output guarded. Raises `OutputCutError` at its end, or where it stops."""
    stdout, stderr = sys.stdout, sys.stderr
    if stdout is None or stderr is None:  # closed before we were started: nothing can be told
        yield
        return
    stream = stdout.stream if isinstance(stdout, _Output) else stdout  # the innermost command has the say
    limit = MAX_TOLD_LINES if when_cut == "tell" else 0
    guarded = _Stopping(stream) if when_cut == "stop" else _Keeping(stream, limit=limit)
    sys.stdout = guarded
    if when_cut != "stop":
        sys.stderr = _Output(stderr)
    try:
        yield
        if isinstance(guarded, _Keeping):
            guarded.end()
        else:
            guarded.flush()
        if guarded.failed is not None:
            raise guarded.failed
    except BrokenPipeError as error:  # by its binary side, which is not guarded
        if when_cut == "stop":
            raise OutputCutError(error) from error
        raise
    finally:
        if guarded.failed is not None:
            if isinstance(guarded, _Keeping):
                guarded.tell_written()
            _forget(stream)
        sys.stdout, sys.stderr = stdout, stderr


def was_cut() -> bool:
    """Whether stdout took no more, so that its reader does not know what was done."""
    return isinstance(sys.stdout, _Output) and sys.stdout.failed is not None


def _forget(stream: TextIO) -> None:
    """Keep the interpreter from writing what is left in the stream at its exit, and from complaining about it."""
    with suppress(OSError, ValueError):  # a stream of a test has no descriptor
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)
