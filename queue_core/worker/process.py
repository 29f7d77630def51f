"""run_worker(): a whole worker process, from its settings to its exit code."""

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import structlog

from queue_core.api import QueueApi, QueuesApi
from queue_core.client import HttpQueues
from queue_core.connect import SERVER_SCHEMES
from queue_core.errors import QueueError, StoreUnavailableError
from queue_core.http_api.caller import Retries
from queue_core.pull_queue import PullQueues
from queue_core.service import QueueService
from queue_core.stores import open_store
from queue_core.worker import events
from queue_core.worker.loading import load_app
from queue_core.worker.runner import Runner
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.shift import EXIT_INTERNAL, EXIT_MISCONFIGURED, EXIT_UNREACHABLE

TIMEOUT_SECONDS: Final = 10.0
"""How long a server may take to answer, beside the time it was asked to wait: a lease may end meanwhile."""
STACK_SIGNAL: Final = signal.SIGRTMIN + 1
"""At this signal the worker writes where its threads are to stderr, also while a handler keeps the interpreter lock."""
RETRIES: Final = Retries(tries=2)
"""A worker's threads have a patience of their own, and must look after their leases between two tries."""

_STDERR: Final = 2


def run_worker(settings: WorkerSettings) -> int:
    """Import the app, work until the end of the shift, and return the exit code; every error is logged.

    0: finished, drained, retired or recycled. 70: an internal error, or a handler that never returns. 75: the queue was
    out of reach for too long. 78: the app or the settings can't be used.

    Ends the process by itself, with that code, when a handler still runs that could not be waited for. Must be called
    from the main thread, for its signals: SIGTERM and SIGINT drain, a second one of a kind releases at once.
    """
    log = structlog.get_logger().bind(worker=settings.worker)
    faulthandler.register(STACK_SIGNAL, file=_STDERR, all_threads=True)
    queues: QueuesApi | None = None
    try:
        app = load_app(settings.app, also=settings.app_folder)
        queues, open_waiting = _open(settings)
        runner = Runner(app, settings, open_queue=queues.queue, open_waiting=open_waiting)
    except QueueError as error:
        told = traceback.format_exc() if error.__cause__ is not None else None  # the user's own module failed
        log.error(events.WORKER_REFUSED, error=type(error).__name__, reason=str(error), traceback=told)  # noqa: TRY400
        if queues is not None:
            queues.close()
        return EXIT_UNREACHABLE if isinstance(error, StoreUnavailableError) else EXIT_MISCONFIGURED
    try:
        with _signals(runner):
            code = runner.run()
    except Exception:  # noqa: BLE001  the top of the process
        log.error(events.WORKER_FAILED, thread="main", traceback=traceback.format_exc())  # noqa: TRY400
        code = EXIT_INTERNAL
    if runner.is_abandoned:
        # A thread can't be ended, and its tasks may be running elsewhere by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    queues.close()
    return code


def _open(settings: WorkerSettings) -> tuple[QueuesApi, Callable[[str], QueueApi]]:
    """The queues, and how a thread that waits for work gets a line of its own.

    At a server that is a connection of its own; a store is opened once per process.
    """
    if settings.url.startswith(SERVER_SCHEMES):
        queues = _at_server(settings)
        return queues, lambda queue: _at_server(settings).queue(queue)
    opened = PullQueues(QueueService(open_store(settings.url, durability=settings.durability)))
    return opened, opened.waiting_line


def _at_server(settings: WorkerSettings) -> HttpQueues:
    return HttpQueues(settings.url, token=settings.token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)


@contextmanager
def _signals(runner: Runner) -> Iterator[None]:
    """SIGTERM and SIGINT ask the runner to drain; the second of a kind, to let go at once.

    Of a kind: Ctrl-C reaches a whole group of processes, and their supervisor's SIGTERM right after it is no
    impatience.
    """
    seen: set[int] = set()

    def handle(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number in seen:
            runner.release_now(f"{name} again")
        else:
            seen.add(number)
            runner.drain(name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
