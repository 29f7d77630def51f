"""The nodes of a Celery fleet as their heartbeats, events and answers show them. Pure.

A heartbeat comes every 2 s and has two counts: tasks that run, and tasks begun so far. Answers to `inspect` name the
tasks; events of tasks, where the fleet sends them anyway, are exact.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Outcome
from orchestrator.base.values import value
from orchestrator.sources.celery.estimates import runs_between
from orchestrator.sources.celery.messages import ActiveTask, NodeSignal, worker_of

GONE_SECONDS: Final = 120.0
"""Silence after which a node that is no worker of ours is forgotten."""
MAX_NODES: Final = 5_000
"""Nodes that are remembered: anybody with the broker's URL can send heartbeats."""
MAX_RUNS: Final = 1_000
"""Runs of one report whose times are estimated: of more, the others are of no use for a mean."""
ANSWER_SECONDS: Final = 12.0
"""How long an answer to `reserved` counts; they are asked for every few seconds while there is work."""


@value
class TaskRun:
    """A task that ended at a node. `is_exact`: an event told it, no estimate from counts."""

    node: str
    began_at: Monotonic
    ended_at: Monotonic
    outcome: Outcome = "deleted"
    is_exact: bool = False

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max(0.0, self.ended_at - self.began_at)


@value
class CeleryNode:
    """One node: a worker with its processes or threads.

    `begun` counts the tasks that it began since it was first seen; `starts` has the estimated start of each that runs.
    `answered` tasks are those of the last `inspect active`, at `answered_at`, when `answered_begun` were begun;
    `reserved` counts fetched tasks that it has not begun, `etas` are those that it keeps until their time, in seconds
    since the epoch. `tasks` are running ones by
    events, and `has_events` says that it sends these. `is_offline`: it said so; its tasks may go on.
    `is_single`: its task runs in its main thread, and meanwhile it is silent.
    """

    node: str
    first_at: Monotonic
    heard_at: Monotonic
    active: int = 0
    processed: int = 0
    pid: int = 0
    begun: int = 0
    starts: tuple[Monotonic, ...] = ()
    answered: tuple[ActiveTask, ...] = ()
    answered_at: Monotonic | None = None
    answered_begun: int = 0
    reserved: int = 0
    etas: tuple[float, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[tuple[str, Monotonic], ...] = ()
    has_events: bool = False
    is_offline: bool = False
    has_heartbeats: bool = False
    is_single: bool = False

    @property
    def worker(self) -> str:
        """Our worker's name, if it is one of ours."""
        return worker_of(self.node)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The ids of the tasks that it ran when it last told them."""
        return tuple(task for task, _ in self.tasks) if self.has_events else tuple(one.task for one in self.answered)

    def reserved_at(self, at: Monotonic) -> int | None:
        """Return the tasks that it has fetched and not begun; None while that is unknown."""
        if self.answered_at is None or at - self.answered_at > ANSWER_SECONDS:
            return None
        return self.reserved

    def started_ats(self, *, at: Monotonic, wall_seconds: float) -> list[Monotonic]:
        """Return when each running task began: as told by events or an answer, else estimated."""
        if self.has_events and self.tasks:
            return [began_at for _, began_at in self.tasks]
        told = [one.started for one in self.answered if one.started is not None]
        if told and len(told) == self.active and self.begun == self.answered_begun:
            return [Monotonic(at - max(0.0, wall_seconds - started)) for started in told]
        starts = list(self.starts[: self.active])
        return starts + [at] * (self.active - len(starts))


def after_signal(known: CeleryNode | None, signal: NodeSignal, *, at: Monotonic) -> tuple[CeleryNode, list[TaskRun]]:
    """Return the node after an event, and the runs that the event shows to have ended."""
    if signal.kind in ("started", "succeeded", "failed"):
        return _after_task(known or CeleryNode(signal.node, at, at), signal, at=at)
    return _after_report(known, signal, at=at)


def _after_report(known: CeleryNode | None, signal: NodeSignal, *, at: Monotonic) -> tuple[CeleryNode, list[TaskRun]]:
    node = known or CeleryNode(signal.node, at, at)
    if not node.has_heartbeats:
        starts = (at,) * min(signal.active, MAX_RUNS)
        return _reported(replace(node, starts=starts, has_heartbeats=True), signal, at=at), []
    if signal.processed < node.processed or (signal.pid and node.pid and signal.pid != node.pid):
        # A new process under the same name: it began to count again.
        starts = (at,) * min(signal.active, MAX_RUNS)
        fresh = CeleryNode(
            node.node, node.first_at, at, begun=node.begun + signal.processed, starts=starts, queues=node.queues
        )
        return _reported(replace(fresh, has_heartbeats=True), signal, at=at), []
    begun = signal.processed - node.processed
    starts, runs = runs_between(
        node.starts,
        begun=min(begun, MAX_RUNS),
        active=min(signal.active, MAX_RUNS),
        before=node.heard_at,
        at=at,
    )
    after = _reported(replace(node, begun=node.begun + begun, starts=starts), signal, at=at)
    if node.has_events:
        return after, []
    return after, [TaskRun(node.node, run.began_at, run.ended_at) for run in runs]


def _reported(node: CeleryNode, signal: NodeSignal, *, at: Monotonic) -> CeleryNode:
    return replace(
        node,
        heard_at=at,
        active=signal.active,
        processed=signal.processed,
        pid=signal.pid or node.pid,
        is_offline=signal.kind == "offline",
    )


def _after_task(known: CeleryNode, signal: NodeSignal, *, at: Monotonic) -> tuple[CeleryNode, list[TaskRun]]:
    tasks = dict(known.tasks)
    if signal.kind == "started":
        if len(tasks) < MAX_RUNS:
            tasks[signal.task] = at
        return replace(known, tasks=tuple(tasks.items()), has_events=True), []
    began_at = tasks.pop(signal.task, None)
    if signal.run_seconds is not None:
        began_at = Monotonic(at - signal.run_seconds)
    node = replace(known, tasks=tuple(tasks.items()), has_events=True)
    if began_at is None:
        return node, []
    outcome: Outcome = "deleted" if signal.kind == "succeeded" else "released"
    return node, [TaskRun(node.node, began_at, at, outcome, is_exact=True)]


def after_answer(
    known: CeleryNode | None,
    node: str,
    *,
    at: Monotonic,
    active: tuple[ActiveTask, ...] | None = None,
    reserved: int | None = None,
    etas: tuple[float, ...] | None = None,
    queues: tuple[str, ...] | None = None,
    totals: tuple[int, int] | None = None,
    is_single: bool | None = None,
) -> tuple[CeleryNode, list[TaskRun]]:
    """Return the node after answers to `inspect`; what was not answered stays.

    `totals`, its pid and the tasks it began, take the place of heartbeats for a node that sends none.
    """
    found = known or CeleryNode(node, at, at)
    runs: list[TaskRun] = []
    if totals is not None and (not found.has_heartbeats or _is_silent(found, at)):
        found, runs = _after_totals(found, totals, at=at)
    if active is not None:
        found = replace(found, active=len(active), answered=active, answered_at=at, answered_begun=found.begun)
    if reserved is not None:
        found = replace(found, reserved=reserved)
    if etas is not None:
        found = replace(found, etas=etas)
    if queues is not None:
        found = replace(found, queues=queues)
    if is_single is not None:
        found = replace(found, is_single=is_single)
    if not found.has_heartbeats:
        found = replace(found, heard_at=at)
    return found, runs


def _after_totals(known: CeleryNode, totals: tuple[int, int], *, at: Monotonic) -> tuple[CeleryNode, list[TaskRun]]:
    """Learn from the number of tasks begun, of a node that sends no heartbeats."""
    pid, processed = totals
    if known.pid != pid:
        return replace(known, pid=pid, processed=processed), []
    begun = max(0, processed - known.processed)
    starts, runs = runs_between(
        known.starts, begun=min(begun, MAX_RUNS), active=min(known.active, MAX_RUNS), before=known.heard_at, at=at
    )
    node = replace(known, processed=processed, begun=known.begun + begun, starts=starts)
    return node, [TaskRun(node.node, run.began_at, run.ended_at) for run in runs]


def _is_silent(node: CeleryNode, at: Monotonic) -> bool:
    return at - node.heard_at > ANSWER_SECONDS


def present_nodes(nodes: Mapping[str, CeleryNode], *, workers: frozenset[str], at: Monotonic) -> dict[str, CeleryNode]:
    """Return the nodes without those that are silent for long or said goodbye, unless a worker of ours has the name.

    A worker that ends still runs its last tasks, and says nothing more: its process is watched instead.
    """
    kept = {
        name: node
        for name, node in nodes.items()
        if node.worker in workers or (not node.is_offline and at - node.heard_at <= GONE_SECONDS)
    }
    if len(kept) <= MAX_NODES:
        return kept
    newest = sorted(kept.values(), key=lambda node: (node.worker in workers, node.heard_at))[-MAX_NODES:]
    return {node.node: node for node in newest}
