"""Run a worker process, from its settings to its exit code."""

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Final, NoReturn

from structlog.typing import FilteringBoundLogger

from queue_core.attempts.error_text import without_traceback
from queue_core.attempts.redaction import redacted, redacted_traceback
from queue_core.client.connect import SERVER_SCHEMES
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue, Queues
from queue_core.clock import SystemClock
from queue_core.errors import AppError, QueueError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.process import logs
from queue_core.process.last_program import become_last_program
from queue_core.process.process_end import write_out
from queue_core.telemetry import instrument_if_set
from queue_core.worker import events
from queue_core.worker.app import load_app
from queue_core.worker.code_lines import line_of
from queue_core.worker.lifecycle import EXIT_INTERNAL, EXIT_MISCONFIGURED, EXIT_OK, EXIT_UNREACHABLE
from queue_core.worker.presence import WorkerRegistration
from queue_core.worker.respawn import EXIT_RECYCLED, run_in_children
from queue_core.worker.runner import OrphanWatch, Runner
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.signals import stop_signals_handled

if TYPE_CHECKING:
    import psutil

MAX_SHOWN: Final = 10
"""Threads and processes that one log entry names at most."""
SHORTEST_EXIT_SECONDS: Final = 1.0
"""Least time in seconds that threads and processes started by a handler get to end before the worker exits."""
TIMEOUT_SECONDS: Final = 10.0
"""Seconds a server may take to reply, beyond the wait requested. Longer than this, leases may expire meanwhile."""
STACK_SIGNAL: Final = signal.SIGRTMIN + 1
"""Signal that makes the worker write all stacks to stderr, even while a handler holds the interpreter lock."""
RETRIES: Final = Retries(tries=2)
"""Few tries per call: the worker's threads retry by themselves, and must renew their leases in between."""

_STDERR: Final = 2


def run_worker(settings: WorkerSettings, *, renew: Callable[[], None] = lambda: None) -> int:
    """Import the app, run the worker until it ends, and return its exit code; every error is logged.

    Exit codes: 0 finished, drained, retired or recycled; 70 an internal error; 75 the queue was unreachable for too
    long; 77 a handler changed the user or group of the process; 78 the app or the settings can't be used; 79 a handler
    ran beyond its timeout and could not be ended; 80 a handler hung: it ran on without its lease, or blocked the event
    loop; 81 a handler ended the event loop.

    Ends the process itself, with that code, when a handler still runs after the grace, or when a thread, pool or child
    process that a handler left behind delays the exit beyond the grace. Must be called from the main thread because it
    handles signals: SIGTERM and SIGINT drain, a second signal of the same kind releases the leases at once.

    With a bound of tasks and a supervisor on this host, the worker continues in a fresh child process after each
    batch of that size (see `respawn`). Otherwise it exits at the bound.

    Args:
        renew: makes a child's own what an import before this process was forked has made.
    """
    faulthandler.enable(file=_STDERR, all_threads=False)  # a fault in native code is told with the line that called it
    faulthandler.register(STACK_SIGNAL, file=_STDERR, all_threads=True)
    _flush_lines()
    if settings.recycle.tasks is None or settings.supervisor_lock is None:
        atexit.register(_write_files_out)  # before the app's own functions, so that it runs after them
        return _work(settings, EXIT_OK)
    watch, clock = OrphanWatch(settings.supervisor_lock), SystemClock()

    def may_continue() -> bool:
        return watch.absent_seconds(now=clock.monotonic()) <= settings.orphan_grace_seconds

    return run_in_children(
        lambda may_begin, on_last_lease: _work(settings, EXIT_RECYCLED, may_begin, on_last_lease),
        may_continue=may_continue,
        renew=renew,
    )


