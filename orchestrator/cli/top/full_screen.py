"""A terminal on which a program draws whole frames and reads keys, given back as it was however the program ends."""

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, Self, TextIO

from queue_core.process.terminal import DEFAULT_SIZE, TerminalSize, terminal_size

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""To the other screen, without a cursor and without lines that go on in the next."""
_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_SEQUENCES: Final = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "4~": "end",
    "5~": "page up",
    "6~": "page down",
}
_NAMES: Final = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}
_KEY: Final = re.compile("\x1b[\\[O]([0-9;]*[A-Za-z~])|(.)", re.DOTALL)
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


def keys_in(text: str) -> list[str]:
    """Return the keys that a terminal sent: printable characters, and names such as "up", "enter" and "escape".

    Sequences of keys that have no name are left out.
    """
    keys = []
    for sequence, character in _KEY.findall(text):
        key = _SEQUENCES.get(sequence, "") if sequence else _NAMES.get(character, character)
        keys += [key] if key in _NAMES.values() or key in _SEQUENCES.values() or (key.isprintable() and key) else []
    return keys


def frame_of(lines: Sequence[str], size: TerminalSize, *, clears: bool) -> str:
    """Return what draws a frame: each line in its place, nothing left of the frame before; `clears`: all at once."""
    drawn = [f"\x1b[{row};1H\x1b[2K{line}" for row, line in enumerate(lines[: size.lines], start=1)]
    rest = f"\x1b[{len(drawn) + 1};1H\x1b[J" if len(drawn) < size.lines else ""
    return ("\x1b[2J" if clears else "") + "".join(drawn) + rest


class FullScreen:
    """The terminal behind stdout, as a context manager: while it is entered nothing else may write there.

    Keys are read from stdin where that is a terminal too. Ctrl-Z gives the terminal back until the program goes on;
    SIGTERM and a hang-up raise `SystemExit`.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._waker, False)
        self._mode: list[object] | None = None
        self._clears = True
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(_ENDING, self._ended)
            handlers |= {signal.SIGWINCH: self._resized, signal.SIGTSTP: self._stopped}
            for number, handler in handlers.items():
                self._before[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(self, *_error: object) -> None:
        self._give_back()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        for descriptor in (self._wakes, self._waker):
            os.close(descriptor)

    @property
    def size(self) -> TerminalSize:
        """The size of the terminal now."""
        return terminal_size(self._output) or DEFAULT_SIZE

    def draw(self, lines: Sequence[str], size: TerminalSize) -> None:
        """Draw a frame that was made for `size`."""
        clears, self._clears = self._clears, False
        self._output.write(frame_of(lines, size, clears=clears))
        self._output.flush()

    def keys(self, *, wait_seconds: float) -> list[str]:
        """Return the keys that were pressed; none when the time is up, the size changed, or `wake` was called."""
        watched = [self._wakes] if self._keys is None else [self._wakes, self._keys]
        ready, _, _ = select.select(watched, [], [], wait_seconds)
        if self._wakes in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, 4096)
        if self._keys is None or self._keys not in ready:
            return []
        data = os.read(self._keys, 4096)
        if not data:  # its other end is closed
            raise SystemExit(0)
        return keys_in(self._decoder.decode(data))

    def wake(self) -> None:
        """Let `keys` return, from another thread or a signal handler."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._waker, b"w")

    def _take(self) -> None:
        if self._keys is not None:
            self._mode = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._clears = True
        self._output.write(_ENTER)
        self._output.flush()

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._output.write(_LEAVE)
            self._output.flush()
        if self._keys is not None and self._mode is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)  # type: ignore[arg-type]
        self._mode = None

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self._clears = True
        self.wake()

    def _stopped(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when the program goes on; at once where no shell could do that
        signal.signal(signal.SIGTSTP, self._stopped)
        self._take()
        self.wake()

    def _ended(self, number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
