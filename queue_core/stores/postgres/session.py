"""One transaction under way: its connection, what it answers, what is to be done as it ends."""

from collections.abc import Sequence
from typing import NoReturn

from queue_core.clock import NEVER, Instant
from queue_core.errors import UnknownQueueError, WorkerRetiredError
from queue_core.store import ClientCall
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Call, Row, Statement, StatementRunner
from queue_core.stores.postgres.commit_markers import NO_MARKER, AutocommitRunner, VerbAnswerLostError, marker_of
from queue_core.task import QueueSpec
from queue_core.validation import check_lease_time, check_not_moved

UNKNOWN, MOVED, RETIRED, TOO_LONG = 1, 2, 3, 4

_READ_MARKER = Statement(
    "towline_commit_marker",
    "SELECT call, xid::text, ids FROM towline.commit_markers WHERE connection = $1",
    (pack.int8,),
)
_SET_MARKER = Statement(
    "towline_set_commit_marker", "SELECT towline.set_commit_marker($1, $2, $3)", (pack.int8, pack.int8, pack.int8s)
)
_XID = Statement("towline_number", "SELECT txid_current_if_assigned()")


class PostgresSession:
    """Calls statements in a transaction that begins with the first of them."""

    __slots__ = (
        "_autocommit",
        "_begin",
        "_pool",
        "_runner",
        "call",
        "defers_marker",
        "finished",
        "is_marked",
        "is_xid_known",
        "needs_vacuum",
        "now",
        "ready",
        "tagged",
        "xid",
    )

    def __init__(
        self,
        runner: StatementRunner,
        begin: Sequence[Call],
        autocommit: AutocommitRunner | None = None,
        pool: ConnectionPool | None = None,
    ) -> None:
        """Args:
        begin: what opens the transaction, in the same round trip as its first statement; none: it is open.
        marking: commits a verb as it is made, if that is the step's first.
        link: asked on for what became of a client's call.
        """
        self._pool = pool
        self.call: ClientCall | None = None
        """The client's call that is under way."""
        self.defers_marker = False
        """Whether that leaves its mark when its verb is done, unless it is committed by itself."""
        self.is_marked = False
        self._runner = runner
        self._autocommit = autocommit
        self._begin: Sequence[Call] | None = begin or None
        self.xid: int | None = None
        self.is_xid_known = True
        self.finished: dict[str, int] = {}
        self.tagged: dict[str, int] = {}
        self.now = NEVER
        self.needs_vacuum = False  # whether dead rows are to be cleared away, as far as it was looked
        self.ready: dict[tuple[str, str | None], int] = {}

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun, and is to be ended."""
        return self._begin is None

    @property
    def is_committed(self) -> bool:
        """Whether a verb has changed something and was committed by itself."""
        return self.xid is not None and not self.is_open

    def verb(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that is all of a verb, tells the transaction's number itself, and takes a mark at its end.

        Raises `VerbAnswerLostError` too.
        """
        call = self.call
        if call is not None and call.is_repeat:
            self._look_for(call)
        if self._autocommit is not None and not self.is_open and not self.is_committed:
            self.is_marked = call is not None
            return self._autocommit.rows(statement, values, None if call is None else marker_of(call))
        self.is_marked = call is not None and not self.defers_marker
        return self.rows(statement, *values, *(marker_of(call) if call is not None and self.is_marked else NO_MARKER))

    def leave_marker(self, call: ClientCall, task_ids: Sequence[int]) -> None:
        """Leave a client's mark beside those of others in this transaction, with the tasks that it leased."""
        self.rows(_SET_MARKER, *marker_of(call), task_ids)

    def _look_for(self, call: ClientCall) -> None:
        """Raise `VerbAnswerLostError` if a call took effect before, `OutcomeUnknownError` after a later one."""
        session, number = marker_of(call)
        found = self.rows(_READ_MARKER, session)
        if not found or found[0][0] < number:
            return
        last, xid, ids = found[0]
        call.answer_in((last, b""))
        self.is_marked = True
        assert self._pool is not None, "a client's calls are made in transactions of ours"
        raise VerbAnswerLostError(self._pool, int(xid), ids, is_repeat=True)

    def rows(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that only reads, or tells the transaction's number itself (see `note_number`)."""
        begin = self._begin
        if begin is None:
            return self._runner.call(statement, values)
        self._begin = None
        return self._runner.call_all([*begin, (statement, values)])

    def write(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that may write and does not tell the transaction's number."""
        self.is_xid_known = self.xid is not None
        return self.rows(statement, *values)

    def note_xid(self, xid: int | None) -> None:
        """A statement told the transaction's number; None: nothing is written yet."""
        if xid is not None:
            self.xid = xid

    def assigned_xid(self) -> int | None:
        """The transaction's number; None when it wrote nothing."""
        if not self.is_xid_known:
            self.note_xid(self.rows(_XID)[0][0])
            self.is_xid_known = True
        return self.xid

    def note_finished(self, queue: str, number: int) -> None:
        """So many finished leases of a queue were kept as samples."""
        self.finished[queue] = self.finished.get(queue, 0) + number

    def note_tagged(self, queue: str, number: int, *, now: Instant) -> None:
        """So many tasks with tags were added to a queue."""
        self.tagged[queue] = self.tagged.get(queue, 0) + number
        self.now = now

    def note_ready(self, queue: str, tag: str | None, number: int) -> None:
        """Time has made so many tasks of a tag ready, which nobody but the store will tell of."""
        key = (queue, tag)
        self.ready[key] = self.ready.get(key, 0) + number

    def take_ready(self) -> dict[tuple[str, str | None], int]:
        """What was noted so since it was last taken."""
        ready, self.ready = self.ready, {}
        return ready


def refuse(code: int, detail: str) -> NoReturn:
    """Raise what a function of the schema refused a call for; nothing was written."""
    subject, _, rest = detail.partition(" ")
    if code == MOVED:
        check_not_moved(QueueSpec(subject, moved_to=rest))
    if code == RETIRED:
        raise WorkerRetiredError(f"worker {detail} was retired: finish and exit")
    if code == TOO_LONG:
        queue, seconds, longest = detail.rsplit(" ", 2)
        check_lease_time(QueueSpec(queue, max_lease_seconds=float(longest)), float(seconds))
    raise UnknownQueueError.among(subject, [rest] if rest else ())
