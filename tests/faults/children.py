"""Child processes that may be killed at any instant: forked from a clean process, always collected, by pid only."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess

WAIT_SECONDS = 30.0


def fork_context(*modules: str) -> ForkServerContext:
    """A context whose children have these modules imported already, so that a start costs milliseconds.

    Each child runs this program's main script again, under another name: under pytest that imports pytest.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, *(name for name in ("pytest",) if name in sys.modules)])
    return context


def start(context: ForkServerContext, target: Callable[..., None], *arguments: object, name: str) -> ForkServerProcess:
    """Start a child that dies with this process."""
    process = context.Process(target=target, args=arguments, name=name, daemon=True)
    process.start()
    return process


def kill(process: ForkServerProcess) -> int:
    """SIGKILL, unless it is over already; returns its exit code, negative for a signal."""
    if process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    return wait(process)


def wait(process: ForkServerProcess) -> int:
    """Its exit code once it is over; a child that hangs is killed and raises `TimeoutError`."""
    process.join(WAIT_SECONDS)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{process.name} was not over after {WAIT_SECONDS} s")
    process.close()
    return code
