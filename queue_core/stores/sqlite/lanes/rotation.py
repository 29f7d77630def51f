"""Lease order over priorities, and the rotation of a fair queue's tags.

Ready tasks with a priority are in indexes of their own, and go first: state, eta, id is the order of leases.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.lane import Lane
from queue_core.stores.sqlite.rows import ready_rows
from queue_core.stores.sqlite.session import QueueRow, SqliteSession

Head: TypeAlias = tuple[int, int, int]
"""State, eta and id of a ready task: its place in lease order."""

_URGENT = "SELECT {} FROM tasks INDEXED BY tasks_urgent WHERE queue = ?1 AND state < 0 ORDER BY state, eta, id LIMIT ?2"
_URGENT_OF_TAG = (
    "SELECT {} FROM tasks INDEXED BY tasks_urgent_by_tag WHERE tag = ?1 AND state < 0 ORDER BY state, eta, id LIMIT ?2"
)
_PLAIN_OF_TAG = (
    "SELECT {} FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ?1 AND state = 0"
    " ORDER BY eta, id LIMIT ?2 OFFSET ?3"
)
_HEAD = "state, eta, id"
_FIRST_URGENT_HEADS = _URGENT_OF_TAG.format(_HEAD)
_FIRST_HEADS = _PLAIN_OF_TAG.format(_HEAD)
_FIRST_TAGS_URGENT = _URGENT.format("tag")
_FIRST_TAGS = f"SELECT tag FROM ({ready_rows('tag, eta, id')} ORDER BY eta, id LIMIT ?2)"  # noqa: S608
_NEXT = (
    "SELECT head, place, id FROM lanes INDEXED BY lanes_rotation WHERE queue = ? AND head IS NOT NULL"
    " ORDER BY head, place LIMIT ?"
)
_NEXT_OF = "SELECT head, place, id FROM lanes WHERE id = ? AND head IS NOT NULL"


def heads_of(session: SqliteSession, queue: QueueRow, tag_id: int, *, limit: int) -> Iterator[Head]:
    """Yield the first ready tasks of a tag in lease order, read as far as they are consumed."""
    if queue.has_priorities:
        yield from session.connection.execute(_FIRST_URGENT_HEADS, (tag_id, limit))
    yield from session.connection.execute(_FIRST_HEADS, (tag_id, limit, 0))


def in_lease_order(session: SqliteSession, queue: QueueRow, tag_ids: Sequence[int], *, limit: int) -> Iterator[Head]:
    """Yield the first ready tasks of several tags in lease order."""
    return heapq.merge(*(heads_of(session, queue, tag_id, limit=limit) for tag_id in tag_ids))


def first_tags(session: SqliteSession, queue: QueueRow, *, limit: int) -> list[int]:
    """Return the tags of the queue's first ready tasks, one for each, in lease order."""
    tags: list[int] = []
    if queue.has_priorities:
        tags = [row[0] for row in session.connection.execute(_FIRST_TAGS_URGENT, (queue.id, limit)).fetchall()]
    if len(tags) < limit:
        found = session.connection.execute(_FIRST_TAGS, (queue.id, limit - len(tags))).fetchall()
        tags += [row[0] for row in found]
    return tags


# -- the rotation -----------------------------------------------------------------------------------------------------


def update_rotation(
    session: SqliteSession, queue: QueueRow, lanes: Sequence[Lane], *, taken: Mapping[int, int], last_place: int
) -> int:
    """Give each changed tag its place and its head, or take them away; return the last place given.

    Tags that were leased from go to the end; then those that have ready tasks again join, in lease order.
    """
    by_tag = {lane.tag_id: lane for lane in lanes}
    for tag_id in taken:
        lane = by_tag.get(tag_id)
        if lane is not None and lane.place is not None:
            last_place += 1
            lane.place = last_place
    joining: list[tuple[Head, Lane]] = []
    for lane in lanes:
        if not lane.ready:
            lane.place = lane.head = None
            continue
        if not queue.has_priorities and lane.place is not None:
            continue
        head = next(heads_of(session, queue, lane.tag_id, limit=1))
        lane.head = head[0]
        if lane.place is None:
            joining.append((head, lane))
    for _, lane in sorted(joining, key=lambda each: each[0]):
        last_place += 1
        lane.place = last_place
    return last_place


def next_tag(session: SqliteSession, queue: QueueRow, tag_ids: Sequence[int] | None) -> int | None:
    """Return the tag, of these or of all, whose turn it is."""
    return next((tag_id for _, _, tag_id in _turns(session, queue, tag_ids, limit=1)), None)


def round_robin(
    session: SqliteSession, queue: QueueRow, tag_ids: Sequence[int] | None, columns: str, *, count: int
) -> list[Row]:
    """Return these columns of the first `count` ready tasks, tags taking turns."""
    turns = _turns(session, queue, tag_ids, limit=count)
    if not turns:
        return []
    page = -(-count // len(turns))
    last_place = max(place for _, place, _ in turns)
    tasks = {tag_id: _tasks_of(session, queue, tag_id, columns, page=page, limit=count) for _, _, tag_id in turns}
    firsts: dict[int, Row] = {}
    heapq.heapify(turns)
    chosen: list[Row] = []
    while turns and len(chosen) < count:
        head, place, tag_id = heapq.heappop(turns)
        row = firsts.pop(tag_id, None) or next(tasks[tag_id], None)
        if row is None:
            continue
        if row[0] > head:  # more urgent ones of other tags may go before it
            firsts[tag_id] = row
            heapq.heappush(turns, (row[0], place, tag_id))
            continue
        chosen.append(row[1:])
        last_place += 1
        heapq.heappush(turns, (head, last_place, tag_id))
    return chosen


def _turns(
    session: SqliteSession, queue: QueueRow, tag_ids: Sequence[int] | None, *, limit: int
) -> list[tuple[int, int, int]]:
    """Return head, place and tag of the first tags in the rotation, in its order: no others can be among the next."""
    if tag_ids is None:
        return session.cursor.execute(_NEXT, (queue.id, limit)).fetchall()
    found = [row for tag_id in tag_ids for row in session.cursor.execute(_NEXT_OF, (tag_id,)).fetchall()]
    return sorted(found)[:limit]


def _tasks_of(
    session: SqliteSession, queue: QueueRow, tag_id: int, columns: str, *, page: int, limit: int
) -> Iterator[Row]:
    """Yield the ready tasks of a tag in lease order, a growing page at a time: the state, then these columns."""
    if queue.has_priorities:
        urgent = _URGENT_OF_TAG.format(f"state, {columns}")
        yield from session.connection.execute(urgent, (tag_id, limit)).fetchall()
    plain = _PLAIN_OF_TAG.format(f"state, {columns}")
    read = 0
    while read < limit:
        rows = session.cursor.execute(plain, (tag_id, page, read)).fetchall()
        yield from rows
        if len(rows) < page:
            return
        read += page
        page *= 2
