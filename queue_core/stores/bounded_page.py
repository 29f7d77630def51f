"""A page of tasks with long payloads, bounded by the bytes of all of them. Pure but for its transaction.

A store can't know how many whole payloads fit before it has read them. So payloads are first read cut to a size at
which all of them fit; then longer, as far as the first of them fit.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from queue_core.semantics import fitting
from queue_core.store import Transaction
from queue_core.task import ANY, StoredTask, TaskState
from queue_core.verbs import Page, PeekQuery

GROWTH: Final = 8
"""How much longer payloads are read each time. More: fewer reads, and more bytes that don't fit."""
_ALL_STATES: Final = frozenset(TaskState)


def bounded_page(transaction: Transaction, queue: str, query: PeekQuery, *, total_bytes: int) -> Page:
    """Return a page as `Transaction.peek` does, that ends with the last task whose payload fits into `total_bytes`.

    It has at least one task, if there is one. A task that is deleted meanwhile is left out.
    """
    cut = min(query.payload_bytes, max(1, total_bytes // query.limit))
    page = transaction.peek(
        queue,
        query.tags,
        query.states,
        names=query.names,
        after=query.after,
        limit=query.limit,
        payload_bytes=cut,
        now=query.now,
    )
    if cut * query.limit > total_bytes:  # a byte of each is too many
        page = _fitting(page, total_bytes)
    while cut < query.payload_bytes:
        longer = min(query.payload_bytes, cut * GROWTH)
        at_once = max(1, total_bytes // longer)
        long = [task for task in page.tasks if len(task.payload) == cut]
        for start in range(0, len(long), at_once):
            last_id = page.tasks[-1].id if page.tasks else 0
            some = [task for task in long[start : start + at_once] if task.id <= last_id]
            if some:
                page = _fitting(_lengthened(transaction, queue, page, some, query, longer), total_bytes)
        cut = longer
    return page


def _lengthened(
    transaction: Transaction, queue: str, page: Page, some: Sequence[StoredTask], query: PeekQuery, payload_bytes: int
) -> Page:
    """Return the page with longer payloads of some of its tasks, which are otherwise as they were."""
    read = transaction.peek(
        queue,
        ANY,
        _ALL_STATES,
        names=[task.shown_name for task in some],
        limit=len(some),
        payload_bytes=payload_bytes,
        now=query.now,
    )
    payloads = {task.id: task.payload for task in read.tasks}
    wanted = {task.id for task in some}
    tasks = [
        replace(task, payload=payloads[task.id]) if task.id in payloads else task
        for task in page.tasks
        if task.id in payloads or task.id not in wanted
    ]
    return Page(tuple(tasks), page.next_after)


def _fitting(page: Page, total_bytes: int) -> Page:
    sizes = [len(task.payload) for task in page.tasks]
    number = fitting(sizes, total_bytes=total_bytes, each_bytes=0, least=1)
    return page if number == len(page.tasks) else Page(page.tasks[:number], page.tasks[number - 1].id)
