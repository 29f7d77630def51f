"""Queue transfers in tests: queues with everything in them, contents without ids, and stores that fail midway."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from queue_core.attempts.attempt import Failure
from queue_core.clock import Instant, SystemClock, after
from queue_core.limits import LARGEST_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES
from queue_core.store import Store, Transaction, Unit
from queue_core.stores import open_store
from queue_core.task import ANY, NewTask, Progress, QueueSpec, StoredTask, TagFilter, TaskState
from queue_core.transfer.exporter import ExportResult, export
from queue_core.transfer.importer import Import, ImportResult, check_file
from queue_core.transfer.migration import MigrationResult, QueueMigration
from queue_core.transfer.reader import ExportReader, opened_for_reading
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, HeldName, LeaseRequest, Release, Renewal

QUEUE = "thumbs"
STATES = frozenset(TaskState)
LEAD_SECONDS = 0.3
MAX_WRITES = 60
"""More writes than a move of the queue made by `fill` takes."""
ODD_PAYLOADS = (b"", b"\x00", bytes(range(256)), "größe ✓\n\u2028".encode(), b"\xff" * 5000, b"z" * 4096, b'{"a": 1}')


def quiet(_what: object, _done: int, _total: int = 0) -> None:
    """Ignore progress."""


def fill(
    store: Store, *, tasks: int = 40, queue: str = QUEUE, longest: int = MAX_PAYLOAD_BYTES, **settings: object
) -> None:
    """Fill a queue with tasks in every state, odd payloads, names, tags, headers, attempts and leases cut short."""
    now = store.clock.now()
    kept: dict[str, object] = {"lease_calls_per_second": 10, "user_emails": ("a@example.org", "ü@example.org")}
    kept |= {"history_keep": 500, "history_seconds": 3600.0}
    spec = QueueSpec(queue, **{"max_leases": 5, "retry_min_seconds": 0.0, **kept, **settings})  # type: ignore[arg-type]
    with store.begin() as transaction:
        transaction.put_queue(spec, now=now)
    for start in range(0, tasks, 500):
        with store.begin() as transaction:
            transaction.add(
                queue, [_new_task(number, now, longest) for number in range(start, min(start + 500, tasks))], now=now
            )
    special = TagFilter.of("special")
    given = [
        NewTask(
            b"s%d" % number, name=f"special-{number}", tag="special", headers={"n": f"ü {number}"} if number else None
        )
        for number in range(12)
    ]
    with store.begin() as transaction:
        transaction.add(queue, given, now=now)
        leases = transaction.lease(queue, LeaseRequest(12, 3600, special, "old-1"), now=now).leases
    with store.begin() as transaction:
        transaction.delete(queue, [Deletion(lease.token) for lease in leases[:3]], now=now)
        reports = [Renewal(lease.token, 3600, Progress(0.5, "größe ✓"), b"\x00\xff") for lease in leases[3:6]]
        transaction.renew(queue, reports, now=now)
        failed = Failure("raised", "ValueError", "größe: no", "tasks.py:14", "host-1")
        transaction.release(queue, [Release(lease.token, 0, failure=failed) for lease in leases[3:5]], now=now)
        transaction.release(queue, [Release(lease.token, 3600) for lease in leases[5:7]], now=now)
        transaction.release(queue, [Release(lease.token, 0, "uncounted") for lease in leases[7:8]], now=now)
        transaction.release(queue, [Release(lease.token, dead_reason="no such cat") for lease in leases[8:10]], now=now)
        transaction.postpone(queue, "name-9", expected=after(now, 609), eta=after(now, 900), now=now)


def _new_task(number: int, now: Instant, longest: int) -> NewTask:
    payload = ODD_PAYLOADS[number % len(ODD_PAYLOADS)] if number % 2 else b"task %d" % number
    name = f"name-{number}" if number % 3 == 0 else None
    tag = ("a", None, "größe ✓", None)[number % 4]
    eta = after(now, 600.0 + number) if number % 5 == 4 else None
    bound = 9 if number % 7 == 3 else None
    return NewTask(b"\xfe" * longest if number == 7 else payload, name=name, tag=tag, eta=eta, max_leases=bound)


@contextmanager
def opened_file(path: Path) -> Iterator[Store]:
    """Open an SQLite store, closed again before another process opens it."""
    store = open_store(f"sqlite:///{path}")
    try:
        yield store
    finally:
        store.close()


def tasks_of(store: Store, *, queue: str = QUEUE) -> list[StoredTask]:
    """Return all tasks in id order, without what differs between stores: ids and lease holders."""
    found: list[StoredTask] = []
    begin: int | None = 0
    while begin is not None:
        with store.read() as look:
            page = look.peek(
                queue, ANY, STATES, after=begin, limit=1000, payload_bytes=LARGEST_PAYLOAD_BYTES, now=store.clock.now()
            )
        found += page.tasks
        begin = page.next_after
    return [_bare(task) for task in found]


def _bare(task: StoredTask) -> StoredTask:
    if task.state is TaskState.LEASED:
        return replace(task, id=0, worker="", leased_at=Instant(0))
    return replace(task, id=0)


def names_of(store: Store, *, queue: str = QUEUE) -> list[HeldName]:
    """Return the held names."""
    with store.read() as look:
        held = look.held_names(queue, after=None, limit=100_000, now=store.clock.now())
    return [name for name in held if not name.name.startswith("import-")]


def moved_to(store: Store, *, queue: str = QUEUE) -> str:
    """Return the queue's fence."""
    with store.read() as look:
        return look.queue(queue).moved_to


