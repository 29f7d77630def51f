"""Private servers for tests and benchmarks: on free ports or sockets, in their own directories, ended by pid.

Services already running on this machine are neither used nor disturbed.
"""

import atexit
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import psutil

from tests.support.stores.engine_process import Engine, EngineLaunch, EngineUnavailableError

__all__ = [
    "Engine",
    "EngineUnavailableError",
    "beanstalkd",
    "copy_database",
    "free_port",
    "memory_home",
    "postgresql",
    "postgresql_program",
    "postgresql_standby",
    "redis",
]

LOOPBACK = "127.0.0.1"
LONGEST_SOCKET_PATH_BYTES = 107  # Linux's sun_path without its final NUL
UNPRIVILEGED_USERS = ("postgres", "nobody")
SPARE_BYTES = 4 << 30
_OWNER = re.compile(r"-(\d+)-[^-]+$")
REDIS_DATABASES = 1024


@contextmanager
def redis(
    directory: Path,
    *,
    durable: bool = False,
    addresses: Sequence[str] = (),
    namespace: str = "",
    settings: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """Run Redis on a free port and a Unix socket, without persistence; with `durable` it syncs its log at every write.

    Args:
        addresses: where it listens beside loopback; `tcp_url` names the first of them.
        namespace: the network namespace that it runs in (`tests.support.netns`); "" is ours.
        settings: further command-line settings: `{"appendfsync": "everysec"}`.

    Raises `EngineUnavailableError` when there is no `redis-server` or it does not start.
    """
    program = _program("redis-server", package="redis-server")
    port = free_port()
    home = _home(directory, "redis")
    socket_path = _socket_path(home / "redis.sock", "redis")
    command = [program, "--port", str(port), "--bind", LOOPBACK, *addresses, "--dir", str(home), "--save", ""]
    command += ["--unixsocket", str(socket_path), "--databases", str(REDIS_DATABASES), "--protected-mode", "no"]
    command += ["--appendonly", "yes", "--appendfsync", "always"] if durable else ["--appendonly", "no"]
    for name, value in (settings or {}).items():
        command += [f"--{name}", value]
    launch = EngineLaunch(
        "redis", command, home, ready=lambda: _answers(socket_path, b"PING\r\n", b"+PONG"), namespace=namespace
    )
    host = addresses[0] if addresses else LOOPBACK
    engine = Engine(
        launch, tcp_url=f"redis://{host}:{port}/0", socket_url=f"unix://{socket_path}?db=0", host=host, port=port
    )
    with _running(engine):
        yield engine


@contextmanager
def beanstalkd(directory: Path, *, synced: bool = False) -> Iterator[Engine]:
    """Run beanstalkd on a free loopback port, in memory; with `synced` it syncs a log at every write.

    Raises `EngineUnavailableError` when there is no `beanstalkd` or it does not start.
    """
    program = _program("beanstalkd", package="beanstalkd")
    port = free_port()
    home = _home(directory, "beanstalkd")
    command = [program, "-l", LOOPBACK, "-p", str(port)]
    if synced:
        command += ["-b", str(home), "-f0"]
    launch = EngineLaunch("beanstalkd", command, home, ready=lambda: _answers((LOOPBACK, port), b"stats\r\n", b"OK"))
    engine = Engine(launch, tcp_url=f"beanstalk://{LOOPBACK}:{port}", host=LOOPBACK, port=port)
    with _running(engine):
        yield engine


@contextmanager
def postgresql(
    directory: Path, *, addresses: Sequence[str] = (), namespace: str = "", settings: Mapping[str, str] | None = None
) -> Iterator[Engine]:
    """Run PostgreSQL with its package's defaults (it syncs every commit), on a free port and a Unix socket.

    It trusts its user. It refuses to run as root, so root runs it as an unprivileged user.

    Args:
        addresses: where it listens beside loopback, trusting their /24; `tcp_url` names the first of them.
        namespace: the network namespace that it runs in (`tests.support.netns`); "" is ours.
        settings: command-line settings: `{"synchronous_commit": "off"}`.

    Raises `EngineUnavailableError` when its programs are absent or it does not start.
    """
    programs = _postgresql_programs()
    user = _unprivileged_user()
    with _home_of(user, directory, "postgresql") as home:
        _init_database(programs, home / "data", user)
        engine = _a_cluster(home, programs, user, addresses, namespace, settings or {})
        with _running(engine):
            yield engine


@contextmanager
def postgresql_standby(
    primary: Engine,
    directory: Path,
    *,
    slot: str = "",
    settings: Mapping[str, str] | None = None,
    state: Literal["running", "stopped"] = "running",
) -> Iterator[Engine]:
    """Run a copy of a private PostgreSQL that replays its log, and tells it each second what its own queries need.

    Args:
        slot: the replication slot to make on the primary and to follow it through; "": none.
        settings: the primary's command-line settings.
        state: `stopped`: it is made, and you start and stop it; the slot holds nothing before it first runs.

    Raises `EngineUnavailableError` when its programs are absent or it does not start.
    """
    programs = _postgresql_programs()
    user = _unprivileged_user()
    with _home_of(user, directory, "standby") as home:
        data = home / "data"
        copy = [str(programs / "pg_basebackup"), "-D", str(data), "-h", str(primary.home), "-p", str(primary.port)]
        copy += ["-U", "towline", "-R", "--checkpoint=fast", "--no-sync"]
        _run_as(user, home, [*copy, "--create-slot", "--slot", slot] if slot else copy)
        with (data / "postgresql.auto.conf").open("a") as kept:
            kept.write("hot_standby_feedback = on\nwal_receiver_status_interval = 1\n")
        engine = _a_cluster(home, programs, user, settings=settings or {})
        if state == "running":
            with _running(engine):
                yield engine
            return
        try:
            yield engine
        finally:
            engine.stop()


def copy_database(source: Engine, target: Engine) -> None:
    """Restore a backup of one private PostgreSQL's database, as pg_dump makes it, on another."""
    programs = _postgresql_programs()
    dump = [str(programs / "pg_dump"), "-h", str(source.home), "-p", str(source.port), "-U", "towline", "postgres"]
    load = [str(programs / "psql"), "-h", str(target.home), "-p", str(target.port), "-U", "towline", "-q"]
    load += ["-v", "ON_ERROR_STOP=1", "postgres"]
    saved = subprocess.run(dump, capture_output=True, check=True)
    subprocess.run(load, input=saved.stdout, capture_output=True, check=True)


def postgresql_program(name: str) -> Path:
    """Return a program that comes with the server. Raises `EngineUnavailableError`."""
    return _postgresql_programs() / name


def _a_cluster(
    home: Path,
    programs: Path,
    user: pwd.struct_passwd | None,
    addresses: Sequence[str] = (),
    namespace: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Engine:
    """Return the PostgreSQL with the data of a home, which has not been started."""
    port = free_port()
    _socket_path(home / f".s.PGSQL.{port}", "postgresql")
    data = home / "data"
    if addresses:
        with (data / "pg_hba.conf").open("a") as rules:
            rules.writelines(f"host all all {address}/24 trust\n" for address in addresses)
    command = [str(programs / "postgres"), "-D", str(data), "-k", str(home), "-p", str(port)]
    command += ["-h", ",".join([LOOPBACK, *addresses])]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    is_ready = [str(programs / "pg_isready"), "-q", "-h", str(home), "-p", str(port), "-U", "towline", "-d", "postgres"]
    launch = EngineLaunch(
        "postgresql",
        command,
        home,
        ready=lambda: subprocess.run(is_ready, check=False).returncode == 0,
        user=user,
        stop_signal=signal.SIGINT,  # the fast shutdown; SIGTERM would wait for every client to disconnect
        namespace=namespace,
    )
    host = addresses[0] if addresses else LOOPBACK
    socket_url = f"postgresql://towline@/postgres?host={home}&port={port}"
    return Engine(
        launch,
        url=socket_url,
        tcp_url=f"postgresql://towline@{host}:{port}/postgres",
        socket_url=socket_url,
        host=host,
        port=port,
    )


@contextmanager
def memory_home(prefix: str) -> Iterator[Path]:
    """Make a directory, in memory where there is room, and remove it at the end.

    If the process is killed, the next one removes it.
    """
    directory = memory_directory()
    if directory is not None:
        _remove_left_behind(directory)
    home = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=directory))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def memory_directory() -> Path | None:
    """Return a memory file system with enough room; None where there is none.

    A sync costs nothing there. A killed process's writes survive as on a disk; power cuts can't be tested there.
    """
    path = Path("/dev/shm")
    if not path.is_dir():
        return None
    free = min(shutil.disk_usage(path).free, psutil.virtual_memory().available)
    return path if free > SPARE_BYTES else None


