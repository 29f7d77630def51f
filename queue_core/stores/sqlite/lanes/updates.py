"""The end of each verb in a queue with limits: lanes of changed tags admit what they have room for (ADR 37).

`CounterChanges.changed` has the tags whose tasks a verb changed. A queue without limits has none there.
"""

from collections.abc import Collection, Iterable, Mapping

from queue_core.admission import LaneChange, has_room_for_one, lane_change, lane_opens_at, queue_room
from queue_core.clock import Instant
from queue_core.limits import MAX_IN_FLIGHT
from queue_core.stores.sqlite.counters import HELD, LEASED, LEASES, READY
from queue_core.stores.sqlite.driver import Row
from queue_core.stores.sqlite.lanes.lane import Lane, WholeLane, load_lanes, load_whole, write_lanes, write_whole
from queue_core.stores.sqlite.lanes.rotation import first_tags, update_rotation
from queue_core.stores.sqlite.rows import MAX_EXPIRED_PER_CALL, ExpiredLeases, among, by_ids, expire_due
from queue_core.stores.sqlite.session import QueueRow, SqliteSession
from queue_core.task import QueueSpec

_NONE_TAKEN: Mapping[int, int] = {}
_OPEN = "SELECT id FROM lanes INDEXED BY lanes_opening WHERE queue = ? AND opens_at <= ? ORDER BY opens_at LIMIT ?"
_WITH_TASKS = "SELECT id FROM counts WHERE queue = ? AND tag IS NOT NULL AND (ready OR held)"
_FIRST_HELD = (
    "SELECT id, priority FROM tasks INDEXED BY tasks_kept_back WHERE queue = ? AND state = 4 AND state > 2 AND tag = ?"
    " ORDER BY priority DESC, eta, id LIMIT ? OFFSET ?"
)
_LAST_PLAIN = (
    "SELECT id, state FROM tasks INDEXED BY tasks_ready_by_tag WHERE tag = ? AND state = 0"
    " ORDER BY eta DESC, id DESC LIMIT ? OFFSET ?"
)
_LAST_URGENT = (
    "SELECT id, state FROM tasks INDEXED BY tasks_urgent_by_tag WHERE tag = ? AND state < 0"
    " ORDER BY state DESC, eta DESC, id DESC LIMIT ? OFFSET ?"
)
_ADMIT = by_ids("UPDATE tasks SET state = -coalesce(priority, 0), eta = ?, ready_at = ? WHERE {ids}")
_HOLD = by_ids("UPDATE tasks SET state = 4 WHERE {ids}")


def update(session: SqliteSession, *, now: Instant, taken: Mapping[int, int] = _NONE_TAKEN) -> None:
    """Update the lanes and the rotation of changed tags, and write the counters.

    Args:
        taken: how many tasks of which tags were just leased, in the order in which tags go to the end of the rotation.
    """
    changed, session.counts.changed = session.counts.changed, {}
    for whole, tag_ids in changed.items():
        _update(session, session.queue(session.catalog.limited[whole]), tag_ids, taken=taken, now=now)
    session.counts.changed.clear()


def leave(session: SqliteSession) -> None:
    """Write the counters after a lease that left all lanes as they were: without a rate or a rotation.

    READY and LEASED tasks of a tag are as many as before.
    """
    session.counts.write(session.cursor, now=session.now)
    session.counts.changed.clear()


def expire(
    session: SqliteSession, queue: QueueRow, *, now: Instant, limit: int = MAX_EXPIRED_PER_CALL
) -> ExpiredLeases:
    """Expire the first `limit` due tasks by eta, and update lanes, also those that time has opened."""
    expiry = expire_due(session, queue, now=now, limit=limit)
    if queue.is_plain:
        return expiry
    more_due = expiry.more_due
    if queue.spec.per_tag.rate is not None:
        found = session.cursor.execute(_OPEN, (queue.id, now, limit + 1)).fetchall()
        more_due = more_due or len(found) > limit
        if found:
            session.counts.changed.setdefault(queue.whole, set()).update(row[0] for row in found[:limit])
    update(session, now=now)
    return ExpiredLeases(expiry.expired, None, more_due)