def _work(
    settings: WorkerSettings,
    recycled: int,
    may_begin: Callable[[], bool] = lambda: True,
    on_last_lease: Callable[[], None] = lambda: None,
) -> int:
    """Run one worker in this process.

    Args:
        recycled: the exit code when a recycle limit is reached.
        may_begin: called once the handlers are imported; on False the worker exits without leasing.
        on_last_lease: called when the last task that the recycle limits allow has been leased.
    """
    log = get_logger().bind(worker=settings.worker)
    queues: Queues | None = None
    try:
        instrument_if_set(os.environ)
        app = load_app(settings.app, app_folder=settings.app_folder)
        logs.configure_program()
        if not may_begin():
            return EXIT_OK
        queues, open_waiting = _open(settings)
        runner = Runner(
            app,
            settings,
            open_queue=queues.queue,
            open_waiting=open_waiting,
            recycled_code=recycled,
            on_last_lease=on_last_lease,
        )
    except QueueError as error:
        _log_refusal(error, log)
        if queues is not None:
            queues.close()
        return EXIT_UNREACHABLE if isinstance(error, StoreUnavailableError) else EXIT_MISCONFIGURED
    exit_bound = ExitBound(log)
    try:
        with app.bound_to(queues), _presence(runner, queues, settings):
            code = _run(runner, log)
    except AppError as error:  # of a hook
        _log_refusal(error, log)
        code = EXIT_MISCONFIGURED
    except Exception as error:  # noqa: BLE001  the top of the process
        _log_failure(error, log, thread="main")
        code = EXIT_INTERNAL
    if runner.is_abandoned:
        # A thread can't be killed, and its tasks may already be leased by another worker.
        exit_now(code, log=log)
    exit_bound.begin(max(SHORTEST_EXIT_SECONDS, runner.grace_left_seconds()), code=code)
    queues.close()
    return code


@contextlib.contextmanager
def _presence(runner: Runner, queues: Queues, settings: WorkerSettings) -> Iterator[None]:
    """Register the worker while it runs, unless it is of a pool: then its supervisor knows it."""
    if settings.pool:
        yield
        return
    presence = WorkerRegistration(
        queues, settings.worker, queue=runner.queue, finished=lambda: runner.tasks_done, clock=SystemClock()
    )
    presence.start()
    try:
        yield
    finally:
        presence.end()


def _log_refusal(error: QueueError, log: FilteringBoundLogger) -> None:
    """Log why the worker can't work; with a traceback where the program's own code failed."""
    text = redacted_traceback(error) if error.__cause__ is not None else None
    log.error(events.WORKER_REFUSED, error=type(error).__name__, reason=redacted(str(error)), traceback=text)


