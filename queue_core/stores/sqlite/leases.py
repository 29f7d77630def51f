"""The lease verb: expire what is due, find the tasks in order, take them, all in the caller's transaction."""

import heapq
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from queue_core import limits, semantics
from queue_core.clock import Instant, after
from queue_core.fast_values import LazyList
from queue_core.semantics import is_delayed_until, size_of, unspent_end
from queue_core.stores.rare_text import set_rare_text
from queue_core.stores.sqlite.counters import DELAYED, LEASED, LEASES, READY, tally
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.rotation import first_tags, heads_of, in_lease_order, next_tag, round_robin
from queue_core.stores.sqlite.lanes.updates import expire, has_room_for, leave, room, update
from queue_core.stores.sqlite.rows import (
    LONG_PAYLOAD_BYTES,
    among,
    by_ids,
    completed,
    load,
    long_payload_of,
    ready_rows,
    spent_of,
    spent_text,
    task_of,
    write,
)
from queue_core.stores.sqlite.session import QueueRow, SqliteSession, untagged_id
from queue_core.stores.sqlite.workers import has_leased_before, remember_worker
from queue_core.task import Lease, TagFilter, lease_of
from queue_core.verbs import Granted, LeaseRequest, PayloadAllowance
from queue_core.verbs.validation import check_lease_time

_COLUMNS = "eta, id, tag, added_at, leases, leased_at, name, spent, payload, headers, checkpoint"


_FIRST_OF_ALL = f"{ready_rows(_COLUMNS)} ORDER BY eta, id LIMIT ?2"
_FIRST_OF_TAG = (
    f"SELECT {_COLUMNS} FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ?1 AND state = 0"  # noqa: S608
    " ORDER BY eta, id LIMIT ?2"
)
_FIRST_URGENT = (
    f"SELECT {_COLUMNS} FROM tasks INDEXED BY tasks_urgent WHERE queue = ?1 AND state < 0"  # noqa: S608
    " ORDER BY state, eta, id LIMIT ?2"
)
_FIRST_URGENT_OF_TAG = (
    f"SELECT {_COLUMNS} FROM tasks INDEXED BY tasks_urgent_by_tag WHERE tag = ?1 AND state < 0"  # noqa: S608
    " ORDER BY state, eta, id LIMIT ?2"
)
_ONE = f"SELECT {_COLUMNS} FROM tasks WHERE id = ?"  # noqa: S608
_HEAD = "SELECT eta, id FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ? AND state = 0 ORDER BY eta, id LIMIT ?"
_SET = (
    "UPDATE tasks SET state = 2, ready_at = eta, eta = ?, leases = leases + 1, worker = ?,"
    " leased_at = max(?, leased_at + 1)"
)
TAKE = by_ids(f"{_SET} WHERE {{ids}}")
"""Statements that lease tasks by id."""
_LENGTHS = "SELECT id, length(payload) FROM payloads WHERE id IN (SELECT value FROM json_each(?))"
_MOST_BYTES_OF_SHORT = LONG_PAYLOAD_BYTES + limits.MAX_TAG_BYTES + limits.MAX_TASK_NAME_CHARACTERS
"""The largest `size_of` of a task whose payload is in its row, in bytes."""
_PAYLOAD = itemgetter(8)
_URGENT_AMONG = "SELECT id FROM tasks NOT INDEXED WHERE id IN (SELECT value FROM json_each(?)) AND state < 0"
_TAKE_SPENT = f"{_SET}, spent = ? WHERE id = ?"


def lease(session: SqliteSession, name: str, request: LeaseRequest, *, now: Instant) -> Granted:
    """See `Transaction.lease`."""
    queue = session.open_queue(name)
    is_old_worker = has_leased_before(session, request.worker)
    seconds = queue.spec.lease_seconds if request.seconds is None else request.seconds
    check_lease_time(queue.spec, seconds)
    if not is_old_worker:
        remember_worker(session, request.worker, now=now)
    expiry = expire(session, queue, now=now)
    more_due = expiry.more_due
    if queue.spec.paused:
        return Granted((), expiry.expired)
    count = min(request.count, room(session, queue, now=now)) if queue.spec.is_limited else request.count
    rows = _candidates(session, queue, request.tags, count=count) if count else []
    if expiry.horizon is not None:
        rows = _before(session, rows, expiry.horizon)
    if request.allowance is not None and len(rows) > request.allowance.least:
        rows = _fitting(session, rows, request.allowance)
    if not rows:
        return Granted((), expiry.expired, more_due)
    leases = take(session, queue, rows, seconds=seconds, worker=request.worker, now=now)
    if not queue.is_plain:
        update_after_lease(session, queue, [row[2] for row in rows], now=now)
    return Granted(leases, expiry.expired, more_due)


