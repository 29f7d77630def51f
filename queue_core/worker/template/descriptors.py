"""Descriptors that an import left open: what forked workers open anew, and what they must not share.

A file that is only read or appended to is opened anew by each worker, at the same position: it has one of its own then,
as an executed worker has. A connection, a pipe, a kernel object, a device, a lock, an SQLite database and a file that
is written at a position are hazards.
"""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_core.worker.template.hazard import REMEDY, ForkHazard, HazardKind

SQLITE_MAGIC: Final = b"SQLite format 3\0"
SERVICES: Final = {
    1433: "SQL Server",
    1521: "Oracle",
    3306: "MySQL",
    4222: "NATS",
    5432: "PostgreSQL",
    5671: "RabbitMQ",
    5672: "RabbitMQ",
    6379: "Redis",
    6432: "PgBouncer",
    9042: "Cassandra",
    9092: "Kafka",
    9200: "Elasticsearch",
    11211: "Memcached",
    27017: "MongoDB",
}
"""Names of the servers at well-known ports."""
_STREAMS: Final = frozenset({0, 1, 2})
_HARMLESS_DEVICES: Final = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx")
)
_GPU_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
_SQLITE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
_LOOPS: Final = ("[eventpoll]", "[io_uring]")


@dataclass(frozen=True, slots=True)
class OpenDescriptor:
    """An open descriptor, as far as it decides on a fork.

    Attributes:
        target: the kernel's name of it: a path, `socket:[7]`, `anon_inode:[eventpoll]`.
        mode: its file type, as `os.stat_result.st_mode`.
        peer: for a socket, what it is connected to or listens on.
        is_locked: whether this process holds a lock of the file.
        is_database: whether the file is an SQLite database.
        is_written: whether the file is open to be written at a position of its own.
        is_path: whether it has no position, as it was opened with `O_PATH`.
        name: how a module reaches the object of the descriptor, as `shop.client`.
    """

    target: str
    mode: int
    peer: str = ""
    is_locked: bool = False
    is_database: bool = False
    is_written: bool = False
    is_path: bool = False
    name: str = ""

    @property
    def path(self) -> str:
        """The path of a file, also of one that was removed."""
        return self.target.removesuffix(" (deleted)")


def open_descriptors(*, own: Collection[int]) -> dict[int, OpenDescriptor]:
    """Return what is open beside the standard streams.

    Args:
        own: descriptors that the caller takes care of.
    """
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        number = int(name)
        if number in _STREAMS or number in own:
            continue
        with contextlib.suppress(OSError):  # the one by which the list was read
            found[number] = _read(number)
    return found


def renewable_files(descriptors: Mapping[int, OpenDescriptor]) -> list[int]:
    """Return the descriptors of files and folders that each worker can open anew. Pure."""
    return sorted(
        number
        for number, each in descriptors.items()
        if _kind_of(each) is None and (stat.S_ISREG(each.mode) or stat.S_ISDIR(each.mode)) and not each.is_path
    )


