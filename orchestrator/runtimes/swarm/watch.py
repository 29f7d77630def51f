"""Poll all our tasks: collect exits, deliver signals, and remove slots of ended tasks."""

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Event, Thread
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError, SpawnError
from orchestrator.runtime import Exit
from orchestrator.runtimes.docker.container_state import ending_of
from orchestrator.runtimes.swarm import slots as swarm_slots
from orchestrator.runtimes.swarm.manager import ChangedMeanwhileError, SwarmManager
from orchestrator.runtimes.swarm.registry import NEVER, SwarmRegistry, SwarmWorker
from orchestrator.runtimes.swarm.scale_up import ScaleUp
from orchestrator.runtimes.swarm.tasks import SwarmTask, by_service, exit_of, lost, vanished
from queue_core.log import get_logger

log = get_logger()

POLL_SECONDS: Final = 0.25
"""Interval between two polls while there are workers, or slots to remove."""
IDLE_POLL_SECONDS: Final = 5.0
"""Interval between two polls when there are neither."""
STOP_SECONDS: Final = 10.0
"""How long `stop` waits for the thread."""
RETRY_SECONDS: Final = 1.0
"""Pause before an unavailable manager is tried again."""
PAUSE_FACTOR: Final = 5
"""A poll is followed by a pause of this many times its duration, up to `MAX_PAUSE_SECONDS`."""
MAX_PAUSE_SECONDS: Final = 2.0
"""The longest pause between two polls of an active swarm."""
QUIET_SECONDS: Final = 2.0
"""Slots of ended tasks are removed once no worker has started or ended for this long."""
EXPLAIN_SECONDS: Final = 1.0
"""Time per poll to ask engines about exits: the release of the other workers' leases must not wait for it."""
UNREACHABLE_SECONDS: Final = 3.0
"""How long a worker that can't be signalled gets to end by itself; one that the queue refuses needs milliseconds."""
LOWER_AGAIN_SECONDS: Final = 1.0
"""A service that still has its slots this long after it was lowered is lowered again."""
UNKNOWN_TASK_SECONDS: Final = 30.0
"""A task of ours that has been no worker for this long is asked to end."""