def update_after_lease(session: SqliteSession, queue: QueueRow, tag_ids: Sequence[int], *, now: Instant) -> None:
    """Take the tokens of tasks that were leased, whose tags these are in order, and move these tags in the rotation."""
    spec = queue.spec
    if spec.rate is None and spec.per_tag.rate is None and not spec.per_tag.fair:
        leave(session)
        return
    taken: dict[int, int] = {}
    for tag_id in tag_ids:
        taken[tag_id] = taken.pop(tag_id, 0) + 1
    update(session, now=now, taken=taken)


def _before(session: SqliteSession, rows: list[Row], horizon: tuple[int, int]) -> list[Row]:
    """Return the rows of tasks before the first that is due still, and those of any priority."""
    ids = json.dumps([row[1] for row in rows])
    urgent = {row[0] for row in session.connection.execute(_URGENT_AMONG, (ids,)).fetchall()}
    return [row for row in rows if (row[0], row[1]) < horizon or row[1] in urgent]


def lease_delayed(
    session: SqliteSession,
    name: str,
    task_id: int,
    *,
    expected: Instant,
    worker: str,
    seconds: float | None,
    now: Instant,
) -> Lease | None:
    """See `Transaction.lease_delayed`."""
    queue = session.open_queue(name)
    is_old_worker = has_leased_before(session, worker)
    lease_seconds = queue.spec.lease_seconds if seconds is None else seconds
    check_lease_time(queue.spec, lease_seconds)
    if not is_old_worker:
        remember_worker(session, worker, now=now)
    row = next(iter(load(session.connection, queue, [task_id])), None)
    if row is None or not is_delayed_until(task_of(session, queue, row), expected, now=now):
        return None
    if not queue.is_plain and not has_room_for(session, queue, row[1], now=now):
        return None
    session.has_changes = True
    task = completed(session.connection, task_of(session, queue, row))
    leased = semantics.lease_delayed(task, worker=worker, seconds=lease_seconds, now=now)
    write(session.connection, [leased])
    session.counts.change(queue.whole, row[1], ((DELAYED, -1), (LEASED, 1), (LEASES, 1)))
    if not queue.is_plain:
        update(session, now=now, taken={row[1]: 1})
    return lease_of(leased)


def _candidates(session: SqliteSession, queue: QueueRow, tags: TagFilter, *, count: int) -> list[Row]:
    tag_ids = session.tag_ids(queue, tags)
    if tags.kind == "oldest":
        tag_ids = _oldest_tag(session, queue, tag_ids)
    if queue.spec.per_tag.fair and (tag_ids is None or len(tag_ids) > 1):
        return round_robin(session, queue, tag_ids, _COLUMNS, count=count)
    if tag_ids is None or len(tag_ids) == 1:
        return first_ready_rows(session, queue, None if tag_ids is None else tag_ids[0], count=count)
    if not tag_ids:
        return []
    if queue.has_priorities:
        ids = [head[2] for head in islice(in_lease_order(session, queue, tag_ids, limit=count), count)]
    else:
        ids = [task_id for _eta, task_id in islice(in_order(session, tag_ids, limit=count), count)]
    rows = (session.connection.execute(_ONE, (task_id,)).fetchone() for task_id in ids)
    return [row for row in rows if row is not None]


def first_ready_rows(session: SqliteSession, queue: QueueRow, tag_id: int | None, *, count: int) -> list[Row]:
    """Return the first ready tasks of a tag, or of all, in lease order."""
    sql, of = first_ready(queue, tag_id)
    if not queue.has_priorities:
        return session.cursor.execute(sql, (of, count)).fetchall()
    urgent, of_urgent = (_FIRST_URGENT, queue.id) if tag_id is None else (_FIRST_URGENT_OF_TAG, tag_id)
    rows = session.cursor.execute(urgent, (of_urgent, count)).fetchall()
    return rows if len(rows) == count else rows + session.cursor.execute(sql, (of, count - len(rows))).fetchall()


def _fitting(session: SqliteSession, rows: list[Row], room: PayloadAllowance) -> list[Row]:
    """Return the first rows, as many as the allowance has room for. A long payload is measured without being read."""
    if len(rows) * (_MOST_BYTES_OF_SHORT + room.each_bytes) <= room.total_bytes and None not in map(_PAYLOAD, rows):
        return rows
    long = [row[1] for row in rows if row[8] is None]
    lengths: dict[int, int] = dict(session.connection.execute(_LENGTHS, (json.dumps(long),)).fetchall()) if long else {}
    tags = session.tags_of([row[2] for row in rows])
    sizes = [size_of(lengths[row[1]] if row[8] is None else len(row[8]), tags[row[2]], row[6]) for row in rows]
    return rows[: room.fitting(sizes)]


