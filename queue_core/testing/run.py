"""Runs an app's handlers inside a test, with a store in memory and a manual clock: no process, no network."""

from asyncio import CancelledError
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Final

from queue_core.attempts.error_text import is_kind, name_of, text_of
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.client.queue import as_new_tasks
from queue_core.clock import ManualClock, seconds_between
from queue_core.errors import AppError, QueueError
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, ExchangeResult
from queue_core.worker.app import App
from queue_core.worker.invocation import Invocation
from queue_core.worker.lifecycle import EXIT_OK, EXIT_TIMED_OUT
from queue_core.worker.runner import Runner
from queue_core.worker.settings import WorkerSettings

__all__ = ["ManualClock", "MemoryQueues", "NotEmptyError", "TaskOutcome", "run_until_empty"]

MAX_CALLS: Final = 1000
"""Handler calls in one run: a limit for tasks that always fail and are retried."""
_HANDLER_ERRORS: Final = (Exception, SystemExit, CancelledError)
"""Errors of a handler; any other exception, such as Ctrl-C or `pytest.fail`, is raised in the test."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A task that was deleted or became dead.

    Args:
        result: the value that its handler or function returned; the task's item, if a batch handler returned a list.
        error: the exception of the last handler call, if the task is dead or was deleted unfinished by a queue that
            keeps no dead tasks. None: the task is done.
        attempts: number of handler calls.
    """

    queue: str
    name: str
    tag: str | None
    payload: bytes
    result: object
    error: BaseException | None
    attempts: int


class NotEmptyError(AssertionError):
    """Tasks are left: they are always retried, have no handler, or their queue is paused."""


class MemoryQueues(LocalQueues):
    """All queues of a new store in memory, whose time is that of `clock` and only moves when it is advanced."""

    def __init__(self, *specs: QueueSpec, clock: ManualClock | None = None) -> None:
        """`specs`: queues to create; `run_until_empty` creates the others that its app handles."""
        store = MemoryStore()
        store.clock = self.clock = clock or ManualClock()
        super().__init__(QueueService(store, jitter=lambda: 0.0))
        for spec in specs:
            self.put_queue(spec)

    def draining(self, name: str, run: "_Run") -> "_DrainingQueue":
        """Return a queue that retires its worker when there is nothing to do. For `run_until_empty`."""
        return _DrainingQueue(self._service, name, run)

    def seconds_until_due(self, queues: Sequence[str]) -> float | None:
        """Return the seconds until time makes a task leasable; None: never. For `run_until_empty`."""
        etas = self._service.read(lambda work: [work.transaction.next_eta(name, now=work.now) for name in queues])
        known = [eta for eta in etas if eta is not None]
        return max(0.0, seconds_between(self.clock.now(), min(known))) if known else None


def run_until_empty(
    app: App,
    tasks: bytes | NewTask | Iterable[NewTask] = (),
    *,
    queues: MemoryQueues | None = None,
    max_calls: int = MAX_CALLS,
) -> list[TaskOutcome]:
    """Add tasks and run the app's handlers, one call at a time, until its queues hold nothing but dead tasks.

    The worker's own code runs the handlers, so retries, follow-up tasks, batches and errors are as in production. The
    clock stands still while a handler runs, and jumps to the next eta when nothing is leasable. Synchronous handlers
    run in the caller's thread. Functions that a handler adds go to these queues too. Hooks run at the start and the end
    of each worker: one per queue, and again whenever time has passed.

    Args:
        tasks: tasks to add first; one without a `queue` goes to the only queue that the app has handlers for.
        queues: the store's queues, for a test that configures queues, adds tasks itself or inspects follow-up tasks.
        max_calls: the maximum number of handler calls.

    Returns the tasks that handlers were called for, in the order of their last calls. Raises `NotEmptyError` when
    tasks are left in a queue of the app.
    """
    queues = queues or MemoryQueues()
    known = {spec.name for spec in queues.queues()}
    for name in app.queues:
        if name not in known:
            queues.put_queue(QueueSpec(name))
    for task in as_new_tasks(tasks):
        queues.queue(task.queue or _only_queue(app)).add(replace(task, queue=None))
    run = _Run(app, queues, max_calls)
    with app.bound_to(queues, values=run.values):
        while run.calls_left > 0 and (run.work() or run.pass_time()):
            pass
    return run.outcomes()


def _only_queue(app: App) -> str:
    if len(app.queues) != 1:
        found = ", ".join(app.queues) or "none"
        raise AppError(f"which queue? the app has handlers for: {found}; name one by NewTask(queue=...)")
    return app.queues[0]


