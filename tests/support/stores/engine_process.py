"""The process of one private server: start, SIGKILL, restart on the same data, freeze, stop.

Only processes started here, and their descendants, are signalled, each by pid.
"""

import contextlib
import pwd
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.eventually import pause_after

START_SECONDS = 30.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.01


class EngineUnavailableError(Exception):
    """A server can't be started here; the message says which and why, as a reason for skipping."""


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """The command that starts a server in its own directory, and a check that it answers.

    Args:
        user: the user that root runs it as; None for ourselves.
        stop_signal: the signal for a graceful stop.
        namespace: the network namespace to start it in; "" is ours.
    """

    name: str
    command: Sequence[str]
    home: Path
    ready: Callable[[], bool] = field(repr=False)
    user: pwd.struct_passwd | None = None
    stop_signal: int = signal.SIGTERM
    namespace: str = ""

    @property
    def argv(self) -> list[str]:
        """The command; root enters a namespace first and becomes the user inside it.

        The server dies with the thread that starts it, if that is the main one: a killed test run leaves nothing.
        """
        become: list[str] = []
        if threading.current_thread() is threading.main_thread():
            become += ["--pdeathsig", "KILL"]
        if self.namespace and self.user is not None:
            become += [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        enter = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*enter, *(["setpriv", *become] if become else []), *self.command]


class Engine:
    """A private server: its addresses and its process. Use it from one thread at a time.

    Attributes:
        url: for programs of this host: a Unix socket for PostgreSQL, else TCP.
        tcp_url: over TCP, at an address and port that never change.
        socket_url: over a Unix socket; empty where it has none.
        host, port: as in `tcp_url`.
    """

    def __init__(
        self, launch: EngineLaunch, *, url: str = "", tcp_url: str, socket_url: str = "", host: str, port: int
    ) -> None:
        self.name = launch.name
        self.url = url or tcp_url
        self.tcp_url = tcp_url
        self.socket_url = socket_url
        self.host = host
        self.port = port
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process started last."""
        assert self._process is not None, f"{self.name} was started"
        return self._process

    @property
    def home(self) -> Path:
        """Its directory: data, socket, and `server.log` with all its output."""
        return self._launch.home

    @property
    def store_url(self) -> str:
        """The URL of a store of ours on its Unix socket, which no network fault affects."""
        return self.socket_url.replace("unix://", "redis+unix://").replace("?db=", "?database=")

    def start(self, *, wait: bool = True) -> None:
        """Start it on its data and wait until it accepts connections, unless `wait` is false.

        Raises `EngineUnavailableError` after 30 s.
        """
        user = None if self._launch.namespace else self._launch.user
        with (self.home / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._launch.argv,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at our terminal must not reach it before its clients
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        if wait:
            self.await_ready()

    def await_ready(self) -> None:
        """Wait until it accepts connections. Raises `EngineUnavailableError` when it ended, or after 30 s."""
        deadline = (began := time.monotonic()) + START_SECONDS
        while not self._launch.ready():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"exited with {code}" if code is not None else f"not ready within {START_SECONDS:.0f} s"
                raise EngineUnavailableError(f"{self.name}: {why}: {self.last_words()}")
            time.sleep(pause_after(began))
            began = time.monotonic()

    def last_words(self) -> str:
        """Return the last lines of its output."""
        said = (self.home / "server.log").read_text(errors="replace").strip().splitlines()[-3:]
        return " / ".join(said) or "it said nothing"

    def kill(self) -> None:
        """SIGKILL it and all its processes at once, and wait until they are gone; its data stays as it is."""
        self.process.send_signal(signal.SIGSTOP)  # else it could start another process meanwhile
        family = self.family()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        deadline = time.monotonic() + STOP_SECONDS
        while any(_runs(member) for member in family) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def restart(self) -> None:
        """`kill`, then `start`: same data, same address."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open but get no answer."""
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()

    def thaw(self) -> None:
        """SIGCONT: go on as if nothing had happened."""
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def stop(self) -> None:
        """Stop it gracefully; kill it after 10 s."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self.thaw()
            self._process.send_signal(self._launch.stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def family(self) -> list[psutil.Process]:
        """Return the process and its descendants, the process first."""
        if self.process.poll() is not None:
            return []
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]


def _runs(member: psutil.Process) -> bool:
    """Return whether the process still runs; a zombie holds nothing any more."""
    try:
        return member.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
