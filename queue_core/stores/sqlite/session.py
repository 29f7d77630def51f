"""The session of one transaction: its connection, the cached catalog of queues and tags, and changes not yet written.

A `CatalogCache` outlives transactions. One part of it is valid until another process commits anything, which SQLite's
data version shows; the rest until the catalog's revision, in row 0 of `counts`, rises. See ADR 17.
"""

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Lock
from typing import TypeAlias

from queue_core.admission import NO_TAG_LIMITS
from queue_core.clock import ClockSteps, Course, Instant, SteadyClock
from queue_core.errors import UnknownQueueError
from queue_core.stats import FinishedLease
from queue_core.stores.extra_settings import extra_settings_text, parse_extra_settings
from queue_core.stores.sqlite.counters import CounterChanges, Sample, sample_of, write_samples
from queue_core.stores.sqlite.driver import Cursor, Driver, SqliteConnection
from queue_core.task import QueueSpec, TagFilter, TaskState
from queue_core.verbs.validation import check_not_moved

MAX_CACHED_TAGS = 50_000
MAX_CACHED_WORKERS = 10_000
MAX_IDLE_READERS = 4
MAX_ANSWER_BYTES = 256 << 20
"""Bytes of kept answers that one process leaves in a store; the oldest are deleted first."""
ANSWER_BYTES_PER_MARK = 1 << 20
"""How many of them are deleted at a time."""
TAG_IDLE_MICROSECONDS = 86_400 * 1_000_000
TAGS_EXAMINED_PER_NEW_TAG = 8

StagedAdd: TypeAlias = tuple[int, int, int, Instant, int | None, str | None, bytes]

_CATALOG_STATE = "SELECT catalog_revision, added, (SELECT max(id) FROM staged_adds) FROM counts WHERE id = 0"
_KEEP_ANSWERS = "INSERT INTO answers (kept_at, kept) VALUES (?, ?)"
_ACTED_ON = (
    "lease_seconds",
    "max_lease_seconds",
    "max_leases",
    "retry_min_seconds",
    "retry_max_seconds",
    "on_exhausted",
    "name_retention_seconds",
)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue's row id, the id of the row in `counts` for the whole queue, its settings, and kinds of tasks it has.

    `has_tags`, `has_priorities`: whether a task ever had one. `is_plain`: it has no limits and is not fair.
    """

    id: int
    whole: int
    spec: QueueSpec
    has_tags: bool
    has_priorities: bool
    is_plain: bool

    @property
    def has_lanes(self) -> bool:
        """Return whether tags have lanes or a rotation."""
        return self.spec.per_tag != NO_TAG_LIMITS

    def state_of(self, tag_id: int, state: TaskState) -> TaskState:
        """Return the state in which a task is kept that gets into `state`: a ready one of a lane is held at first."""
        if state is TaskState.READY and tag_id > 0 and self.spec.per_tag.holds_tasks:
            return TaskState.HELD
        return state


class CatalogCache:
    """A bounded cache of queues, tags, workers and clients' calls that one connection keeps between transactions."""

    def __init__(self) -> None:
        self.data_version = -1  # SQLite's, after the last commit of this connection
        self.next_id = 1
        self.counted_id = 0  # the last task id that `counts` covers: staged adds have higher ones
        self.is_limited = False
        self.last_samples: dict[int, int] = {}
        self.revision = -1
        self.queues: dict[str, QueueRow] = {}
        self.limited: dict[int, str] = {}  # queues that are not plain, by their row in `counts`; maybe some that were
        self.tag_ids: dict[tuple[int, str], int] = {}
        self.tags: dict[int, str | None] = {}
        self.workers: set[str] = set()  # those that have leased before and are not retired
        self.examined = 0
        self.examined_session = ""
        self.examined_worker = ""
        self.known_workers: int | None = None  # about how many rows `workers` has; None: they were not counted yet
        self.calls: dict[str, int] = {}  # the number of the last answered call, by client session
        self.answers_read = 0  # the last row of `answers` that `calls` covers
        self.answers_are_read = False  # whether `calls` covers all of them
        self.kept_answers = 0
        self.kept_sessions: int | None = None  # about how many rows `sessions` has, and the bytes of their answers
        self.kept_bytes = 0
        self.answer_bytes = 0  # of answers since the last of `answer_marks`
        self.answer_marks: deque[int] = deque()  # the last row of `answers` after each `ANSWER_BYTES_PER_MARK`

    def forget(self) -> None:
        """Empty the cache: after a rollback, or when the catalog has changed."""
        self.data_version = -1
        self.last_samples.clear()
        self.revision = -1
        self.queues.clear()
        self.tag_ids.clear()
        self.tags.clear()
        self.workers.clear()


