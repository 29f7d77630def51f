"""A tag's lane, and a whole queue's, as the file has them: loaded with the changes of this transaction, and written."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from queue_core.clock import NEVER, Instant
from queue_core.stores.sqlite.counters import HELD, LEASED, READY
from queue_core.stores.sqlite.session import QueueRow, SqliteSession

_COUNTS = "c.id, c.ready, c.leased, c.held"
_ONE = f"SELECT {_COUNTS}, NULL, NULL, NULL, NULL FROM counts c WHERE c.id = ?"  # noqa: S608
_MANY = f"SELECT {_COUNTS}, NULL, NULL, NULL, NULL FROM counts c WHERE c.id IN (SELECT value FROM json_each(?))"  # noqa: S608
_KEPT = "l.full_at, l.opens_at, l.place, l.head"
_ONE_KEPT = f"SELECT {_COUNTS}, {_KEPT} FROM counts c LEFT JOIN lanes l ON l.id = c.id WHERE c.id = ?"  # noqa: S608
_MANY_KEPT = (
    f"SELECT {_COUNTS}, {_KEPT} FROM counts c LEFT JOIN lanes l ON l.id = c.id"  # noqa: S608
    " WHERE c.id IN (SELECT value FROM json_each(?))"
)
_WRITE = (
    "INSERT INTO lanes (id, queue, full_at, opens_at, place, head) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET full_at = excluded.full_at, opens_at = excluded.opens_at, place = excluded.place, head = excluded.head"
)
_WHOLE = "SELECT c.leased, l.full_at, l.place FROM counts c LEFT JOIN lanes l ON l.id = c.id WHERE c.id = ?"


@dataclass(slots=True)
class Lane:
    """The tasks of one tag by state, and its row in `lanes`, if any."""

    tag_id: int
    ready: int
    leased: int
    held: int
    full_at: Instant = NEVER
    opens_at: Instant | None = None
    place: int | None = None
    head: int | None = None

    @property
    def row(self) -> tuple[Instant, Instant | None, int | None, int | None]:
        """The part of the lane that is kept in its row."""
        return self.full_at, self.opens_at, self.place, self.head


@dataclass(slots=True)
class WholeLane:
    """The leases of a whole queue, its bucket, and the last place given in its rotation."""

    leased: int
    full_at: Instant
    last_place: int


def load_lanes(session: SqliteSession, queue: QueueRow, tag_ids: list[int]) -> list[Lane]:
    """Return the lanes of these tags."""
    limits = queue.spec.per_tag
    has_rows = limits.fair or limits.rate is not None
    if len(tag_ids) == 1:
        rows = session.cursor.execute(_ONE_KEPT if has_rows else _ONE, (tag_ids[0],)).fetchall()
    else:
        rows = session.cursor.execute(_MANY_KEPT if has_rows else _MANY, (json.dumps(tag_ids),)).fetchall()
    lanes = []
    for tag_id, ready, leased, held, full_at, opens_at, place, head in rows:
        pending = session.counts.pending(tag_id)
        lanes.append(
            Lane(
                tag_id,
                ready + pending[READY],
                leased + pending[LEASED],
                held + pending[HELD],
                full_at or NEVER,
                opens_at,
                place,
                head,
            )
        )
    return lanes


def write_lanes(session: SqliteSession, queue: QueueRow, lanes: Iterable[Lane]) -> None:
    """Write the rows of lanes."""
    rows = [(lane.tag_id, queue.id, *lane.row) for lane in lanes]
    if rows:
        session.cursor.executemany(_WRITE, rows)
        session.has_changes = True


def load_whole(session: SqliteSession, queue: QueueRow) -> WholeLane:
    """Return a whole queue's; its leases as of the last verb."""
    row = session.cursor.execute(_WHOLE, (queue.whole,)).fetchall()[0]
    return WholeLane(row[0], Instant(row[1] or NEVER), row[2] or 0)


def write_whole(session: SqliteSession, queue: QueueRow, whole: WholeLane) -> None:
    """Write a whole queue's."""
    session.cursor.execute(_WRITE, (queue.whole, queue.id, whole.full_at, None, whole.last_place, None))
    session.has_changes = True
