"""Private servers for tests and benchmarks: on free ports or sockets, in their own directories, ended by pid.

Never a service of the system: what runs on the machine already is neither used nor disturbed.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 20.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02
LONGEST_SOCKET_PATH_BYTES = 107  # sun_path of Linux, without its closing zero
UNPRIVILEGED_USERS = ("postgres", "nobody")


class EngineUnavailableError(Exception):
    """A server cannot be had here; the message says which and why, fit for a skip."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running private server: where it answers, and the process that is it."""

    name: str
    url: str
    process: subprocess.Popen[bytes] = field(repr=False)


@contextmanager
def redis(directory: Path, *, durable: bool = False) -> Iterator[Engine]:
    """Redis on a free loopback port; keeps nothing, or with `durable` syncs its log at every write.

    Raises `EngineUnavailableError` when there is no `redis-server` or it does not start.
    """
    program = _program("redis-server", package="redis-server")
    port = free_port()
    home = _home(directory, "redis")
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
    with _running("redis", command, home, ready=lambda: _answers(port, b"PING\r\n", b"+PONG")) as process:
        yield Engine("redis", f"redis://127.0.0.1:{port}/0", process)


@contextmanager
def beanstalkd(directory: Path, *, synced: bool = False) -> Iterator[Engine]:
    """beanstalkd on a free loopback port, in memory; with `synced` it logs, and syncs the log at every write.

    Raises `EngineUnavailableError` when there is no `beanstalkd` or it does not start.
    """
    program = _program("beanstalkd", package="beanstalkd")
    port = free_port()
    home = _home(directory, "beanstalkd")
    command = [program, "-l", "127.0.0.1", "-p", str(port)]
    if synced:
        command += ["-b", str(home), "-f0"]
    with _running("beanstalkd", command, home, ready=lambda: _answers(port, b"stats\r\n", b"OK")) as process:
        yield Engine("beanstalkd", f"beanstalk://127.0.0.1:{port}", process)


@contextmanager
def postgresql(directory: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[Engine]:
    """PostgreSQL as its package ships it (it syncs every commit), on a Unix socket, trusting its only user.

    It refuses to run as root, so root hands it to an unprivileged user. `settings` go on its command line.
    Raises `EngineUnavailableError` when its programs are absent or it does not start.
    """
    programs = _postgresql_programs()
    user = _unprivileged_user()
    home = _home(directory, "postgresql", owner=user)
    data = home / "data"
    socket_path = home / ".s.PGSQL.5432"
    if len(os.fsencode(socket_path)) > LONGEST_SOCKET_PATH_BYTES:
        raise EngineUnavailableError(
            f"postgresql: socket path must be at most {LONGEST_SOCKET_PATH_BYTES} bytes: {socket_path}"
        )
    made = subprocess.run(
        [str(programs / "initdb"), "-D", str(data), "-U", "towline", "-A", "trust", "-E", "UTF8", "--locale=C"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    if made.returncode:
        raise EngineUnavailableError(f"postgresql: initdb failed: {made.stderr.strip()[-300:]}")
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(home), "-h", ""]
    for name, value in (settings or {}).items():
        command += ["-c", f"{name}={value}"]
    url = f"postgresql://towline@/postgres?host={home}"
    is_ready = [str(programs / "pg_isready"), "-q", "-h", str(home), "-U", "towline", "-d", "postgres"]
    with _running(
        "postgresql",
        command,
        home,
        ready=lambda: subprocess.run(is_ready, check=False).returncode == 0,
        user=user,
        stop_signal=signal.SIGINT,  # this is its fast shutdown; SIGTERM would wait for every client to leave
    ) as process:
        yield Engine("postgresql", url, process)


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _program(name: str, *, package: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        raise EngineUnavailableError(f"{name}: not installed (Debian: apt-get install {package})")
    return found


def _postgresql_programs() -> Path:
    """Debian keeps the server's programs out of PATH, one directory a version: the newest is taken."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]), reverse=True
    )
    if not versions:
        raise EngineUnavailableError("postgresql: not installed (Debian: apt-get install postgresql)")
    return versions[0].parent


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Whom root runs PostgreSQL as; None when we are not root and need nobody else."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EngineUnavailableError(f"postgresql: refuses to run as root; none of {UNPRIVILEGED_USERS} exists")


def _home(directory: Path, name: str, *, owner: pwd.struct_passwd | None = None) -> Path:
    """A new directory for one server, reachable by its user."""
    number = sum(1 for _ in directory.glob(f"{name}-*"))
    home = directory / f"{name}-{number}"
    home.mkdir(mode=0o700)
    if owner is not None:
        os.chown(home, owner.pw_uid, owner.pw_gid)
        directory.chmod(directory.stat().st_mode | 0o011)
    return home


@contextmanager
def _running(
    name: str,
    command: Sequence[str],
    home: Path,
    *,
    ready: Callable[[], bool],
    user: pwd.struct_passwd | None = None,
    stop_signal: int = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start, wait until it answers, and end it whatever happens; its output is kept beside its data."""
    log = home / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C at our terminal must reach it through us, after its clients
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
        )
    try:
        _await_ready(name, process, log, ready)
        yield process
    finally:
        _end(process, stop_signal)


def _await_ready(name: str, process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        code = process.poll()
        if code is not None or time.monotonic() > deadline:
            why = f"exited with {code}" if code is not None else f"not ready within {START_SECONDS:.0f} s"
            said = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise EngineUnavailableError(f"{name}: {why}: {' / '.join(said) or 'it said nothing'}")
        time.sleep(POLL_SECONDS)


def _end(process: subprocess.Popen[bytes], stop_signal: int) -> None:
    if process.poll() is None:
        process.send_signal(stop_signal)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(port: int, question: bytes, answer: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(question)
            return connection.recv(64).startswith(answer)
    except OSError:
        return False
