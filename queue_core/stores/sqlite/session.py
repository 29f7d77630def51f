"""What the verbs of one transaction share: the connection, what is known of queues and tags, and what is to be written.

A `CatalogCache` outlives transactions. A part of it holds until another process commits anything, which the library
tells; the rest until the catalog's revision, in row 0 of `counts`, rises.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock
from typing import TypeAlias

from queue_core.clock import Instant
from queue_core.errors import UnknownQueueError
from queue_core.stats import FinishedLease
from queue_core.stores.extra_settings import kept_settings, kept_text
from queue_core.stores.sqlite.driver import Cursor, Driver, SqliteConnection
from queue_core.stores.sqlite.statistics import Counts, Sample, sample_of, write_samples
from queue_core.task import QueueSpec, TagFilter
from queue_core.validation import check_not_moved

MAX_KNOWN_TAGS = 50_000
MAX_KNOWN_WORKERS = 10_000
MAX_IDLE_READERS = 4
TAG_IDLE_MICROSECONDS = 86_400 * 1_000_000
TAGS_EXAMINED_PER_NEW_TAG = 8

Arrival: TypeAlias = tuple[int, int, int, Instant, int | None, bytes]

_LOOK = "SELECT catalog_revision, added, (SELECT max(id) FROM arrivals) FROM counts WHERE id = 0"
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
    """A queue as the file has it: its row, its settings, the row that counts the whole of it, whether it has tags."""

    id: int
    whole: int
    spec: QueueSpec
    has_tags: bool


class CatalogCache:
    """What one connection remembers of queues and tags between transactions; bounded."""

    def __init__(self) -> None:
        self.seen = -1  # the library's number for the file as the last commit here left it
        self.next_id = 1
        self.counted_id = 0  # the last id that `counts` tells of: those of arrivals are beyond
        self.is_limited = False
        self.last_samples: dict[int, int] = {}
        self.revision = -1
        self.queues: dict[str, QueueRow] = {}
        self.tag_ids: dict[tuple[int, str], int] = {}
        self.tags: dict[int, str | None] = {}
        self.workers: set[str] = set()  # that have leased before, and are not retired
        self.examined = 0
        self.examined_session = ""
        self.calls: dict[str, int] = {}  # the last call of each session that was answered here
        self.answers_read = 0  # the last row of `answers` that `calls` tells of
        self.answers_are_read = False  # up to now: no other process has committed since
        self.kept_answers = 0

    def forget(self) -> None:
        """Know nothing: after a rollback, or when the catalog has changed."""
        self.seen = -1
        self.last_samples.clear()
        self.revision = -1
        self.queues.clear()
        self.tag_ids.clear()
        self.tags.clear()
        self.workers.clear()


class SqliteSession:
    """One transaction under way on one connection."""

    __slots__ = (
        "_finished",
        "_new_tags",
        "answers",
        "arrived",
        "arriving",
        "connection",
        "counts",
        "cursor",
        "known",
        "next_id",
        "now",
        "told",
    )

    def __init__(
        self,
        connection: SqliteConnection,
        known: CatalogCache,
        *,
        cursor: Cursor | None = None,
        seen: int | None = None,
    ) -> None:
        """Args:
        cursor: of that connection, made before; for statements whose rows nobody reads, or all at once.
        seen: the library's number for the file as it is now; None: it can't be relied on.
        """
        self.connection = connection
        self.cursor = cursor or connection
        self.known = known
        self.counts = Counts()
        self.told = False
        self._finished: dict[int, list[Sample]] = {}
        self.now = Instant(0)
        self._new_tags = 0
        self.answers: dict[str, str] = {}
        """By the session of a client: the answer to its last call in this transaction, as it is kept."""
        if seen is None or seen != known.seen:
            self._look_again()
        self.next_id = known.next_id  # ids are given to tasks in order, and never a second time
        self.arrived = known.next_id - 1 - known.counted_id  # those that wait in the table
        self.arriving: list[tuple[int, Arrival]] = []
        """Added in this transaction, to wait or to be sorted in (`adds.py`): the row that counts the whole queue,
        and the cells of a row."""

    def _look_again(self) -> None:
        """Read what another process may have changed."""
        known = self.known
        known.answers_are_read = False
        row = self.connection.execute(_LOOK).fetchone()
        assert row is not None, "the migration wrote it"
        revision, known.counted_id, last_arrival = row
        if revision != known.revision:
            known.forget()
            known.revision = revision
            known.is_limited = self.connection.execute("SELECT 1 FROM storage").fetchone() is not None
        known.next_id = (last_arrival or known.counted_id) + 1
        known.last_samples.clear()

    @property
    def waits(self) -> bool:
        """Whether tasks that were added alone wait to be sorted in."""
        return bool(self.arrived or self.arriving)

    # -- queues ---------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueRow:
        """The queue of that name. Raises `UnknownQueueError`."""
        row = self.known.queues.get(name)
        return row if row is not None else self._find_queue(name)

    def open_queue(self, name: str) -> QueueRow:
        """The queue of that name, to change its tasks. Raises `UnknownQueueError`, `QueueMovedError`."""
        row = self.known.queues.get(name) or self._find_queue(name)
        if row.spec.moved_to:
            check_not_moved(row.spec)
        return row

    def _find_queue(self, name: str) -> QueueRow:
        found = self.connection.execute(
            "SELECT q.id, c.id, q.settings, q.paused, q.moved_to,"
            " EXISTS (SELECT 1 FROM counts t WHERE t.queue = q.id AND t.tag > '')"
            " FROM queues q JOIN counts c ON c.queue = q.id AND c.tag IS NULL WHERE q.name = ?",
            (name,),
        ).fetchone()
        if found is None:
            some = self.connection.execute("SELECT name FROM queues ORDER BY name LIMIT 5").fetchall()
            raise UnknownQueueError.among(name, (row[0] for row in some))
        spec = spec_of(name, found[2], paused=found[3], moved_to=found[4])
        row = QueueRow(found[0], found[1], spec, bool(found[5]))
        self.known.queues[name] = row
        return row

    def catalog_changed(self) -> None:
        """Have every process read anew what it remembers, this one included."""
        self.connection.execute("UPDATE counts SET catalog_revision = catalog_revision + 1 WHERE id = 0")
        self.known.forget()
        row = self.connection.execute("SELECT catalog_revision FROM counts WHERE id = 0").fetchone()
        assert row is not None, "the migration wrote it"
        self.known.revision = row[0]

    # -- tags -----------------------------------------------------------------------------------------------------

    def tag_id(self, queue: QueueRow, tag: str | None) -> int:
        """The row of a tag (None: untagged), made when there is none."""
        key = (queue.id, tag or "")
        known = self.known.tag_ids.get(key)
        if known is not None:
            return known
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
            assert found is not None, "it was written a line above"
        return found

    def known_tag_id(self, queue: QueueRow, tag: str | None) -> int | None:
        """The row of a tag, or None when the queue never had it."""
        key = (queue.id, tag or "")
        known = self.known.tag_ids.get(key)
        return known if known is not None else self._find_tag(key)

    def _find_tag(self, key: tuple[int, str]) -> int | None:
        found = self.connection.execute("SELECT id FROM counts WHERE queue = ? AND tag = ?", key).fetchone()
        if found is None:
            return None
        if len(self.known.tag_ids) >= MAX_KNOWN_TAGS:
            self.known.tag_ids.clear()
        tag_id = int(found[0])
        self.known.tag_ids[key] = tag_id
        return tag_id

    def tag(self, tag_id: int) -> str | None:
        """The tag of a row; None: untagged."""
        tags = self.known.tags
        if tag_id in tags:
            return tags[tag_id]
        found = self.connection.execute("SELECT tag FROM counts WHERE id = ?", (tag_id,)).fetchone()
        assert found is not None, "a task's tag is never forgotten"
        if len(tags) >= MAX_KNOWN_TAGS:
            tags.clear()
        tags[tag_id] = found[0] or None
        return tags[tag_id]

    def tags_of(self, tag_ids: Iterable[int]) -> dict[int, str | None]:
        """The tags of rows, however often each is named."""
        return {tag_id: self.tag(tag_id) for tag_id in set(tag_ids)}

    def tag_ids(self, queue: QueueRow, tags: TagFilter) -> list[int] | None:
        """The rows of the tags that a filter takes; None: all of the queue."""
        if tags.kind == "untagged":
            untagged = self.known_tag_id(queue, None)
            return [] if untagged is None else [untagged]
        if not tags.tags:
            return None
        found = (self.known_tag_id(queue, tag) for tag in tags.tags)
        return [tag_id for tag_id in found if tag_id is not None]

    def _forget_idle_tags(self) -> None:
        """Look at a few tags, round and round, and drop those that were empty and untouched for a day."""
        limit = TAGS_EXAMINED_PER_NEW_TAG * self._new_tags
        examined = self.connection.execute(
            "SELECT id, ready + delayed + leased + dead, changed_at, tag FROM counts WHERE id > ? ORDER BY id LIMIT ?",
            (self.known.examined, limit),
        ).fetchall()
        self.known.examined = examined[-1][0] if len(examined) == limit else 0
        idle = [(row[0],) for row in examined if row[3] and not row[1] and row[2] < self.now - TAG_IDLE_MICROSECONDS]
        if idle:
            self.connection.executemany("DELETE FROM counts WHERE id = ?", idle)
            self.catalog_changed()

    # -- what is written at the end -------------------------------------------------------------------------------

    def note(self, queue: QueueRow, finished: FinishedLease) -> None:
        """Keep a finished lease for the samples."""
        self._finished.setdefault(queue.id, []).append(sample_of(finished))

    def note_all(self, queue: QueueRow, finished: list[Sample]) -> None:
        """Keep finished leases, as samples are."""
        self._finished.setdefault(queue.id, []).extend(finished)

    def write_samples(self) -> None:
        """Write the finished leases noted so far."""
        if not self._finished:
            return
        last = self.known.last_samples
        for queue_id, finished in self._finished.items():
            last[queue_id] = write_samples(self.connection, queue_id, finished, before=last.get(queue_id))
        self._finished = {}

    def write(self) -> None:
        """Write samples, answers and counters; the last act before the commit."""
        self.write_samples()
        if self.answers:
            self.cursor.execute(_KEEP_ANSWERS, (self.now, "\n".join(["", *self.answers.values(), ""])))
        known, last_id = self.known, self.next_id - 1
        if last_id != known.counted_id and not self.arrived:
            self.cursor.execute("UPDATE counts SET added = ? WHERE id = 0", (last_id,))
            known.counted_id = last_id
        known.next_id = self.next_id
        self.counts.write(self.cursor, now=self.now)
        if self._new_tags:
            self._forget_idle_tags()

    def committed(self, *, seen: int) -> None:
        """Keep what the file holds now, for the next transaction; `seen` is the library's number for it."""
        self.known.seen = seen
        if self.answers and self.known.answers_are_read:
            self.known.answers_read += 1  # one row for those of a transaction