class SqliteSession:
    """The state of one transaction on one connection: what its verbs have read and what they have still to write."""

    __slots__ = (
        "_finished",
        "_new_tags",
        "admitted",
        "answers",
        "catalog",
        "connection",
        "counts",
        "cursor",
        "has_changes",
        "next_id",
        "now",
        "staged",
        "staged_rows",
    )

    def __init__(
        self,
        connection: SqliteConnection,
        catalog: CatalogCache,
        *,
        cursor: Cursor | None = None,
        data_version: int | None = None,
    ) -> None:
        """Args:
        cursor: a cursor of that connection, reused for statements whose rows are read all at once, or not at all.
        data_version: SQLite's, of this connection, now; None when it is not known.
        """
        self.connection = connection
        self.cursor = cursor or connection
        self.catalog = catalog
        self.counts = CounterChanges(catalog.limited)
        self.has_changes = False
        self._finished: dict[int, tuple[QueueRow, list[Sample]]] = {}
        self.now = Instant(0)
        self._new_tags = 0
        self.answers: dict[str, str] = {}
        """The last answer in this transaction to each client session, as stored."""
        self.admitted: dict[tuple[str, str | None], int] = {}
        """How many tasks of which queues and tags limits alone held back until now; see `Transaction.admitted`."""
        if data_version is None or data_version != catalog.data_version:
            self._refresh()
        self.next_id = catalog.next_id  # task ids ascend and are never reused
        self.staged_rows = catalog.next_id - 1 - catalog.counted_id
        """The number of rows in `staged_adds`."""
        self.staged: list[tuple[int, StagedAdd]] = []
        """Adds of this transaction, to be staged or flushed at its end (`adds.py`): the id of the row in `counts` for
        the whole queue, and the cells of a row of `staged_adds`."""

    def _refresh(self) -> None:
        """Read from the file what another process may have changed."""
        catalog = self.catalog
        catalog.answers_are_read = False
        row = self.connection.execute(_CATALOG_STATE).fetchone()
        assert row is not None, "the migration wrote it"
        revision, catalog.counted_id, last_staged_id = row
        if revision != catalog.revision:
            catalog.forget()
            catalog.revision = revision
            catalog.is_limited = self.connection.execute("SELECT 1 FROM storage").fetchone() is not None
        catalog.next_id = (last_staged_id or catalog.counted_id) + 1
        catalog.last_samples.clear()

    @property
    def has_staged(self) -> bool:
        """Return whether there are staged adds, which no index and no counter shows yet."""
        return bool(self.staged_rows or self.staged)

    # -- queues ---------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueRow:
        """Return the queue called `name`. Raises `UnknownQueueError`."""
        row = self.catalog.queues.get(name)
        return row if row is not None else self._find_queue(name)

    def open_queue(self, name: str) -> QueueRow:
        """Return the queue called `name`, to change its tasks. Raises `UnknownQueueError`, `QueueMovedError`."""
        row = self.catalog.queues.get(name) or self._find_queue(name)
        if row.spec.moved_to:
            check_not_moved(row.spec)
        return row

    def _find_queue(self, name: str) -> QueueRow:
        found = self.connection.execute(
            "SELECT q.id, c.id, q.settings, q.paused, q.moved_to,"
            " EXISTS (SELECT 1 FROM counts t WHERE t.queue = q.id AND t.tag > ''), q.has_priorities"
            " FROM queues q JOIN counts c ON c.queue = q.id AND c.tag IS NULL WHERE q.name = ?",
            (name,),
        ).fetchone()
        if found is None:
            some = self.connection.execute("SELECT name FROM queues ORDER BY name LIMIT 5").fetchall()
            raise UnknownQueueError.among(name, (row[0] for row in some))
        spec = spec_of(name, found[2], paused=found[3], moved_to=found[4])
        is_plain = not spec.is_limited and spec.per_tag == NO_TAG_LIMITS
        row = QueueRow(found[0], found[1], spec, bool(found[5]), bool(found[6]), is_plain)
        self.catalog.queues[name] = row
        if is_plain:
            self.catalog.limited.pop(row.whole, None)
        else:
            self.catalog.limited[row.whole] = name
        return row

    def catalog_changed(self) -> None:
        """Invalidate the `CatalogCache` of every process."""
        self.connection.execute("UPDATE counts SET catalog_revision = catalog_revision + 1 WHERE id = 0")
        self.catalog.forget()
        row = self.connection.execute("SELECT catalog_revision FROM counts WHERE id = 0").fetchone()
        assert row is not None, "the migration wrote it"
        self.catalog.revision = row[0]

    def with_priorities(self, queue: QueueRow) -> QueueRow:
        """Return the queue as one in which a task has a priority."""
        if queue.has_priorities:
            return queue
        self.connection.execute("UPDATE queues SET has_priorities = 1 WHERE id = ?", (queue.id,))
        self.catalog_changed()
        return self.queue(queue.spec.name)

    # -- tags -----------------------------------------------------------------------------------------------------

    def tag_id(self, queue: QueueRow, tag: str | None) -> int:
        """Return the id of the tag's row (None: untagged), made when there is none."""
        key = (queue.id, tag or "")
        cached = self.catalog.tag_ids.get(key)
        if cached is not None:
            return cached
        found = self._find_tag(key)
        if found is None:
            self._new_tags += 1
            row_id = untagged_id(queue.id) if tag is None else None
            self.connection.execute(
                "INSERT INTO counts (id, queue, tag, changed_at) VALUES (?, ?, ?, ?)", (row_id, *key, self.now)
            )
            if tag is not None and not self.queue(queue.spec.name).has_tags:
                self.catalog_changed()
            found = self._find_tag(key)
            assert found is not None, "it was written above"
        return found

    def existing_tag_id(self, queue: QueueRow, tag: str | None) -> int | None:
        """Return the id of the tag's row, or None when the queue never had that tag."""
        key = (queue.id, tag or "")
        cached = self.catalog.tag_ids.get(key)
        return cached if cached is not None else self._find_tag(key)

    def _find_tag(self, key: tuple[int, str]) -> int | None:
        found = self.connection.execute("SELECT id FROM counts WHERE queue = ? AND tag = ?", key).fetchone()
        if found is None:
            return None
        if len(self.catalog.tag_ids) >= MAX_CACHED_TAGS:
            self.catalog.tag_ids.clear()
        tag_id = int(found[0])
        self.catalog.tag_ids[key] = tag_id
        return tag_id

    def tag(self, tag_id: int) -> str | None:
        """Return the tag of a row; None: untagged."""
        tags = self.catalog.tags
        if tag_id in tags:
            return tags[tag_id]
        found = self.connection.execute("SELECT tag FROM counts WHERE id = ?", (tag_id,)).fetchone()
        assert found is not None, "a task's tag is never forgotten"
        if len(tags) >= MAX_CACHED_TAGS:
            tags.clear()
        tags[tag_id] = found[0] or None
        return tags[tag_id]

    def tags_of(self, tag_ids: Iterable[int]) -> dict[int, str | None]:
        """Return the tags of rows by their ids, which may repeat."""
        return {tag_id: self.tag(tag_id) for tag_id in set(tag_ids)}

    def tag_ids(self, queue: QueueRow, tags: TagFilter) -> list[int] | None:
        """Return the ids of the rows of the tags that a filter accepts; None: all tags of the queue."""
        if tags.kind == "untagged":
            untagged = self.existing_tag_id(queue, None)
            return [] if untagged is None else [untagged]
        if not tags.tags:
            return None
        found = (self.existing_tag_id(queue, tag) for tag in tags.tags)
        return [tag_id for tag_id in found if tag_id is not None]

    def _forget_idle_tags(self) -> None:
        """Examine the next few tags, in a cycle over all, and drop those that were empty and unchanged for a day."""
        limit = TAGS_EXAMINED_PER_NEW_TAG * self._new_tags
        examined = self.connection.execute(
            "SELECT id, ready + delayed + leased + dead + held, changed_at, tag FROM counts WHERE id > ?"
            " ORDER BY id LIMIT ?",
            (self.catalog.examined, limit),
        ).fetchall()
        self.catalog.examined = examined[-1][0] if len(examined) == limit else 0
        idle = [(row[0],) for row in examined if row[3] and not row[1] and row[2] < self.now - TAG_IDLE_MICROSECONDS]
        if idle:
            # A bucket that is not full yet is kept, with its tag: a long one may take more than a day.
            self.connection.executemany(
                "DELETE FROM counts WHERE id = ?1 AND id NOT IN (SELECT id FROM lanes WHERE id = ?1 AND full_at > ?2)",
                [(*row, self.now) for row in idle],
            )
            self.connection.executemany(
                "DELETE FROM lanes WHERE id = ? AND full_at <= ?", [(*row, self.now) for row in idle]
            )
            self.catalog_changed()

    # -- the end of the transaction -------------------------------------------------------------------------------

    def record(self, queue: QueueRow, finished: FinishedLease) -> None:
        """Record a finished lease, to be written as a sample."""
        self._finished.setdefault(queue.id, (queue, []))[1].append(sample_of(finished))

    def record_all(self, queue: QueueRow, finished: list[Sample]) -> None:
        """Record finished leases, given as samples."""
        before = self._finished.get(queue.id)
        if before is None:
            self._finished[queue.id] = queue, [*finished]
        else:
            before[1].extend(finished)

    def write_samples(self) -> None:
        """Write the finished leases recorded so far."""
        if not self._finished:
            return
        last = self.catalog.last_samples
        for queue_id, (queue, finished) in self._finished.items():
            keep = queue.spec.history_keep
            last[queue_id] = write_samples(self.connection, queue_id, finished, before=last.get(queue_id), keep=keep)
        self._finished = {}

    def write(self) -> None:
        """Write samples, answers and counters, right before the commit."""
        if self._finished:
            self.write_samples()
        if self.answers:
            self._keep_answers("\n".join(["", *self.answers.values(), ""]))
        catalog, last_id = self.catalog, self.next_id - 1
        if last_id != catalog.counted_id and not self.staged_rows:
            self.cursor.execute("UPDATE counts SET added = ? WHERE id = 0", (last_id,))
            catalog.counted_id = last_id
        catalog.next_id = self.next_id
        if self.counts.unwritten:
            self.counts.write(self.cursor, now=self.now)
        if self._new_tags:
            self._forget_idle_tags()

    def _keep_answers(self, kept: str) -> None:
        """Store the answers of this transaction, and delete the oldest where there are too many bytes of them."""
        self.cursor.execute(_KEEP_ANSWERS, (self.now, kept))
        catalog = self.catalog
        catalog.answer_bytes += len(kept)
        if catalog.answer_bytes < ANSWER_BYTES_PER_MARK:
            return
        catalog.answer_bytes = 0
        catalog.answer_marks.append(self.cursor.execute("SELECT max(id) FROM answers").fetchall()[0][0])
        if len(catalog.answer_marks) > MAX_ANSWER_BYTES // ANSWER_BYTES_PER_MARK:
            self.cursor.execute("DELETE FROM answers WHERE id <= ?", (catalog.answer_marks.popleft(),))

    def committed(self, *, data_version: int) -> None:
        """Mark the cached catalog as valid for the next transaction; `data_version` is SQLite's, after the commit."""
        self.catalog.data_version = data_version
        if self.answers and self.catalog.answers_are_read:
            self.catalog.answers_read += 1  # a transaction writes one row for all its answers


