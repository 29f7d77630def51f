"""Run a program on a terminal of its own, and read what it shows."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def on_terminal(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    shown: Path,
    columns: int = 100,
    lines: int = 30,
    wait_seconds: float = 60.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with a new terminal as its standard streams; what it writes is appended to the file `shown`.

    On leaving, it is asked to end and waited for; the terminal stays open until then.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    shown.touch()
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={"TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    reader = threading.Thread(target=_copy, args=(ours, shown))
    reader.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=wait_seconds)
        finally:
            process.kill()
            process.wait()
            reader.join()
            os.close(ours)


def _copy(terminal: int, file: Path) -> None:
    """Append what is written to the terminal to the file, until the last program on it has ended."""
    with file.open("ab", buffering=0) as shown:
        while True:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # nothing holds the other side any more
                return
            if not data:
                return
            shown.write(data)
