"""Find which process holds a port, a socket or a lock, as far as /proc tells, for the error that it is taken."""

import pwd
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_core.attempts.redaction import redacted
from queue_core.process.terminal import clean

MAX_COMMAND_CHARS: Final = 100
PROBE_SECONDS: Final = 1.0
_LISTENING: Final = "0A"
_CREDENTIALS: Final = "3i"


@dataclass(frozen=True, slots=True)
class ResourceHolder:
    """A process that holds what another one wants; what is not known is None or ""."""

    pid: int | None = None
    command: str = ""
    folder: str = ""
    user: str = ""

    @property
    def text(self) -> str:
        """The process in words: "pid 4242, `towline up` in /srv/app"; "" when nothing is known."""
        if self.pid is None:
            return f"a process of the user {self.user}" if self.user else ""
        command = f", `{self.command}`" if self.command else ""
        return f"pid {self.pid}{command}" + (f" in {self.folder}" if self.folder else "")

    @property
    def verb(self) -> str:
        """The command of ours that it runs, such as "up"; "" for another program."""
        words = self.command.split()
        return words[1] if len(words) > 1 and words[0] == "towline" else ""


UNKNOWN_HOLDER: Final = ResourceHolder()


def holder_of_port(host: str, port: int, *, proc: Path = Path("/proc")) -> ResourceHolder:
    """Return the process that listens on a TCP port at this address, or at all addresses."""
    for inode, uid in _listeners(host, port, proc):
        pid = _pid_of_socket(inode, proc)
        return _holder(pid, proc) if pid is not None else ResourceHolder(user=_user(uid))
    return UNKNOWN_HOLDER


def holder_of_socket(path: Path, *, proc: Path = Path("/proc")) -> ResourceHolder:
    """Return the process that listens on a Unix socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        probe.connect(str(path))
        data = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        pid, uid, _ = struct.unpack(_CREDENTIALS, data)
        return _holder(pid, proc) if pid else ResourceHolder(user=_user(uid))
    return UNKNOWN_HOLDER


def holder_of_lock(path: Path, *, proc: Path = Path("/proc")) -> ResourceHolder:
    """Return the process that holds an exclusive `flock` on a file."""
    with suppress(OSError):
        wanted = path.stat().st_ino
        for line in (proc / "locks").read_text().splitlines():
            words = line.split()
            if words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and words[5].rpartition(":")[2] == str(wanted):
                return _holder(int(words[4]), proc) if int(words[4]) > 0 else UNKNOWN_HOLDER
    return UNKNOWN_HOLDER


def command_of(arguments: Sequence[str]) -> str:
    """Return a command line for people: ours without its interpreter, secrets replaced, long ones cut."""
    given = list(arguments)
    module = given.index("-m") if "-m" in given else -1
    ours = next((at for at, word in enumerate(given[:4]) if Path(word).name == "towline"), -1)
    if module >= 0 and given[module + 1 : module + 2] in (["orchestrator"], ["queue_core"]):
        given = ["towline", *given[module + 2 :]]
    elif ours >= 0:
        given = ["towline", *given[ours + 1 :]]
    elif given:
        given[0] = Path(given[0]).name
    shown = clean(redacted(" ".join(given)))
    return shown if len(shown) <= MAX_COMMAND_CHARS else f"{shown[: MAX_COMMAND_CHARS - 3]}..."


def _holder(pid: int, proc: Path) -> ResourceHolder:
    command = folder = ""
    with suppress(OSError):
        text = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        command = command_of([word for word in text.split("\0") if word])
    with suppress(OSError):
        folder = clean(str((proc / str(pid) / "cwd").readlink()))
    return ResourceHolder(pid, command, folder)


def _listeners(host: str, port: int, proc: Path) -> Iterator[tuple[str, int]]:
    """Yield the inode and the user of each listening socket of a port, those at this address first."""
    found: list[tuple[bool, str, int]] = []
    wanted = _hexadecimal(host)
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                address, _, number = words[1].rpartition(":")
                if words[3] == _LISTENING and int(number, 16) == port:
                    found.append((address != wanted, words[9], int(words[7])))
    yield from ((inode, uid) for _, inode, uid in sorted(found))


def _hexadecimal(host: str) -> str:
    try:
        return struct.pack("=I", struct.unpack("!I", socket.inet_aton(host))[0]).hex().upper()
    except OSError:
        return ""


def _pid_of_socket(inode: str, proc: Path) -> int | None:
    """Return the oldest process that has this socket open: a server's children may have inherited it."""
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    for pid in pids:
        with suppress(OSError):
            for descriptor in (proc / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return pid
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
