"""One transaction under way: its connection, what it answers, what is to be done as it ends."""

from collections.abc import Sequence
from typing import NoReturn

from queue_core.clock import NEVER, Instant
from queue_core.errors import UnknownQueueError, WorkerRetiredError
from queue_core.store import ClientCall
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Call, Row, Statement, StatementRunner
from queue_core.stores.postgres.commit_markers import UNMARKED, CommitMarker, VerbAnswerLostError, mark_of
from queue_core.task import QueueSpec
from queue_core.validation import check_lease_time, check_not_moved

UNKNOWN, MOVED, RETIRED, TOO_LONG = 1, 2, 3, 4

_MARKED = Statement(
    "towline_commit_marker",
    "SELECT call, xid::text, ids FROM towline.commit_markers WHERE connection = $1",
    (pack.int8,),
)
_MARK = Statement(
    "towline_set_commit_marker", "SELECT towline.set_commit_marker($1, $2, $3)", (pack.int8, pack.int8, pack.int8s)
)
_NUMBER = Statement("towline_number", "SELECT txid_current_if_assigned()")


class PostgresSession:
    """Calls statements in a transaction that begins with the first of them."""

    __slots__ = (
        "_begin",
        "_caller",
        "_link",
        "_marking",
        "call",
        "finished",
        "is_littered",
        "is_marked",
        "is_numbered",
        "marks_later",
        "now",
        "ripe",
        "tagged",
        "xid",
    )

    def __init__(
        self,
        caller: StatementRunner,
        begin: Sequence[Call],
        marking: CommitMarker | None = None,
        link: ConnectionPool | None = None,
    ) -> None:
        """Args:
        begin: what opens the transaction, in the same round trip as its first statement; none: it is open.
        marking: commits a verb as it is made, if that is the step's first.
        link: asked on for what became of a client's call.
        """
        self._link = link
        self.call: ClientCall | None = None
        """The client's call that is under way."""
        self.marks_later = False
        """Whether that leaves its mark when its verb is done, unless it is committed by itself."""
        self.is_marked = False
        self._caller = caller
        self._marking = marking
        self._begin: Sequence[Call] | None = begin or None
        self.xid: int | None = None
        self.is_numbered = True
        self.finished: dict[str, int] = {}
        self.tagged: dict[str, int] = {}
        self.now = NEVER
        self.is_littered = False  # whether dead rows are to be cleared away, as far as it was looked
        self.ripe: dict[tuple[str, str | None], int] = {}

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
        if self._marking is not None and not self.is_open and not self.is_committed:
            self.is_marked = call is not None
            return self._marking.rows(statement, values, None if call is None else mark_of(call))
        self.is_marked = call is not None and not self.marks_later
        return self.rows(statement, *values, *(mark_of(call) if call is not None and self.is_marked else UNMARKED))

    def mark(self, call: ClientCall, task_ids: Sequence[int]) -> None:
        """Leave a client's mark beside those of others in this transaction, with the tasks that it leased."""
        self.rows(_MARK, *mark_of(call), task_ids)

    def _look_for(self, call: ClientCall) -> None:
        """Raise `VerbAnswerLostError` if a call took effect before, `OutcomeUnknownError` after a later one."""
        session, number = mark_of(call)
        found = self.rows(_MARKED, session)
        if not found or found[0][0] < number:
            return
        last, xid, ids = found[0]
        call.answer_in((last, b""))
        self.is_marked = True
        assert self._link is not None, "a client's calls are made in transactions of ours"
        raise VerbAnswerLostError(self._link, int(xid), ids, is_repeat=True)

    def rows(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that only reads, or tells the transaction's number itself (see `note_number`)."""
        begin = self._begin
        if begin is None:
            return self._caller.call(statement, values)
        self._begin = None
        return self._caller.call_all([*begin, (statement, values)])

    def write(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that may write and does not tell the transaction's number."""
        self.is_numbered = self.xid is not None
        return self.rows(statement, *values)

    def note_number(self, xid: int | None) -> None:
        """A statement told the transaction's number; None: nothing is written yet."""
        if xid is not None:
            self.xid = xid

    def number(self) -> int | None:
        """The transaction's number; None when it wrote nothing."""
        if not self.is_numbered:
            self.note_number(self.rows(_NUMBER)[0][0])
            self.is_numbered = True
        return self.xid

    def note_finished(self, queue: str, number: int) -> None:
        """So many finished leases of a queue were kept as samples."""
        self.finished[queue] = self.finished.get(queue, 0) + number

    def note_tagged(self, queue: str, number: int, *, now: Instant) -> None:
        """So many tasks with tags were added to a queue."""
        self.tagged[queue] = self.tagged.get(queue, 0) + number
        self.now = now

    def note_ripe(self, queue: str, tag: str | None, number: int) -> None:
        """Time has made so many tasks of a tag ready, which nobody but the store will tell of."""
        key = (queue, tag)
        self.ripe[key] = self.ripe.get(key, 0) + number

    def take_ripe(self) -> dict[tuple[str, str | None], int]:
        """What was noted so since it was last taken."""
        ripe, self.ripe = self.ripe, {}
        return ripe


def refuse(code: int, note: str) -> NoReturn:
    """Raise what a function of the schema refused a call for; nothing was written."""
    subject, _, rest = note.partition(" ")
    if code == MOVED:
        check_not_moved(QueueSpec(subject, moved_to=rest))
    if code == RETIRED:
        raise WorkerRetiredError(f"worker {note} was retired: finish and exit")
    if code == TOO_LONG:
        queue, seconds, longest = note.rsplit(" ", 2)
        check_lease_time(QueueSpec(queue, max_lease_seconds=float(longest)), float(seconds))
    raise UnknownQueueError.among(subject, [rest] if rest else ())