def exported(store: Store, path: Path, **options: object) -> ExportResult:
    """Export to a file."""
    return export(store, path, progress=quiet, **options)  # type: ignore[arg-type]


def gives_out(store: Store) -> bool:
    """Return whether an open queue could lease a task."""
    with store.read() as look:
        return any(not spec.moved_to and tasks_of(store, queue=spec.name) for spec in look.queues())


def checked(path: Path) -> tuple[int, int]:
    """Read all of an export and return its tasks and names."""
    reader = check_file(path, now=SystemClock().now(), progress=quiet)
    return reader.tasks, reader.names


def lines_of(path: Path) -> list[dict[str, object]]:
    """Return the lines of an export as objects."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def imported(store: Store, path: Path) -> ImportResult:
    """Import a file without checking it first."""
    with opened_for_reading(path) as file:
        reader = ExportReader(file, name=str(path), now=store.clock.now())
        return Import(store, reader, lines=0, progress=quiet, lead_seconds=LEAD_SECONDS).run()


def a_move(source: Store, target: Store, *, queue: str = QUEUE) -> QueueMigration:
    """Return a move that waits only briefly for one that was killed."""
    return QueueMigration(source, target, queue, progress=quiet, lead_seconds=LEAD_SECONDS)


def moved(source: Store, target: Store, *, queue: str = QUEUE) -> MigrationResult:
    """Move the queue."""
    return a_move(source, target, queue=queue).run()


class ProcessEndedError(Exception):
    """The moving process has ended."""


class InterruptedStore:
    """A store whose process ends at its n-th write: just before or just after the write takes effect.

    In a transactional store the write is the commit; else it is each verb that fills a queue.
    """

    def __init__(self, store: Store, *, at: int, when: str, end: Callable[[], None]) -> None:
        self._store = store
        self._left = at
        self._when = when
        self._end = end

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator[object]:
        """Begin a transaction, perhaps the last."""
        if self._store.unit == "verb":
            with self._store.begin() as transaction:
                yield _InterruptedTransaction(transaction, self.note)
            return
        with self._store.begin(unit) as transaction:
            yield transaction
            self.note("before")
        self.note("after")

    def note(self, when: str) -> None:
        """Count a write that is about to take effect, or has."""
        if when == "before":
            self._left -= 1
        if self._left == 0 and when == self._when:
            self._left = -1
            self._end()


class _InterruptedTransaction:
    def __init__(self, transaction: Transaction, note: Callable[[str], None]) -> None:
        self._transaction = transaction
        self._note = note

    def __getattr__(self, name: str) -> object:
        verb = getattr(self._transaction, name)
        if name not in ("put_queue", "set_moved", "hold_names", "restore", "keep_answer", "delete_queue", "lead"):
            return verb

        def call(*arguments: object, **options: object) -> object:
            self._note("before")
            answer = verb(*arguments, **options)
            self._note("after")
            return answer

        return call


def interrupted(store: Store, *, at: int, when: str) -> Store:
    """Return the store as seen by a process that ends at its n-th write; the end is an exception."""

    def end() -> None:
        raise ProcessEndedError

    return InterruptedStore(store, at=at, when=when, end=end)  # type: ignore[return-value]


def killed(store: Store, *, at: int, when: str) -> Store:
    """Return the store such that this process is SIGKILLed at its n-th write."""
    return InterruptedStore(store, at=at, when=when, end=lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[return-value]


def service(store: Store) -> QueueService:
    """Return a service over the store, as a server has it."""
    return QueueService(store, jitter=lambda: 0.0)