def first_ready(queue: QueueRow, tag_id: int | None) -> tuple[str, int]:
    """Return the statement that finds the first ready tasks, ?2 at most, of a tag or of all; and its parameter ?1.

    It finds none with a priority.
    """
    if tag_id is not None:
        return _FIRST_OF_TAG, tag_id
    return (_FIRST_OF_ALL, queue.id) if queue.has_tags else (_FIRST_OF_TAG, untagged_id(queue.id))


def in_order(session: SqliteSession, tag_ids: list[int], *, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (eta, id) of ready tasks of several tags in lease order, read as far as they are consumed."""
    return heapq.merge(*(iter(session.connection.execute(_HEAD, (tag_id, limit))) for tag_id in tag_ids))


def _oldest_tag(session: SqliteSession, queue: QueueRow, tag_ids: list[int] | None) -> list[int]:
    """Return the tag of the first ready task, of these tags or of all; in a fair queue the one whose turn it is."""
    if queue.spec.per_tag.fair:
        tag_id = next_tag(session, queue, tag_ids)
        return [] if tag_id is None else [tag_id]
    if queue.has_priorities:
        if tag_ids is None:
            return first_tags(session, queue, limit=1)
        urgent = ((head, tag_id) for tag_id in tag_ids for head in islice(heads_of(session, queue, tag_id, limit=1), 1))
        return [tag_id for _head, tag_id in sorted(urgent)[:1]]
    if tag_ids is None:
        row = session.connection.execute(
            f"{ready_rows('eta, id, tag')} ORDER BY eta, id LIMIT 1",
            (queue.id,),
        ).fetchone()
        return [] if row is None else [row[2]]
    heads = ((session.connection.execute(_HEAD, (tag_id, 1)).fetchone(), tag_id) for tag_id in tag_ids)
    return [tag_id for _head, tag_id in sorted((head, tag_id) for head, tag_id in heads if head is not None)[:1]]


def take(
    session: SqliteSession, queue: QueueRow, rows: list[Row], *, seconds: float, worker: str, now: Instant
) -> Sequence[Lease]:
    """Lease the ready tasks of rows that were selected as `_candidates` does."""
    end = after(now, seconds)
    ends, payloads = _take_spent(session, rows, end=end, worker=worker, now=now)
    plain = [row[1] for row in rows if row[1] not in ends] if ends else [row[1] for row in rows]
    if plain:
        form, cells = among(plain)
        session.cursor.execute(TAKE[form], (end, worker, now, *cells))
    tag_ids = [row[2] for row in rows]
    for tag_id, taken in tally(tag_ids):
        numbers = session.counts.of(queue.whole, tag_id)
        numbers[READY] -= taken
        numbers[LEASED] += taken
        numbers[LEASES] += taken
    session.has_changes = True
    tags = session.tags_of(tag_ids)
    name = queue.spec.name

    def leases() -> list[Lease]:
        found: list[Lease] = []
        for eta, task_id, tag_id, added_at, number, last_leased_at, given, _, payload, rare, checkpoint in rows:
            leased_at = now if now > last_leased_at else last_leased_at + 1
            granted = Lease(
                name,
                f"_{task_id}" if given is None else given,
                tags[tag_id],
                payloads[task_id] if payload is None else payload,
                f"{task_id}.{leased_at}",
                worker,
                number + 1,
                leased_at,
                ends.get(task_id, end),
                eta,
                added_at,
                None,
                checkpoint,
            )
            found.append(granted if rare is None else set_rare_text(granted, rare))
        return found

    return LazyList(len(rows), leases) if len(rows) > 1 else tuple(leases())


def _take_spent(
    session: SqliteSession, rows: list[Row], *, end: Instant, worker: str, now: Instant
) -> tuple[dict[int, Instant], dict[int, bytes]]:
    """Lease the tasks whose lease ends at a spent end; return those ends and all long payloads, by task id."""
    ends: dict[int, Instant] = {}
    payloads: dict[int, bytes] = {}
    for _, task_id, _, _, _, _, _, spent, payload, _, _ in rows:
        if spent is not None:
            ends[task_id], still = unspent_end(end, spent_of(spent), now=now)
            session.connection.execute(_TAKE_SPENT, (ends[task_id], worker, now, spent_text(still), task_id))
        if payload is None:
            payloads[task_id] = long_payload_of(session.connection, task_id)
    return ends, payloads
