"""run_worker(): a whole worker process, from its settings to its exit code."""

import faulthandler
import signal
import traceback
from collections.abc import Callable
from threading import Thread
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from queue_core.api import Queue, Queues
from queue_core.client import HttpQueues
from queue_core.clock import SystemClock
from queue_core.connect import SERVER_SCHEMES
from queue_core.errors import QueueError, StoreUnavailableError
from queue_core.http_api.caller import Retries
from queue_core.local import LocalQueues
from queue_core.service import QueueService
from queue_core.stores import open_store
from queue_core.worker import events
from queue_core.worker.leaving import leave_now, leave_within
from queue_core.worker.lifecycle import EXIT_INTERNAL, EXIT_MISCONFIGURED, EXIT_OK, EXIT_UNREACHABLE
from queue_core.worker.loading import load_app
from queue_core.worker.respawn import EXIT_RECYCLED, respawned
from queue_core.worker.runner import OrphanWatch, Runner
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.signals import heard

SHORTEST_LEAVE_SECONDS: Final = 1.0
"""Threads and processes that a handler left have so long at least, when the worker has nothing else to wait for."""
TIMEOUT_SECONDS: Final = 10.0
"""How long a server may take to answer, beside the time it was asked to wait: a lease may end meanwhile."""
STACK_SIGNAL: Final = signal.SIGRTMIN + 1
"""At this signal the worker writes where its threads are to stderr, also while a handler keeps the interpreter lock."""
RETRIES: Final = Retries(tries=2)
"""A worker's threads have a patience of their own, and must look after their leases between two tries."""

_STDERR: Final = 2


def run_worker(settings: WorkerSettings) -> int:
    """Import the app, work until the end of the lifecycle, and return the exit code; every error is logged.

    0: finished, drained, retired or recycled. 70: an internal error, or a handler that never returns, or that ended or
    blocked the loop of async handlers. 75: the queue was out of reach for too long. 77: a handler changed the user or
    group of the process. 78: the app or the settings can't be used.

    Ends the process by itself, with that code, when a handler still runs that could not be waited for, or when what a
    handler left (a thread, a pool, a child process) holds up its end for longer than the grace. Must be called
    from the main thread, for its signals: SIGTERM and SIGINT drain, a second one of a kind releases at once.

    Under a supervisor of this host a worker that is recycled after so many tasks goes on, each lot of them done in a
    fresh child of this process (see `respawn`); any other ends then, and whoever started it starts the next.
    """
    faulthandler.register(STACK_SIGNAL, file=_STDERR, all_threads=True)
    if settings.recycle.tasks is None or settings.supervisor_lock is None:
        return _work(settings, EXIT_OK)
    watch, clock = OrphanWatch(settings.supervisor_lock), SystemClock()

    def may_go_on() -> bool:
        return watch.absent_seconds(now=clock.monotonic()) <= settings.orphan_grace_seconds

    return respawned(
        lambda may_begin, on_last_lease: _work(settings, EXIT_RECYCLED, may_begin, on_last_lease), may_go_on=may_go_on
    )


def _work(
    settings: WorkerSettings,
    recycled: int,
    may_begin: Callable[[], bool] = lambda: True,
    on_last_lease: Callable[[], None] = lambda: None,
) -> int:
    """What `run_worker` does, in one process.

    Args:
        recycled: the exit code of one that reached a bound of its life.
        may_begin: is called when the handlers are imported; False: nobody wants them any more.
        on_last_lease: is called when the last task is leased that the bounds of its life allow.
    """
    log = structlog.get_logger().bind(worker=settings.worker)
    queues: Queues | None = None
    try:
        app = load_app(settings.app, also=settings.app_folder)
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
        told = traceback.format_exc() if error.__cause__ is not None else None  # the user's own module failed
        log.error(events.WORKER_REFUSED, error=type(error).__name__, reason=str(error), traceback=told)  # noqa: TRY400
        if queues is not None:
            queues.close()
        return EXIT_UNREACHABLE if isinstance(error, StoreUnavailableError) else EXIT_MISCONFIGURED
    try:
        code = _run(runner, log)
    except Exception:  # noqa: BLE001  the top of the process
        log.error(events.WORKER_FAILED, thread="main", traceback=traceback.format_exc())  # noqa: TRY400
        code = EXIT_INTERNAL
    if runner.is_abandoned:
        # A thread can't be ended, and its tasks may be running elsewhere by now.
        leave_now(code, log=log)
    leave_within(max(SHORTEST_LEAVE_SECONDS, runner.grace_left_seconds()), code=code, log=log)
    queues.close()
    return code


def _open(settings: WorkerSettings) -> tuple[Queues, Callable[[str], Queue]]:
    """The queues, and how a thread that waits for work gets a line of its own.

    At a server that is a connection of its own; a store is opened once per process.
    """
    if settings.url.startswith(SERVER_SCHEMES):
        queues = _at_server(settings)
        return queues, lambda queue: _at_server(settings).queue(queue)
    opened = LocalQueues(QueueService(open_store(settings.url, durability=settings.durability)))
    return opened, opened.waiting_line


def _at_server(settings: WorkerSettings) -> HttpQueues:
    return HttpQueues(settings.url, token=settings.token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)


def _run(runner: Runner, log: FilteringBoundLogger) -> int:
    """Run the worker; a single slot for plain handlers in this thread, the main one, and the rest beside it.

    Many libraries work in the main thread only: `signal.alarm`, those that set signal handlers, some with event loops.
    """
    serve = runner.caller_thread_loop()
    with heard(runner, beside="no" if serve is None else "yes") as restore:
        if serve is None:
            return runner.run()
        codes: list[int] = []
        watch = Thread(target=lambda: codes.append(_watched(runner, log)), name="towline-watch", daemon=True)
        watch.start()
        is_told = False

        def after_invocation() -> None:
            nonlocal is_told
            taken = restore()
            if taken and not is_told:
                is_told = True
                log.warning(events.SIGNALS_RESTORED, signals=taken, reason="a handler had set its own; said once")

        serve(after_invocation)
        watch.join()
        return codes[0]


def _watched(runner: Runner, log: FilteringBoundLogger) -> int:
    """`Runner.run` beside the main thread: when that is held up by a handler, the process ends from here."""
    try:
        code = runner.run()
    except BaseException:  # noqa: BLE001  the top of a thread: without it nobody would end the worker
        log.error(events.WORKER_FAILED, thread="watch", traceback=traceback.format_exc())  # noqa: TRY400
        leave_now(EXIT_INTERNAL, log=log)
    if runner.is_abandoned:
        leave_now(code, log=log)
    return code