def open_anew(numbers: Collection[int]) -> None:
    """Give this process files of its own in place of those that it shares, at the same positions. Raises `OSError`."""
    for number in numbers:
        flags = fcntl.fcntl(number, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
        renewed = os.open(f"/proc/self/fd/{number}", flags)
        try:
            os.lseek(renewed, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(renewed, number, inheritable=os.get_inheritable(number))
        finally:
            os.close(renewed)


def hazards_of_descriptors(descriptors: Sequence[OpenDescriptor]) -> list[ForkHazard]:
    """Return the hazards among descriptors, each thing once. Pure."""
    databases = {each.path for each in descriptors if each.is_database}
    found: dict[ForkHazard, None] = {}
    for each in descriptors:
        if _main_file(each.path) in databases and not each.is_database:
            continue  # the journal of a database that is reported
        hazard = _hazard_of(each)
        if hazard is not None:
            found[hazard] = None
    return sorted(found, key=lambda hazard: (hazard.kind, hazard.detail))


def _hazard_of(each: OpenDescriptor) -> ForkHazard | None:
    kind = _kind_of(each)
    match kind:
        case None:
            return None
        case "socket":
            detail, does = each.peer, f"{each.peer} is open"
        case "database_file":
            detail = f"SQLite database {each.path}"
            does = f"a connection to the {detail} is open"
        case "lock":
            detail, does = f"lock of {each.path}", f"a lock of {each.path} is held"
        case "memory_file":
            detail = f"memory file {_memory_name(each.target)}"
            does = f"the {detail} is open"
        case "file":
            detail = f"file {each.path}"
            does = f"the {detail} is open to be written"
        case "device" | "gpu":
            detail, does = each.path, f"the device {each.path} is open"
        case "pipe":
            detail = "a pipe" if each.target.startswith("pipe:") else f"named pipe {each.path}"
            does = f"{detail} is open"
        case _:
            inner = each.target.removeprefix("anon_inode:")
            detail = f"{inner.strip('[]')}{', of an event loop' if inner in _LOOPS else ''}"
            does = f"a kernel object ({detail}) is open"
    does += f" ({each.name})" if each.name else ""
    return ForkHazard(kind, detail, f"{does} after the import, and forked workers would share it: open it {REMEDY}")


def _kind_of(each: OpenDescriptor) -> HazardKind | None:
    if stat.S_ISSOCK(each.mode):
        return "socket"
    if stat.S_ISFIFO(each.mode):
        return "pipe"
    if stat.S_ISCHR(each.mode) or stat.S_ISBLK(each.mode):
        return _kind_of_device(each.path)
    if each.target.startswith("anon_inode:"):
        return "kernel_object"
    if each.target.startswith("/memfd:"):
        return "memory_file"
    if each.is_database:
        return "database_file"
    if each.is_locked:
        return "lock"
    return "file" if each.is_written or each.path.startswith(f"/proc/{os.getpid()}/") else None


def _kind_of_device(path: str) -> HazardKind | None:
    if path in _HARMLESS_DEVICES or path.startswith("/dev/pts/"):
        return None
    return "gpu" if path.startswith(_GPU_DEVICES) else "device"


def _main_file(path: str) -> str:
    for suffix in _SQLITE_SUFFIXES:
        if path.endswith(suffix):
            return path.removesuffix(suffix)
    return path


def _memory_name(target: str) -> str:
    return repr(target.removeprefix("/memfd:").removesuffix(" (deleted)"))


def _read(number: int) -> OpenDescriptor:
    target = Path(f"/proc/self/fd/{number}").readlink()
    mode = os.fstat(number).st_mode
    is_regular = stat.S_ISREG(mode)
    return OpenDescriptor(
        target=str(target),
        mode=mode,
        peer=_peer_of(number) if stat.S_ISSOCK(mode) else "",
        is_locked=_is_locked(number),
        is_database=is_regular and _is_database(number),
        is_written=is_regular and _is_written(number),
        is_path=bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_PATH),
    )


def _is_locked(number: int) -> bool:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/self/fdinfo/{number}").read_text(encoding="ascii", errors="replace")
        return any(line.startswith("lock:") for line in text.splitlines())
    return False


def _is_written(number: int) -> bool:
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    return bool(flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND)


def _is_database(number: int) -> bool:
    """Read by the descriptor itself: to open and close the file once more would drop the locks of SQLite on it."""
    with contextlib.suppress(OSError):  # it is not readable
        return os.pread(number, len(SQLITE_MAGIC), 0) == SQLITE_MAGIC
    return False


def _peer_of(number: int) -> str:
    """Return what a socket is: `a connection to Redis at 10.0.0.3:6379`, `a socket that listens at 0.0.0.0:80`.

    The socket is left as it is: Python makes the one it gets non-blocking where a default timeout is set.
    """
    is_blocking = os.get_blocking(number)
    try:
        opened = socket.socket(fileno=number)
    except OSError:
        return "a socket of an unknown kind"
    try:
        return _peer_text(opened)
    finally:
        opened.detach()
        os.set_blocking(number, is_blocking)


def _peer_text(opened: socket.socket) -> str:
    try:
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            address = address_text(opened.family, opened.getsockname())
            return f"a socket that listens at {address or 'an unnamed address'}"
        address = address_text(opened.family, opened.getpeername())
    except OSError:  # it has no peer
        return f"an unconnected {_family(opened)} socket"
    return f"a connection to {address}" if address else f"an unnamed {_family(opened)} socket"


def _family(opened: socket.socket) -> str:
    if opened.family == socket.AF_UNIX:
        return "Unix"
    if opened.family in (socket.AF_INET, socket.AF_INET6):
        return "UDP" if opened.type == socket.SOCK_DGRAM else "TCP"
    name = opened.family.name if isinstance(opened.family, socket.AddressFamily) else str(opened.family)
    return name.removeprefix("AF_").lower()


def address_text(family: int, address: object) -> str:
    """Return an address for people, "" for one without a name."""
    if family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
        host, port = str(address[0]), int(address[1])
        place = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        return f"{SERVICES[port]} at {place}" if port in SERVICES else place
    if isinstance(address, bytes):
        return f"Unix socket @{address[1:].decode(errors='replace')}" if address else ""
    if family == socket.AF_UNIX and isinstance(address, str) and address:
        service = "PostgreSQL at " if "/.s.PGSQL." in address else ""
        return f"{service}Unix socket {address}"
    return ""
