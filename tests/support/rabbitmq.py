"""A private RabbitMQ for tests: its own node, ports, files and Erlang port mapper, all on loopback, ended by pid."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.stores.engine_process import Engine, EngineLaunch, EngineUnavailableError
from tests.support.stores.engines import LOOPBACK, free_port, memory_home

TRIES = 3
_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's program on PATH insists on its own user
_SETTINGS = """\
listeners.tcp.1 = {host}:{port}
management.tcp.ip = {host}
management.tcp.port = {management}
collect_statistics_interval = 1000
loopback_users = none
disk_free_limit.absolute = 10MB
vm_memory_high_watermark.absolute = 1GB
log.console = true
log.console.level = warning
log.file = false
"""


@dataclass(frozen=True, slots=True)
class RabbitNode:
    """A running node: its process, its URL for AMQP, and that of its HTTP API ("" without)."""

    engine: Engine
    url: str
    management_url: str


@contextmanager
def rabbitmq(*, management: bool = False) -> Iterator[RabbitNode]:
    """Run RabbitMQ on a free port; `management` adds its HTTP API. It takes 5 to 10 s to start: share it.

    Raises `EngineUnavailableError` when its programs are absent or it does not start.
    """
    epmd, script = shutil.which("epmd"), _script()
    if epmd is None:
        raise EngineUnavailableError("rabbitmq: epmd is absent (Debian: apt-get install rabbitmq-server)")
    with ExitStack() as stack:
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                node = stack.enter_context(_a_node(epmd, script, management=management))
                break
            except EngineUnavailableError:  # another program may have taken one of its ports
                if not tries_left:
                    raise
        yield node


@contextmanager
def _a_node(epmd: str, script: Path, *, management: bool) -> Iterator[RabbitNode]:
    with memory_home("towline-rabbitmq-") as home:
        port, api, mapper, distribution = (free_port() for _ in range(4))
        (home / "rabbitmq.conf").write_text(_SETTINGS.format(host=LOOPBACK, port=port, management=api))
        (home / "plugins").write_text("[rabbitmq_management].\n" if management else "[].\n")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
            "HOME": str(home),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": f"towline-{os.getpid()}-{port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "absent.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "absent.config"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
            " -kernel inet_dist_use_interface {127,0,0,1}",
        }
        with _port_mapper(epmd, mapper, environment, home):
            command = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), str(script)]
            launch = EngineLaunch("rabbitmq", command, home, ready=lambda: _speaks_amqp(port))
            engine = Engine(launch, tcp_url=f"amqp://guest:guest@{LOOPBACK}:{port}//", host=LOOPBACK, port=port)
            try:
                engine.start()
                yield RabbitNode(engine, engine.tcp_url, f"http://guest:guest@{LOOPBACK}:{api}" if management else "")
            finally:
                engine.kill()  # its own way out takes 6 s, and nothing of it is kept


@contextmanager
def _port_mapper(program: str, port: int, environment: dict[str, str], home: Path) -> Iterator[None]:
    """Run the port mapper ourselves: Erlang would start one that outlives the test."""
    command = [program, "-port", str(port), "-address", LOOPBACK]
    with (home / "epmd.log").open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        for _ in range(200):
            if _is_open(port):
                break
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _script() -> Path:
    if not _SCRIPT.is_file():
        raise EngineUnavailableError("rabbitmq: not installed (Debian: apt-get install rabbitmq-server)")
    return _SCRIPT


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def _speaks_amqp(port: int) -> bool:
    """Return whether it answers a protocol header: the port is open before that."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(7)[:1] == b"\x01"
    except OSError:
        return False