def untagged_id(queue_id: int) -> int:
    """The row that counts a queue's tasks without a tag: told from all others by its sign."""
    return -queue_id


def spec_of(name: str, settings: str, *, paused: int, moved_to: str) -> QueueSpec:
    """A queue's settings from its row."""
    found = json.loads(settings)
    acted_on = {field: found[field] for field in _ACTED_ON}
    return QueueSpec(name=name, paused=bool(paused), moved_to=moved_to, **acted_on, **kept_settings(settings))


def settings_of(spec: QueueSpec) -> str:
    """A queue's settings for its row: all but its name, whether it is paused, and where it was moved to."""
    return json.dumps({field: getattr(spec, field) for field in _ACTED_ON} | json.loads(kept_text(spec)))


class Readers:
    """Connections of readers, beside the writer: each with what it knows, a few kept for the next. From any thread."""

    def __init__(self, driver: Driver, connect: Callable[[], SqliteConnection]) -> None:
        self._driver = driver
        self._connect = connect
        self._idle: list[tuple[SqliteConnection, CatalogCache]] = []
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._in_use = 0
        self._is_held = False

    @contextmanager
    def glance(self) -> Iterator[SqliteSession]:
        """The file as it is. Raises the driver's errors."""
        with self._lock:
            while self._is_held:
                self._changed.wait()
            self._in_use += 1
            reader = self._idle.pop() if self._idle else None
        try:
            connection, known = reader or (self._connect(), CatalogCache())
            try:
                connection.execute("BEGIN")
                yield SqliteSession(connection, known)
            finally:
                with contextlib.suppress(self._driver.error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                self._keep(connection, known)
        finally:
            with self._lock:
                self._in_use -= 1
                if not self._in_use:
                    self._changed.notify_all()

    def close(self) -> Sequence[SqliteConnection]:
        """Keep none from now on; those that were kept, for whoever closes them."""
        with self._lock:
            self._is_closed = True
            return self._take_idle()

    def hold(self, seconds: float) -> None:
        """Let nobody in, and wait until all are out, so many seconds at most."""
        with self._lock:
            self._is_held = True
            self._changed.wait_for(lambda: not self._in_use, seconds)

    def resume(self) -> None:
        """Let them in again."""
        with self._lock:
            self._is_held = False
            self._changed.notify_all()

    def take_over(self) -> tuple[Sequence[SqliteConnection], bool]:
        """In the child of a fork: the connections that were kept, and whether there was no other. Begins anew."""
        are_all = not self._in_use
        self._begin()
        return self._take_idle(), are_all

    def _take_idle(self) -> Sequence[SqliteConnection]:
        idle, self._idle = self._idle, []
        return [connection for connection, _ in idle]

    def _keep(self, connection: SqliteConnection, known: CatalogCache) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE_READERS:
                self._idle.append((connection, known))
                return
        connection.close()
