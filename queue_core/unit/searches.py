"""The steps of searches and of changes of all that match, as operations of a unit of work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic_core import from_json, to_json

from queue_core.clock import Instant
from queue_core.stats import TaskRemoval
from queue_core.task import ANY, StoredTask, TaskState
from queue_core.unit.pieces import Piece, RunPiece, keep_first, session_of
from queue_core.unit.queue_verbs import Redrive, Retag
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.unit.verb import ReadStep, Steps
from queue_core.verbs import ClientCall, Page, Release
from queue_core.verbs.criteria import ChangeTo, MatchedBatch, Scan, Search
from queue_core.verbs.matching import Action

CHUNK = 50
"""Tasks that are changed in one transaction: other callers come between two, and Redis recognises as many repeated
calls."""


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The tasks that one step of a change found, and its answer, in which none is changed yet."""

    names: tuple[str, ...]
    batch: MatchedBatch

    def answer(self, changed: int) -> MatchedBatch:
        """Return the answer when so many were changed."""
        return replace(self.batch, changed=changed)


@dataclass(frozen=True, slots=True)
class _Target:
    """A task as it was when it was found to match."""

    name: str
    token: str
    eta: Instant


@dataclass(frozen=True, slots=True)
class Total:
    """How many tasks of the tags and states of a search there are, and the instant when they were counted."""

    tasks: int
    as_of: Instant


def plan_of(scan: Scan, total: Total) -> ChangePlan:
    """Return the plan to change all that a scan found."""
    batch = MatchedBatch(len(scan.found), 0, scan.next_after, scan.scanned, total.tasks, total.as_of)
    return ChangePlan(tuple(task.shown_name for task in scan.found), batch)


def keep_plan(work: UnitOfWork, call: ClientCall | None, plan: ChangePlan) -> ChangePlan:
    """Return the plan of a call: the first one that was made for it. Raises `KeyReusedError`."""
    if call is None:
        return plan
    facts = plan.batch
    encoded = to_json([plan.names, facts.matched, facts.next_after, facts.scanned, facts.total, facts.as_of])
    kept = keep_first(work, f"{session_of(call)}.plan", lambda: call.kept(encoded))
    names, matched, next_after, scanned, total, as_of = from_json(call.answer_of(kept))
    return ChangePlan(tuple(names), MatchedBatch(matched, 0, next_after, scanned, total, as_of))


def change_pieces(queue: str, action: Action, search: Search, plan: ChangePlan, *, to: ChangeTo, by: str) -> RunPiece:
    """Return the pieces that change the tasks of a plan, as far as they still match."""

    def run(piece: Piece) -> tuple[int, bool]:
        begin = piece.number * CHUNK
        names = plan.names[begin : begin + CHUNK]
        return _change_chunk(piece, queue, action, search, names, to, by), begin + CHUNK >= len(plan.names)

    return run


def scanned(queue: str, scan: Scan) -> Steps[Total]:
    """Search page by page, and return how many tasks there are to search."""
    total: Total = yield ReadStep(lambda work: total_of(work, queue, scan.search))
    while scan.goes_on:
        scan.take((yield ReadStep(lambda work: read_page(work, queue, scan))))
    return total


def read_page(work: UnitOfWork, queue: str, scan: Scan) -> Page:
    """Return the next page of a scan."""
    return work.peek(
        queue,
        tags=scan.search.tags,
        states=scan.search.states,
        names=sorted(scan.search.names) or None,
        after=scan.after,
        limit=scan.page_tasks,
        payload_bytes=scan.payload_bytes,
    )


def total_of(work: UnitOfWork, queue: str, search: Search) -> Total:
    """Return how many tasks of these tags and states there are."""
    stats = work.transaction.stats(queue, search.tags, now=work.now)
    counts = {
        TaskState.READY: stats.ready,
        TaskState.DELAYED: stats.delayed,
        TaskState.LEASED: stats.in_flight,
        TaskState.DEAD: stats.dead,
        TaskState.HELD: stats.held,
    }
    return Total(sum(counts.get(state, 0) for state in search.states), work.now)


def _change_chunk(
    piece: Piece, queue: str, action: Action, search: Search, names: Sequence[str], to: ChangeTo, by: str
) -> int:
    """Change those of the named tasks that still match; return how many.

    They are looked at again in the transaction that changes them, where the store has transactions of several verbs:
    a task that was leased or redriven since it was found is left alone.
    """
    if not names:
        return 0

    def still_matching() -> list[StoredTask]:
        page = piece.work.peek(
            queue,
            tags=ANY,
            states=search.states,
            names=names,
            after=0,
            limit=len(names),
            payload_bytes=search.payload_bytes,
        )
        return [task for task in page.tasks if search.matches(task)]

    kept = piece.plan(lambda: to_json([(task.shown_name, task.token, task.eta) for task in still_matching()]))
    targets = [_Target(name, token, Instant(eta)) for name, token, eta in from_json(kept)]
    return _change(piece.work, queue, action, targets, to, by) if targets else 0


def _change(work: UnitOfWork, queue: str, action: Action, tasks: Sequence[_Target], to: ChangeTo, by: str) -> int:
    names = [task.name for task in tasks]
    match action:
        case "delete":
            return work.delete_by_name(queue, names, removal=TaskRemoval(f"deleted by {by}")).count("deleted")
        case "redrive":
            return Redrive(queue, names=names).run(work, by)
        case "release":
            released = work.release(queue, [Release(task.token, charge="uncounted") for task in tasks])
            return sum(1 for one in released if one is not None)
        case "postpone":
            eta = to.eta
            assert eta is not None, "checked before"
            return sum(work.postpone(queue, task.name, expected=task.eta, eta=eta) for task in tasks)
        case "retag":
            return Retag(queue, names, to.tag).run(work, by)