@dataclass(slots=True)
class _Run:
    """One run: the number of calls left, and the outcomes of those made."""

    app: App
    queues: MemoryQueues
    calls_left: int
    interrupt: BaseException | None = None
    called: dict[tuple[str, str], TaskOutcome] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    """The values that functions returned, by lease token: a worker drops those that are no tasks."""

    def work(self) -> bool:
        """Run a worker on each queue until nothing is leasable; False when nothing was."""
        before = self.calls_left
        for name in self.app.queues:
            if self.calls_left > 0 and self.queues.queue(name).stats().ready:
                self._run_worker(name)
                if self.interrupt is not None:
                    raise self.interrupt
        return self.calls_left < before

    def pass_time(self) -> bool:
        """Advance the clock to the next eta; False when none is ahead."""
        seconds = self.queues.seconds_until_due(self.app.queues)
        self.queues.clock.advance(seconds or 0.0)
        return bool(seconds)

    def record(self, call: Invocation) -> None:
        """Record what a handler returned or raised."""
        self.calls_left -= 1
        if call.error is not None and not is_kind(call.error, _HANDLER_ERRORS):
            self.interrupt, self.calls_left = call.error, 0
        has_entries = call.handler.batch is not None and isinstance(call.value, list | tuple)
        for index, task in enumerate(call.tasks):
            key = (task.queue, task.name)
            before = self.called.pop(key, None)
            result = None
            if call.error is None:
                value = call.value[index] if has_entries else call.value  # type: ignore[index]
                result = self.values.pop(task.lease.token, value)
            self.called[key] = TaskOutcome(
                task.queue,
                task.name,
                task.tag,
                task.payload,
                result,
                call.error,
                1 if before is None else before.attempts + 1,
            )

    def outcomes(self) -> list[TaskOutcome]:
        """Return the outcome of every task. Raises `NotEmptyError` unless all are done or dead."""
        for name in self.app.queues:
            queue = self.queues.queue(name)
            stats = queue.stats()
            if left := stats.pending:
                raise NotEmptyError(f"{left} task(s) are left in queue {name!r}: {self._why_left(queue)}")
            self._record_dead(queue)
        return list(self.called.values())

    def _run_worker(self, name: str) -> None:
        settings = WorkerSettings("", queue=name)
        draining = self.queues.draining(name, self)
        runner = Runner(
            self.app,
            settings,
            open_queue=lambda _name: draining,
            clock=self.queues.clock,
            on_invocation_end=self.record,
        )
        codes: list[int] = []
        serve = runner.caller_thread_loop()
        runner.start()
        if serve is None:
            codes.append(runner.run())
        else:
            thread = Thread(target=lambda: codes.append(runner.run()), name="towline-watch", daemon=True)
            thread.start()
            try:
                serve(lambda: None)
            except BaseException:
                runner.release_now("its run was interrupted")
                raise
            finally:
                thread.join()
        if codes not in ([EXIT_OK], [EXIT_TIMED_OUT]):  # the next call has another worker
            raise NotEmptyError(f"the worker of queue {name!r} failed; see its log")

    def _why_left(self, queue: LocalQueue) -> str:
        if self.calls_left <= 0:
            failed = [outcome for outcome in self.called.values() if outcome.error is not None]
            last = f"; {failed[-1].name} failed last: {_shown(failed[-1].error)}" if failed else ""
            return f"max_calls was reached{last}"
        if queue.stats().paused:
            return "it is paused"
        return "their tags have no handler"

    def _record_dead(self, queue: LocalQueue) -> None:
        """Correct the outcome of tasks that died although their handler returned, as a follow-up task was refused."""
        after: int | None = 0
        while after is not None:
            page = queue.peek(states=frozenset({TaskState.DEAD}), after=after)
            for task in page.tasks:
                outcome = self.called.get((task.queue, task.shown_name))
                if outcome is not None and outcome.error is None:
                    error = QueueError(f"dead although its handler returned: {task.reason}; see the log")
                    self.called[task.queue, task.shown_name] = replace(outcome, result=None, error=error)
            after = page.next_after


def _shown(error: BaseException | None) -> str:
    return "" if error is None else f"{name_of(type(error))}: {text_of(error)}"


class _DrainingQueue(LocalQueue):
    """A queue for the only worker of a run; it retires the worker once there is nothing to do for now."""

    def __init__(self, service: QueueService, name: str, run: _Run) -> None:
        super().__init__(service, name)
        self._of_run = run

    def exchange(
        self,
        deletions: Sequence[Deletion],
        *,
        count: int = 1,
        seconds: float | None = None,
        tags: TagFilter = ANY,
        worker: str = "",
        wait_seconds: float = 0.0,  # noqa: ARG002  no task is added meanwhile
    ) -> ExchangeResult:
        """See `Queue.exchange`."""
        if self._of_run.calls_left <= 0:
            self._service.run(lambda work: work.retire_worker(worker, busy="finish"))
        exchanged = super().exchange(deletions, count=count, seconds=seconds, tags=tags, worker=worker)
        if not exchanged[0]:
            self._service.run(lambda work: work.retire_worker(worker, busy="keep"))
        return exchanged