class SwarmWatch:
    """The polling thread. `start`, `nudge` and `stop` may be called from any thread."""

    def __init__(
        self,
        manager: SwarmManager,
        registry: SwarmRegistry,
        scale_up: ScaleUp,
        *,
        clock: MonotonicClock,
        on_exit: Callable[[], None],
    ) -> None:
        """`manager` is this thread's own client; `on_exit` is called when there is an exit to reap."""
        self._manager = manager
        self._registry = registry
        self._scale_up = scale_up
        self._clock = clock
        self._on_exit = on_exit
        self._nudged = Event()
        self._stops = False
        self.leads = True
        """Whether our supervisor leads: only then are slots removed, and tasks ended that are no worker."""
        self._is_away = False
        self._thread: Thread | None = None
        self._unknown_tasks: dict[str, Monotonic] = {}
        self._lowered_at: dict[str, Monotonic] = {}
        self._quiet_since = NEVER
        self._changes = -1
        self._is_swept = False

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="towline-swarm", daemon=True)
            self._thread.start()

    def nudge(self) -> None:
        """Poll now."""
        self._nudged.set()

    def stop(self) -> None:
        """End the thread and wait for it, at most `STOP_SECONDS` if an engine does not answer."""
        self._stops = True
        self._nudged.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while not self._stops:
            self._nudged.clear()
            try:
                took_seconds = self.poll()
                pause_seconds = IDLE_POLL_SECONDS
                if self._registry.members() or not self._is_swept:
                    pause_seconds = max(POLL_SECONDS, min(MAX_PAUSE_SECONDS, PAUSE_FACTOR * took_seconds))
                self._log_found()
            except RuntimeUnavailableError as error:
                pause_seconds = RETRY_SECONDS
                self._log_lost(error)
            except Exception:
                pause_seconds = RETRY_SECONDS
                log.exception(events.TURN_FAILED, runtime="swarm")
            self._nudged.wait(pause_seconds)

    def poll(self) -> float:
        """Poll all tasks once; return how long Swarm took to list them, in seconds.

        Raises `RuntimeUnavailableError`; then all workers are assumed to be as before.
        """
        members = self._registry.members()  # read first: a worker that joins meanwhile is not taken for gone
        changes = self._scale_up.changes
        began_at = self._clock.monotonic()
        tasks = self._manager.tasks()
        took_seconds = self._clock.monotonic() - began_at
        known = {task.id: task for task in tasks}
        self._collect_exits(members, known)
        self._send_signals()
        if self.leads:
            self._end_unknown_tasks(tasks)
            self._remove_slots(tasks, changes=changes)
        self._registry.forget_ended(tasks)
        return took_seconds

    # -- exits ----------------------------------------------------------------------------------------------------

    def _collect_exits(self, members: Mapping[str, SwarmWorker], known: Mapping[str, SwarmTask]) -> None:
        pairs = [(member, known.get(member.task_id)) for member in members.values()]
        unsure = any(task is not None and task.is_unwanted and not task.is_ended for _, task in pairs)
        down = self._manager.down_nodes() if unsure else {}
        now = self._clock.monotonic()
        ended: list[Exit] = []
        unexplained: list[tuple[Exit, SwarmTask, bool]] = []
        for member, task in pairs:
            if task is not None and not task.is_ended and not (task.is_unwanted and task.node in down):
                self._registry.update_task(member.handle.worker, task)
            elif task is None:
                ended.append(vanished(member.handle, at=now))
            elif not task.is_ended:
                ended.append(lost(member.handle, down[task.node], at=now))
            elif (one := exit_of(member.handle, task, at=now)).code == 0:
                ended.append(one)
            else:
                unexplained.append((one, task, bool(member.requested)))
        self._report(ended)
        explain_until = Monotonic(self._clock.monotonic() + EXPLAIN_SECONDS)
        for one, task, was_requested in unexplained:
            is_asked = self._clock.monotonic() < explain_until
            self._report([self._explained(one, task, was_requested=was_requested) if is_asked else one])

    def _report(self, ended: Sequence[Exit]) -> None:
        for one in ended:
            self._registry.record_exit(one)
        if ended:
            self._quiet_since, self._is_swept = self._clock.monotonic(), False
            self._on_exit()

    def _explained(self, ended: Exit, task: SwarmTask, *, was_requested: bool) -> Exit:
        """Return the exit with its engine's details."""
        last_lines = self._manager.last_lines(task)  # before: an engine may notice an OOM kill a moment after the end
        found = self._manager.inspected(task)
        ending = ending_of(found, was_requested=was_requested)
        # A container that Swarm ends itself is of a task that is shut down, not of a failed one.
        is_removed = (
            task.state == "failed"
            and ended.signal == signal.SIGKILL
            and (ending.is_removed or (not found and self._manager.is_removed(task)))
        )
        return replace(
            ended,
            out_of_memory=ending.out_of_memory,
            is_removed=is_removed,
            is_stopped=ended.is_stopped or is_removed,
            reason="" if is_removed else ended.reason or ending.reason,
            memory_limit_bytes=ending.memory_limit_bytes,
            last_lines=last_lines,
        )

    # -- signals --------------------------------------------------------------------------------------------------

    def _send_signals(self) -> None:
        for worker, member in self._registry.members().items():
            if member.requested == member.signalled or member.task is None or not member.task.container:
                continue
            name = member.stop_signal if member.requested == "drain" else signal.Signals.SIGKILL.name
            if self._manager.signal(member.task, name):
                self._registry.mark_signalled(worker, member.requested)
            elif not member.is_unreachable:
                self._registry.mark_unreachable(worker)
                log.warning(
                    events.WORKER_OUT_OF_REACH, worker=worker, node=member.task.node, requested=member.requested
                )

    def _end_unknown_tasks(self, tasks: Sequence[SwarmTask]) -> None:
        """End tasks that are no worker, started by hand or after a call whose answer was lost, after a while."""
        now = self._clock.monotonic()
        found = {t.id: t for t in tasks if not (t.is_ended or t.is_unwanted or self._registry.knows(t.id))}
        self._unknown_tasks = {task: self._unknown_tasks.get(task, now) for task in found}
        for task, seen_at in list(self._unknown_tasks.items()):
            if now - seen_at >= UNKNOWN_TASK_SECONDS and self._manager.signal(found[task], signal.Signals.SIGTERM.name):
                self._unknown_tasks[task] = now

    # -- slots to remove ------------------------------------------------------------------------------------------

    def _remove_slots(self, tasks: Sequence[SwarmTask], *, changes: int) -> None:
        """Lower replicas by the ended tasks, and by leaving ones that can't be signalled and had time to end."""
        now = self._clock.monotonic()
        if changes != self._changes:
            self._changes, self._quiet_since, self._is_swept = changes, now, False
        is_quiet = now - self._quiet_since >= QUIET_SECONDS
        going = self._leaving_tasks(now)
        services = by_service(tasks)
        self._lowered_at = {service: at for service, at in self._lowered_at.items() if service in services}
        for service, its in services.items():
            ended = swarm_slots.expendable(its)
            leaving = swarm_slots.expendable(its, going=going)
            if leaving > ended or (ended and is_quiet):
                self._lower(service, its, by=leaving, changes=changes)
        if is_quiet and not self._is_swept:
            self._is_swept = self._sweep(services, changes=changes)

    def _leaving_tasks(self, now: Monotonic) -> set[str]:
        going = {task for task, seen_at in self._unknown_tasks.items() if now - seen_at >= UNKNOWN_TASK_SECONDS}
        for member in self._registry.members().values():
            is_unplaced = member.task is not None and not member.task.node
            has_had_time = is_unplaced or now - member.requested_at >= UNREACHABLE_SECONDS
            if member.requested and has_had_time and (is_unplaced or member.is_unreachable):
                going.add(member.task_id)
        return going

    def _lower(self, service: str, tasks: Sequence[SwarmTask], *, by: int, changes: int) -> None:
        """Lower the replicas of a service, if this poll saw all its slots."""
        now = self._clock.monotonic()
        is_early = now - self._lowered_at.get(service, NEVER) < LOWER_AGAIN_SECONDS
        with self._scale_up.changing:
            if self._scale_up.changes != changes:
                return
            for found in self._manager.services():
                if found.id != service or (is_early and found.replicas < swarm_slots.slots(tasks)):
                    continue
                replicas = swarm_slots.lowered(tasks, replicas=found.replicas, by=by)
                if replicas is not None:
                    with contextlib.suppress(ChangedMeanwhileError, SpawnError):
                        self._manager.scale(found, replicas)
                        self._lowered_at[service] = now

    def _sweep(self, tasks: Mapping[str, Sequence[SwarmTask]], *, changes: int) -> bool:
        """Remove services with only ended tasks that no pool grows into; return whether the sweep was complete."""
        with self._scale_up.changing:
            if self._scale_up.changes != changes:
                return False
            for found in self._manager.services():
                is_over = all(task.is_ended for task in tasks.get(found.id, ()))
                if is_over and found.id not in self._scale_up.current.values():
                    with contextlib.suppress(ChangedMeanwhileError, SpawnError):
                        self._manager.remove(found)
            self._manager.remove_unused_secrets()
        return True

    # -- an unavailable manager -----------------------------------------------------------------------------------

    def _log_found(self) -> None:
        if self._is_away:
            self._is_away = False
            log.info(events.ENGINE_FOUND, engine=self._manager.url)

    def _log_lost(self, error: RuntimeUnavailableError) -> None:
        if not self._is_away:
            self._is_away = True
            log.warning(events.ENGINE_LOST, engine=self._manager.url, error=str(error))