def untagged_id(queue_id: int) -> int:
    """Return the id of the row in `counts` for a queue's untagged tasks: negative, as no other id is."""
    return -queue_id


def spec_of(name: str, settings: str, *, paused: int, moved_to: str) -> QueueSpec:
    """Return a queue's settings from its row."""
    found = json.loads(settings)
    acted_on = {field: found[field] for field in _ACTED_ON}
    return QueueSpec(name=name, paused=bool(paused), moved_to=moved_to, **acted_on, **parse_extra_settings(settings))


def settings_of(spec: QueueSpec) -> str:
    """Return the JSON of a queue's settings for its row: all but those with a column (name, paused, moved_to)."""
    return json.dumps({field: getattr(spec, field) for field in _ACTED_ON} | json.loads(extra_settings_text(spec)))


class ReaderPool:
    """A pool of read connections, each with its catalog; `MAX_IDLE_READERS` stay open. Safe from any thread."""

    def __init__(self, driver: Driver, connect: Callable[[], SqliteConnection]) -> None:
        self._driver = driver
        self._connect = connect
        self._idle: list[tuple[SqliteConnection, CatalogCache]] = []
        self._is_closed = False
        self._reset()

    def _reset(self) -> None:
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._in_use = 0
        self._is_paused = False

    @contextmanager
    def snapshot(self) -> Iterator[SqliteSession]:
        """Enter a read transaction on a connection of the pool. Raises the driver's errors."""
        with self._lock:
            while self._is_paused:
                self._changed.wait()
            self._in_use += 1
            reader = self._idle.pop() if self._idle else None
        try:
            connection, catalog = reader or (self._connect(), CatalogCache())
            try:
                connection.execute("BEGIN")
                yield SqliteSession(connection, catalog)
            finally:
                with contextlib.suppress(self._driver.error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                self._keep(connection, catalog)
        finally:
            with self._lock:
                self._in_use -= 1
                if not self._in_use:
                    self._changed.notify_all()

    def close(self) -> Sequence[SqliteConnection]:
        """Keep no connection from now on; return the idle ones, which the caller closes."""
        with self._lock:
            self._is_closed = True
            return self._take_idle()

    def pause(self, seconds: float) -> None:
        """Admit no reader, and wait up to `seconds` until none is active."""
        with self._lock:
            self._is_paused = True
            self._changed.wait_for(lambda: not self._in_use, seconds)

    def resume(self) -> None:
        """Admit readers again."""
        with self._lock:
            self._is_paused = False
            self._changed.notify_all()

    def renew_after_fork(self) -> tuple[Sequence[SqliteConnection], bool]:
        """In the child of a fork: reset; return the inherited idle connections, and whether these were all."""
        are_all = not self._in_use
        self._reset()
        return self._take_idle(), are_all

    def _take_idle(self) -> Sequence[SqliteConnection]:
        idle, self._idle = self._idle, []
        return [connection for connection, _ in idle]

    def _keep(self, connection: SqliteConnection, catalog: CatalogCache) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE_READERS:
                self._idle.append((connection, catalog))
                return
        connection.close()


# -- time -------------------------------------------------------------------------------------------------------------

_COURSE = "SELECT boot, offset, lag, at, steps, step FROM clock"
_KEEP_COURSE = "REPLACE INTO clock (id, boot, offset, lag, at, steps, step) VALUES (1, ?, ?, ?, ?, ?, ?)"
_BRING_FORWARD = (
    "UPDATE tasks SET eta = ?1, ready_at = ?1 WHERE id IN (SELECT t.id FROM queues q, tasks t INDEXED BY tasks_delayed"
    " WHERE t.queue = q.id AND t.state = 1 AND t.eta > ?1 AND t.eta <= ?2 ORDER BY t.eta LIMIT ?3)"
)
MAX_BROUGHT_FORWARD = 1000
"""Tasks brought forward at once."""


def kept_course(connection: SqliteConnection) -> Course | None:
    """Return the course of the store's time that the file keeps; None before the first write."""
    row = connection.execute(_COURSE).fetchone()
    return None if row is None else Course(*row)


def steps_in(driver: Driver, path: Path) -> ClockSteps:
    """Return the steps that the store's time in this file went through since the host's boot. Raises `StoreError`."""
    clock = SteadyClock()
    try:
        connection = driver.connect(str(path), "")
        try:
            kept = kept_course(connection)
        finally:
            connection.close()
    except driver.error as error:
        raise driver.translate(error, str(path)) from error
    if kept is not None and (course := clock.next_course(kept)) is not None:
        clock.adopt(course)
    return clock.steps()


def keep_course(session: SqliteSession, clock: SteadyClock) -> None:
    """Follow the course that the file keeps; if the wall clock was stepped since, keep the one from here on."""
    kept = kept_course(session.connection)
    course = clock.next_course(kept)
    if course is not None:
        clock.adopt(course)
    if clock.course != kept:
        each = clock.course
        session.cursor.execute(_KEEP_COURSE, (each.boot, each.offset, each.lag, each.at, each.steps, each.step))
        session.has_changes = True


def bring_forward(session: SqliteSession, *, until: Instant, now: Instant) -> None:
    """Make tasks due whose eta lies between store time `now` and `until`, which the wall clock has reached."""
    due = "SELECT 1 FROM queues q, tasks t INDEXED BY tasks_delayed WHERE t.queue = q.id AND t.state = 1"
    if session.connection.execute(f"{due} AND t.eta > ? AND t.eta <= ? LIMIT 1", (now, until)).fetchone() is None:
        return
    session.connection.execute(_BRING_FORWARD, (now, until, MAX_BROUGHT_FORWARD)).fetchall()
    session.has_changes = True
