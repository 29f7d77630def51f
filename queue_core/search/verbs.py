"""The steps of searches and of changes of all that match, as operations of a unit of work."""

from collections.abc import Iterator, Sequence
from functools import partial

from queue_core.errors import InvalidRequestError
from queue_core.limits import check_tag
from queue_core.search.criteria import Action, ChangeTo, Scan, Search
from queue_core.service import Operation
from queue_core.task import ANY, StoredTask, TaskState
from queue_core.unit_of_work import UnitOfWork
from queue_core.verbs import Page, Release

CHUNK = 100
"""Tasks that are changed in one transaction: other callers come between two."""


def chunk_changes(
    queue: str, action: Action, search: Search, found: Sequence[StoredTask], *, to: ChangeTo
) -> Iterator[Operation[int]]:
    """Yield the transactions that change the found tasks, as far as they still match; each returns how many."""
    names = [task.shown_name for task in found]
    for begin in range(0, len(names), CHUNK):
        yield partial(
            change_chunk, queue=queue, action=action, search=search, names=names[begin : begin + CHUNK], to=to
        )


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


def total_of(work: UnitOfWork, queue: str, search: Search) -> int:
    """Return how many tasks of these tags and states there are."""
    stats = work.transaction.stats(queue, search.tags, now=work.now)
    counts = {
        TaskState.READY: stats.ready,
        TaskState.DELAYED: stats.delayed,
        TaskState.LEASED: stats.in_flight,
        TaskState.DEAD: stats.dead,
        TaskState.HELD: stats.held,
    }
    return sum(counts.get(state, 0) for state in search.states)


def check_action(action: Action, to: ChangeTo) -> None:
    """Raise `InvalidRequestError` for a postponement without an eta, or a value of anything else, or no tag."""
    if (action == "postpone") != (to.eta is not None):
        raise InvalidRequestError("eta: a postponement has one, and nothing else has")
    if to.tag is not None and action != "retag":
        raise InvalidRequestError("tag: only a retag has one")
    if to.tag is not None:
        check_tag(to.tag)


def change_chunk(
    work: UnitOfWork, *, queue: str, action: Action, search: Search, names: Sequence[str], to: ChangeTo
) -> int:
    """Change those of the named tasks that still match; return how many.

    They are looked at again in the transaction that changes them, where the store has transactions of several verbs:
    a task that was leased or redriven since it was found is left alone.
    """
    page = work.peek(
        queue,
        tags=ANY,
        states=search.states,
        names=names,
        after=0,
        limit=len(names),
        payload_bytes=search.payload_bytes,
    )
    tasks = [task for task in page.tasks if search.matches(task)]
    return _change(work, queue, action, tasks, to) if tasks else 0


def _change(work: UnitOfWork, queue: str, action: Action, tasks: Sequence[StoredTask], to: ChangeTo) -> int:
    names = [task.shown_name for task in tasks]
    match action:
        case "delete":
            return work.delete_by_name(queue, names).count("deleted")
        case "redrive":
            return work.redrive(queue, names, ANY)
        case "release":
            released = work.release(queue, [Release(task.token, charge="uncounted") for task in tasks])
            return sum(1 for one in released if one is not None)
        case "postpone":
            eta = to.eta
            assert eta is not None, "checked before"
            return sum(work.postpone(queue, task.shown_name, expected=task.eta, eta=eta) for task in tasks)
        case "retag":
            return work.retag(queue, names, to.tag)