def _remove_left_behind(directory: Path) -> None:
    """Remove the homes of dead processes: a few of them fill a machine's memory."""
    for home in directory.glob("towline-*"):
        owner = _OWNER.search(home.name)
        if owner is not None and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def _init_database(programs: Path, data: Path, user: pwd.struct_passwd | None) -> None:
    """Copy the files of this process's first cluster, which takes a tenth of initdb's time."""
    copied = subprocess.run(
        ["cp", "-a", str(_first_cluster(programs, user)), str(data)], capture_output=True, text=True, check=False
    )
    if copied.returncode:
        raise EngineUnavailableError(f"postgresql: no copy of a cluster: {copied.stderr.strip()[-300:]}")


@lru_cache(maxsize=1)
def _first_cluster(programs: Path, user: pwd.struct_passwd | None) -> Path:
    """Return the files of a cluster that never runs, removed with this process.

    Made without the syncs that only matter in a machine crash. Raises `EngineUnavailableError`.
    """
    kept = ExitStack()
    atexit.register(kept.close)
    home = kept.enter_context(memory_home("towline-"))
    data = home / "data"
    if user is not None:
        os.chown(home, user.pw_uid, user.pw_gid)
    make = [str(programs / "initdb"), "-D", str(data), "-U", "towline", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
    _run_as(user, home, make)
    return data


def _run_as(user: pwd.struct_passwd | None, folder: Path, command: Sequence[str]) -> None:
    """Run a program that makes a cluster, as the user that will run it. Raises `EngineUnavailableError`."""
    made = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
    )
    if made.returncode:
        raise EngineUnavailableError(f"postgresql: {Path(command[0]).name} failed: {made.stderr.strip()[-300:]}")