def opens(session: SqliteSession, queue: QueueRow, *, now: Instant) -> bool:
    """Return whether time has opened a lane of the queue."""
    if queue.spec.per_tag.rate is None:
        return False
    return bool(session.cursor.execute(_OPEN, (queue.id, now, 1)).fetchall())


def limits_changed(session: SqliteSession, queue: QueueRow, *, before: QueueSpec, now: Instant) -> None:
    """Update all lanes of a queue whose settings were replaced; with the same limits, those that time has opened."""
    spec = queue.spec
    if queue.is_plain and before.per_tag == spec.per_tag:
        return
    limit = "SELECT count(*) FROM lanes WHERE queue = ?"
    if before.per_tag == spec.per_tag:
        (row,) = session.connection.execute(limit, (queue.id,)).fetchall()
        found = session.connection.execute(_OPEN, (queue.id, now, row[0])).fetchall()
    else:
        session.connection.execute("UPDATE lanes SET opens_at = NULL WHERE queue = ?", (queue.id,))
        if not spec.per_tag.fair:
            session.connection.execute(
                "UPDATE lanes SET place = NULL, head = NULL WHERE queue = ? AND head IS NOT NULL", (queue.id,)
            )
        found = session.connection.execute(_WITH_TASKS, (queue.id,)).fetchall()
    if found:
        are_new = before.per_tag != spec.per_tag
        _update(session, queue, {row[0] for row in found}, taken=_NONE_TAKEN, now=now, limits_changed=are_new)
        session.counts.changed.clear()


def _update(
    session: SqliteSession,
    queue: QueueRow,
    tag_ids: Collection[int],
    *,
    taken: Mapping[int, int],
    now: Instant,
    limits_changed: bool = False,
) -> None:
    spec = queue.spec
    ended = _ended(session, tag_ids) if spec.is_limited else 0
    lanes = load_lanes(session, queue, list(tag_ids))
    rows = {lane.tag_id: lane.row for lane in lanes}
    for lane in lanes:
        if lane.tag_id > 0:
            number = taken.get(lane.tag_id, 0)
            _update_lane(session, queue, lane, taken=number, now=now, limits_changed=limits_changed)
    whole = None
    if spec.per_tag.fair or spec.rate is not None:
        before = whole = load_whole(session, queue)
        before = WholeLane(whole.leased, whole.full_at, whole.last_place)
        if spec.rate is not None and taken:
            whole.full_at = spec.rate.full_again_at(whole.full_at, taken=sum(taken.values()), now=now)
        if spec.per_tag.fair:
            whole.last_place = update_rotation(session, queue, lanes, taken=taken, last_place=whole.last_place)
        if whole != before:
            write_whole(session, queue, whole)
    write_lanes(session, queue, [lane for lane in lanes if lane.row != rows[lane.tag_id]])
    session.counts.write(session.cursor, now=session.now)
    if ended:
        admit_by_room(session, queue, limit=ended, now=now)


def _ended(session: SqliteSession, tag_ids: Iterable[int]) -> int:
    """Return how many leases of these tags ended since their counters were written."""
    pending = map(session.counts.pending, tag_ids)
    return sum(numbers[LEASES] - numbers[LEASED] for numbers in pending)


# -- a tag's lane -----------------------------------------------------------------------------------------------------


def _update_lane(
    session: SqliteSession, queue: QueueRow, lane: Lane, *, taken: int, now: Instant, limits_changed: bool
) -> None:
    limits = queue.spec.per_tag
    if taken and limits.rate is not None:
        lane.full_at = limits.rate.full_again_at(lane.full_at, taken=taken, now=now)
    if limits.holds_tasks or lane.held:
        change = lane_change(
            limits,
            ready=lane.ready,
            leased=lane.leased,
            held=lane.held,
            full_at=lane.full_at,
            now=now,
            limits_changed=limits_changed,
        )
        _change(session, queue, lane, change, now=now)
    if limits.rate is not None:
        lane.opens_at = lane_opens_at(
            limits, ready=lane.ready, leased=lane.leased, held=lane.held, full_at=lane.full_at
        )


