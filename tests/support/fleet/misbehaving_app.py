"""An app whose handlers misuse their process: fork, start threads, set signals, change user."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from queue_core.worker.app import App
from queue_core.worker.context import Task

app = App()
async_app = App()
limited_app = App()
processes = multiprocessing.get_context("fork")
LONG_SECONDS = 3600.0


@limited_app.task(queue="thumbs", timeout=1.0)
@app.task(queue="thumbs")
def work(task: Task) -> None:
    """Run `VERB PATH`: what to do, and the file for its result."""
    verb, _, path = task.text.partition(" ")
    _note(path, "begun")
    VERBS[verb](path)


@async_app.task(queue="thumbs")
async def work_async(task: Task) -> None:
    """`fork PATH`: fork and let both return; `return PATH`: the same without another `await`; else just record."""
    verb, _, path = task.text.partition(" ")
    if verb in {"fork", "return"}:
        child = os.fork()
        if child:
            _note(path, f"forked {child}")
    if verb == "fork":
        await asyncio.sleep(0.05)
    _note(path, f"done {verb} {os.getpid()}")


def _note(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


def alarm(path: str) -> None:
    """Time out by SIGALRM, as many programs do."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(LONG_SECONDS)
    except TimeoutError:
        _note(path, "alarm came")


def own_loop(path: str) -> None:
    """Run an event loop that takes SIGTERM for itself and restores the default when it closes."""

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)
        await asyncio.sleep(0)

    asyncio.run(main())
    _note(path, "loop ran")


def hang_in_c(path: str) -> None:
    """Wait in a C call that no signal interrupts: Python's signal handlers don't run meanwhile."""
    mutex = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    _note(path, "hangs")
    library.pthread_mutex_lock(mutex)


def terminate(path: str) -> None:
    """End a child process the usual way."""
    child = processes.Process(target=time.sleep, args=(LONG_SECONDS,))
    child.start()
    child.terminate()
    child.join(10)
    _note(path, f"ended {child.exitcode}")


def pool(path: str) -> None:
    """Run a pool and end it the usual way."""
    with processes.Pool(2) as workers:
        total = sum(workers.map(abs, [1, -2]))
    _note(path, f"pool {total}")


def thread(path: str) -> None:
    """Leave a thread that never ends."""
    threading.Thread(target=time.sleep, args=(LONG_SECONDS,), name="left-thread", daemon=False).start()
    _note(path, "left")


def process(path: str) -> None:
    """Leave a process that never ends."""
    child = processes.Process(target=time.sleep, args=(LONG_SECONDS,))
    child.start()
    _note(path, f"left {child.pid}")


def executor(path: str) -> None:
    """Leave an executor with pending work."""
    pool = ProcessPoolExecutor(1, mp_context=processes)
    pool.submit(time.sleep, LONG_SECONDS)
    _note(path, f"left {next(iter(pool._processes))}")


def program(path: str) -> None:
    """Leave a child program, and hang."""
    child = subprocess.Popen(["sleep", str(LONG_SECONDS)])
    _note(path, f"left {child.pid}")
    time.sleep(LONG_SECONDS)


def publish(path: str) -> None:
    """Let a child write a file, and publish it once the child has ended, as a converter's caller does."""
    child = subprocess.Popen(["sleep", str(LONG_SECONDS)])
    _note(path, f"left {child.pid}")
    child.wait()
    _note(path, "published")


def fork(path: str) -> None:
    """Fork, and let both return."""
    child = os.fork()
    if child:
        _note(path, f"forked {child}")


def fork_and_exit(path: str) -> None:
    """Fork, and exit the child as a program does."""
    child = os.fork()
    if not child:
        sys.exit(7)
    _note(path, f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


def daemonise(path: str) -> None:
    """Become a daemon, as `daemon(3)` and python-daemon do it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    _note(path, f"daemon {os.getpid()}")


def change_user(path: str) -> None:
    """Drop privileges."""
    _note(path, "changes")
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


def note(path: str) -> None:
    """Just work."""
    _note(path, f"by {os.getpid()} in {threading.current_thread().name}")


VERBS = {
    function.__name__: function
    for function in (
        alarm, own_loop, hang_in_c, terminate, pool, thread, process, executor, program, publish, fork,
        fork_and_exit, daemonise, change_user, note,
    )
}  # fmt: skip