def _program(name: str, *, package: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        raise EngineUnavailableError(f"{name}: not installed (Debian: apt-get install {package})")
    return found


def _postgresql_programs() -> Path:
    """Return the newest version's directory: Debian keeps the server's programs out of PATH."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]), reverse=True
    )
    if not versions:
        raise EngineUnavailableError("postgresql: not installed (Debian: apt-get install postgresql-15)")
    return versions[0].parent


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Return the user that root runs PostgreSQL as; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EngineUnavailableError(f"postgresql: refuses to run as root; none of {UNPRIVILEGED_USERS} exists")


def _home(directory: Path, name: str) -> Path:
    """Make a directory for one server."""
    number = sum(1 for _ in directory.glob(f"{name}-*"))
    home = directory / f"{name}-{number}"
    home.mkdir(mode=0o700)
    return home


@contextmanager
def _home_of(user: pwd.struct_passwd | None, directory: Path, name: str) -> Iterator[Path]:
    """Make a directory for one server that another user can reach; elsewhere, if `directory` is closed to that user.

    Parent folders are not opened: pytest closes its folders again whenever it starts, also for running servers.
    """
    if user is None:
        yield _home(directory, name)
        return
    is_open = all(above.stat().st_mode & 0o001 for above in directory.resolve().parents)
    with ExitStack() as stack:
        if is_open:
            directory.chmod(directory.stat().st_mode | 0o011)
        else:
            directory = stack.enter_context(_open_directory())
        home = _home(directory, name)
        os.chown(home, user.pw_uid, user.pw_gid)
        yield home


@contextmanager
def _open_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="towline-") as path:
        Path(path).chmod(0o711)
        yield Path(path)


def _socket_path(path: Path, name: str) -> Path:
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH_BYTES:
        raise EngineUnavailableError(f"{name}: socket path must be at most {LONGEST_SOCKET_PATH_BYTES} bytes: {path}")
    return path


@contextmanager
def _running(engine: Engine) -> Iterator[None]:
    """Start it, wait until it answers, and always end it; its output is kept beside its data."""
    try:
        engine.start()
        yield
    finally:
        engine.stop()


def _answers(address: Path | tuple[str, int], question: bytes, answer: bytes) -> bool:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    try:
        with socket.socket(family) as connection:
            connection.settimeout(1)
            connection.connect(str(address) if isinstance(address, Path) else address)
            connection.sendall(question)
            return connection.recv(64).startswith(answer)
    except OSError:
        return False
