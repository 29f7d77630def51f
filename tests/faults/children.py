"""Child processes that may be killed at any time: forked from a clean process, always reaped, by pid only."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess

WAIT_SECONDS = 30.0


class Nursery:
    """Starts children that die with this process; usable from several threads."""

    def __init__(self, *modules: str) -> None:
        """Import these modules before forking, so that a start costs milliseconds.

        Each child runs this program's main script again, under another name: under pytest that imports pytest.
        """
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*modules, *(name for name in ("pytest",) if name in sys.modules)])
        # A start reaps ended children; without the lock two threads may wait for one exit code, and one gets none.
        self._lock = threading.Lock()

    def start(self, target: Callable[..., None], *arguments: object, name: str) -> ForkServerProcess:
        """Start a child."""
        process = self._context.Process(target=target, args=arguments, name=name, daemon=True)
        with self._lock:
            process.start()
        return process

    def kill(self, process: ForkServerProcess) -> int:
        """SIGKILL it unless it has ended; return its exit code, negative for a signal."""
        with self._lock:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        return self.wait(process)

    def wait(self, process: ForkServerProcess) -> int:
        """Return its exit code once it has ended; a child that hangs is killed and raises `TimeoutError`."""
        is_over = bool(connection.wait([process.sentinel], WAIT_SECONDS))
        with self._lock:
            if not is_over:
                process.kill()
            process.join()
            code = process.exitcode
            process.close()
        if not is_over or code is None:
            raise TimeoutError(f"a child was not over after {WAIT_SECONDS} s")
        return code