def _change(session: SqliteSession, queue: QueueRow, lane: Lane, change: LaneChange, *, now: Instant) -> None:
    if change.holds:
        held = _last_ready(session, queue, lane, limit=change.holds)
        form, cells = among(held)
        session.cursor.execute(_HOLD[form], cells)
    admitted: list[int] = []
    if change.admits:
        found = session.cursor.execute(_FIRST_HELD, (queue.id, lane.tag_id, change.admits, 0)).fetchall()
        admitted = [row[0] for row in found]
    ready, waiting = lane.ready - change.holds, lane.held + change.holds - change.admits
    swapped = 0
    if queue.has_priorities and ready and waiting:
        swaps = _swaps(session, queue, lane, admits=change.admits)
        swapped = len(swaps)
        if swaps:
            form, cells = among([worst for _, worst in swaps])
            session.cursor.execute(_HOLD[form], cells)
            admitted += [better for better, _ in swaps]
    if admitted:
        form, cells = among(admitted)
        session.cursor.execute(_ADMIT[form], (now, now, *cells))
        key = (queue.spec.name, session.tag(lane.tag_id))
        session.admitted[key] = session.admitted.get(key, 0) + len(admitted)
    more = len(admitted) - swapped - change.holds
    if admitted or change.holds:
        session.has_changes = True
        session.counts.change(queue.whole, lane.tag_id, ((READY, more), (HELD, -more)))
        lane.ready += more
        lane.held -= more


def _last_ready(session: SqliteSession, queue: QueueRow, lane: Lane, *, limit: int) -> list[int]:
    """Return the ids of the last ready tasks of a tag in lease order, the last first."""
    found = session.cursor.execute(_LAST_PLAIN, (lane.tag_id, limit, 0)).fetchall()
    if queue.has_priorities and len(found) < limit:
        found += session.cursor.execute(_LAST_URGENT, (lane.tag_id, limit - len(found), 0)).fetchall()
    return [row[0] for row in found]


def _swaps(session: SqliteSession, queue: QueueRow, lane: Lane, *, admits: int) -> list[tuple[int, int]]:
    """Return pairs of ids: a held task of higher priority, besides those admitted, and the ready one it replaces."""
    swaps: list[tuple[int, int]] = []
    plain = session.connection.execute(_LAST_PLAIN, (lane.tag_id, MAX_IN_FLIGHT, 0))
    urgent = session.connection.execute(_LAST_URGENT, (lane.tag_id, MAX_IN_FLIGHT, 0))
    worst = _both(plain, urgent)
    held = session.connection.execute(_FIRST_HELD, (queue.id, lane.tag_id, MAX_IN_FLIGHT, admits))
    for (better_id, priority), (worst_id, state) in zip(held, worst, strict=False):
        if (priority or 0) <= -state:
            break
        swaps.append((better_id, worst_id))
    return swaps


def _both(first: Iterable[Row], second: Iterable[Row]) -> Iterable[Row]:
    yield from first
    yield from second


# -- a whole queue ----------------------------------------------------------------------------------------------------


def room(session: SqliteSession, queue: QueueRow, *, now: Instant, over: int = 0) -> int:
    """Return how many leases the limits of the whole queue let it grant; its counters are written.

    Args:
        over: leases that have expired, though the file still has them.
    """
    whole = load_whole(session, queue)
    return queue_room(
        queue.spec.max_in_flight, queue.spec.rate, leased=whole.leased - over, full_at=whole.full_at, now=now
    )


def has_room_for(session: SqliteSession, queue: QueueRow, tag_id: int, *, now: Instant) -> bool:
    """Return whether limits let a quarantined task of this tag be leased."""
    if queue.spec.is_limited and room(session, queue, now=now) < 1:
        return False
    if tag_id < 0 or not queue.spec.per_tag.holds_tasks:
        return True
    (lane,) = load_lanes(session, queue, [tag_id])
    return has_room_for_one(queue.spec.per_tag, ready=lane.ready, leased=lane.leased, full_at=lane.full_at, now=now)


MAX_NAMED = 100
"""Ready tasks whose tags are named at once when room returned: each wakes one waiting call."""


def admit_by_room(session: SqliteSession, queue: QueueRow, *, limit: int, now: Instant) -> None:
    """Name the tags of the first ready tasks, as many as there is room for, `limit` at most; see `admitted`."""
    number = min(limit, room(session, queue, now=now), MAX_NAMED)
    for tag_id in first_tags(session, queue, limit=number) if number else []:
        key = (queue.spec.name, session.tag(tag_id))
        session.admitted[key] = session.admitted.get(key, 0) + 1
