"""One private server's process: started, killed as by a power switch, started again on the same data, frozen, ended.

Only processes started here, and their descendants, are ever signalled, each by pid.
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

START_SECONDS = 30.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.01


class EngineUnavailableError(Exception):
    """A server cannot be had here; the message says which and why, fit for a skip."""


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """How to start a server in its own directory, and how to tell that it answers.

    Args:
        user: whom root runs it as; None for ourselves.
        stop_signal: what ends it in good order.
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
        """The command; who enters a namespace must be root, and becomes the user inside it.

        It dies with the thread that starts it, where that is the main one: a test run that is killed leaves nothing.
        """
        become: list[str] = []
        if threading.current_thread() is threading.main_thread():
            become += ["--pdeathsig", "KILL"]
        if self.namespace and self.user is not None:
            become += [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        enter = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*enter, *(["setpriv", *become] if become else []), *self.command]


class Engine:
    """A private server: where it answers, and the process that is it. Used from one thread at a time.

    Attributes:
        url: what a program of this host would use: a Unix socket for PostgreSQL, else TCP.
        tcp_url: over TCP, at an address and port that it keeps for life.
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
        """The process that was started last."""
        assert self._process is not None, f"{self.name} was started"
        return self._process

    @property
    def home(self) -> Path:
        """Its directory: data, socket, and `server.log` with all it ever said."""
        return self._launch.home

    @property
    def store_url(self) -> str:
        """Its Unix socket, as the URL of a store of ours has it: a way that no network fault cuts."""
        return self.socket_url.replace("unix://", "redis+unix://").replace("?db=", "?database=")

    def start(self, *, wait: bool = True) -> None:
        """Start it on the data it has, and return when it accepts connections, or at once.

        Raises `EngineUnavailableError` when it does not within 30 s.
        """
        user = None if self._launch.namespace else self._launch.user
        with (self.home / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._launch.argv,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at our terminal must reach it through us, after its clients
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        if wait:
            self.await_ready()

    def await_ready(self) -> None:
        """Return when it accepts connections. Raises `EngineUnavailableError` when it ended, or took 30 s."""
        deadline = time.monotonic() + START_SECONDS
        while not self._launch.ready():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                why = f"exited with {code}" if code is not None else f"not ready within {START_SECONDS:.0f} s"
                said = (self.home / "server.log").read_text(errors="replace").strip().splitlines()[-3:]
                raise EngineUnavailableError(f"{self.name}: {why}: {' / '.join(said) or 'it said nothing'}")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL it and all its processes at once, and return when they are gone; its data stays as it lies."""
        self.process.send_signal(signal.SIGSTOP)  # else it may start one more that nobody knows of
        family = self.family()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        deadline = time.monotonic() + STOP_SECONDS
        while any(_runs(member) for member in family) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def restart(self) -> None:
        """`kill`, then `start`: the same data, the same address."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and nobody answers."""
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()

    def thaw(self) -> None:
        """SIGCONT: go on as if nothing had happened."""
        for member in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def stop(self) -> None:
        """End it in good order, killing it when it takes longer than 10 s."""
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
        """The process and its descendants, the first of all before those it might start meanwhile."""
        if self.process.poll() is not None:
            return []
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]


def _runs(member: psutil.Process) -> bool:
    """Whether it still is; one that nobody has collected yet holds nothing any more."""
    try:
        return member.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