def _flush_lines() -> None:
    """Let each line that a handler prints reach a pipe or file at once, not when 8 KiB have gathered."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _write_files_out() -> None:
    """Write out the buffers of all files: the interpreter leaves those of a module that a daemon thread still uses."""
    write_out(gc.get_objects())


def _open(settings: WorkerSettings) -> tuple[Queues, Callable[[str], Queue]]:
    """Return the queues, and a function that opens a client for one thread that waits for work.

    For a server that client has its own connection; a store is opened once per process.
    """
    if settings.url.startswith(SERVER_SCHEMES):
        queues = _http_queues(settings)
        return queues, lambda queue: _http_queues(settings).queue(queue)
    from queue_core.client.local_calls import LocalQueues  # see `open_queues`
    from queue_core.stores import open_store
    from queue_core.unit.service import QueueService

    opened = LocalQueues(QueueService(open_store(settings.url, durability=settings.durability)))
    return opened, opened.waiting_call


def _http_queues(settings: WorkerSettings) -> HttpQueues:
    return HttpQueues(settings.url, token=settings.token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)


def _run(runner: Runner, log: FilteringBoundLogger) -> int:
    """Run the worker; with a concurrency of 1, plain handlers run in this thread, the main one.

    Many libraries work in the main thread only: `signal.alarm`, those that set signal handlers, some with event loops.
    """
    serve = runner.caller_thread_loop()
    runner.start()  # a signal ends the process at once while hooks run: nothing is leased yet
    with stop_signals_handled(runner, watcher="none" if serve is None else "thread") as restore:
        if serve is None:
            return runner.run()
        codes: list[int] = []
        watch = Thread(target=lambda: codes.append(_watched(runner, log)), name="towline-watch", daemon=True)
        watch.start()
        is_logged = False

        def after_invocation() -> None:
            nonlocal is_logged
            taken = restore()
            if taken and not is_logged:
                is_logged = True
                log.warning(
                    events.SIGNALS_RESTORED,
                    signals=taken,
                    reason="a handler had replaced the worker's signal handlers; logged once",
                )

        serve(after_invocation)
        watch.join()
        return codes[0]


def _watched(runner: Runner, log: FilteringBoundLogger) -> int:
    """Call `Runner.run` outside the main thread; end the process from here when a handler blocks the main thread."""
    try:
        code = runner.run()
    except BaseException as error:  # noqa: BLE001  the top of a thread: without it nobody would end the worker
        _log_failure(error, log, thread="watch")
        exit_now(EXIT_INTERNAL, log=log)
    if runner.is_abandoned:
        exit_now(code, log=log)
    return code


class ExitBound:
    """Lets the interpreter exit, which waits for threads and pools, for some time only.

    Its thread is there from the start: where a handler has taken all memory, none can be started.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._begun = threading.Event()
        self._seconds, self._code = 0.0, EXIT_INTERNAL
        Thread(target=self._cut, name="towline-exit", daemon=True).start()

    def begin(self, seconds: float, *, code: int) -> None:
        """Call `exit_now` with this code after `seconds`, unless the process has ended by then."""
        self._seconds, self._code = seconds, code
        self._begun.set()

    def _cut(self) -> None:
        self._begun.wait()
        threading.Event().wait(self._seconds)
        exit_now(self._code, log=self._log)


def exit_now(code: int, *, log: FilteringBoundLogger) -> NoReturn:
    """End this process with `code`, and with it the child processes; log the threads and children that still ran.

    The handlers end before the children do: one that waits for a child would take its end for a result.
    """
    try:
        _say_goodbye(code, log)
    finally:  # also where there is no memory to say anything
        os._exit(code)


def _say_goodbye(code: int, log: FilteringBoundLogger) -> None:
    threads, children = _threads(), _children()
    if threads or children:
        log.warning(
            events.WORKER_CUT_OFF,
            reason="the grace is over and these still run: a handler should end the threads and processes it starts",
            threads=threads[:MAX_SHOWN],
            processes=[_shown(child) for child in children[:MAX_SHOWN]],
        )
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if children:
        become_last_program(code, [child.pid for child in children])


def _log_failure(error: BaseException, log: FilteringBoundLogger, *, thread: str) -> None:
    try:
        log.error(events.WORKER_FAILED, thread=thread, traceback=redacted_traceback(error))
    except BaseException:  # noqa: BLE001  there is no memory: the worker ends all the same
        without_traceback(error)


def _threads() -> list[str]:
    """Return the threads that Python would join at exit, each with the line of code it is at."""
    frames = sys._current_frames()  # noqa: SLF001  the only way to see another thread's stack
    waited_for = [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    return [
        f"{thread.name} at {line_of(frame).text}" if (frame := frames.get(thread.ident or 0)) else thread.name
        for thread in waited_for
    ]


def _children() -> "list[psutil.Process]":
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    import psutil  # only a worker that leaves children pays for the import

    try:
        return psutil.Process().children(recursive=True)
    except (psutil.Error, OSError):
        return []


def _shown(child: "psutil.Process") -> str:
    """Return the pid and program of a child, without arguments: they may contain a payload."""
    import psutil

    try:
        return f"{child.pid} {child.name()}"
    except psutil.Error:
        return str(child.pid)
