"""One transaction in progress: its connection, and the facts that its verbs note for the commit."""

import json
from collections.abc import Iterable, Sequence
from typing import NoReturn

from queue_core.clock import NEVER, Instant
from queue_core.errors import UnknownQueueError, WorkerRetiredError
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.pool import ConnectionPool
from queue_core.stores.postgres.client.statements import Call, Row, Statement, StatementRunner
from queue_core.stores.postgres.commit_markers import (
    NO_MARKER,
    AutocommitRunner,
    VerbAnswerLostError,
    check_meaning,
    marker_of,
    read_committed,
)
from queue_core.task import QueueSpec
from queue_core.verbs import ClientCall, too_old
from queue_core.verbs.validation import check_lease_time, check_not_moved

UNKNOWN, MOVED, RETIRED, TOO_LONG = 1, 2, 3, 4

_READ_MARKER = Statement(
    "towline_commit_marker",
    "SELECT call, xid::text, ids, meaning FROM towline.commit_markers WHERE connection = $1 ORDER BY part DESC LIMIT 1",
    (pack.int8,),
)
_SET_MARKER = Statement(
    "towline_set_commit_marker",
    "SELECT towline.set_commit_marker($1, $2, $3, $4)",
    (pack.int8, pack.int8, pack.int8s, pack.int8),
)
_MOVE_MARKER = Statement(
    "towline_move_commit_marker",
    "UPDATE towline.commit_markers SET xid = pg_current_xact_id(), marked_at = now(), ids = $3"
    " WHERE connection = $1 AND call = $2 AND NOT is_closed",
    (pack.int8, pack.int8, pack.int8s),
)
_IS_FORGOTTEN = Statement(
    "towline_is_forgotten",
    "SELECT $1::float8 > 86400 OR f.last_value >= (extract(epoch FROM clock_timestamp()) - $1::float8) * 1000000"
    " FROM towline.forgotten_at AS f",
    (pack.float8,),
)
"""A day: see `forget_commit_markers`."""
_XID = Statement("towline_number", "SELECT txid_current_if_assigned()")


class PostgresSession:
    """Run statements in a transaction that begins with the first of them."""

    __slots__ = (
        "_autocommit",
        "_begin",
        "_pool",
        "_runner",
        "_with_lanes",
        "admitted",
        "call",
        "defers_marker",
        "finished",
        "has_marker",
        "is_answered",
        "is_xid_known",
        "needs_vacuum",
        "now",
        "ready",
        "tagged",
        "used",
        "work",
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
        begin: the statements that open the transaction, in one round trip with its first one; none: it is open.
        autocommit: runs and commits the session's first verb, if given.
        pool: lends a connection to read the lost answer of a client's call.
        """
        self._pool = pool
        self.call: ClientCall | None = None
        """The client's call in progress."""
        self.defers_marker = False
        """Return whether the call leaves its commit marker after its verb, unless the verb commits by itself."""
        self.has_marker = False
        self.is_answered = False
        """Return whether the call took effect before, or its repeat was answered."""
        self._runner = runner
        runner.news.clear()  # by a transaction that nobody asked what it admitted
        self._with_lanes: set[str] = set()
        self.admitted: list[tuple[str, str | None, int]] = []
        self._autocommit = autocommit
        self._begin: Sequence[Call] | None = begin or None
        self.xid: int | None = None
        self.is_xid_known = True
        self.finished: dict[str, int] = {}
        self.tagged: dict[str, int] = {}
        self.now = NEVER
        self.needs_vacuum = False
        """Return whether a check found enough dead rows for a vacuum."""
        self.ready: dict[tuple[str, str | None], int] = {}
        self.work = 0
        self.used: dict[str, set[str]] = {}
        """Queues that tasks were added to or leased from, and by which tags."""

    @property
    def is_open(self) -> bool:
        """Return whether a transaction was begun and must be ended."""
        return self._begin is None

    @property
    def is_committed(self) -> bool:
        """Return whether a verb changed something and committed by itself."""
        return self.xid is not None and not self.is_open

    def verb(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that is a whole verb, returns the transaction's number, and takes a commit marker last.

        Raises `VerbAnswerLostError` too.
        """
        call = self.call
        if call is not None and call.is_repeat:
            self._find_earlier(call)
        if self._autocommit is not None and not self.is_open and not self.is_committed:
            self.has_marker = call is not None
            return self._autocommit.rows(statement, values, None if call is None else marker_of(call))
        self.has_marker = call is not None and not self.defers_marker
        return self.rows(statement, *values, *(marker_of(call) if call is not None and self.has_marker else NO_MARKER))

    def leave_marker(self, call: ClientCall, task_ids: Sequence[int]) -> None:
        """Leave the commit marker of a client's call, with the tasks that it leased."""
        session, number, meaning = marker_of(call)
        self.write(_SET_MARKER, session, number, task_ids, meaning)

    def move_marker(self, call: ClientCall, task_ids: Sequence[int]) -> None:
        """Have the call's marker name this transaction, unless a later call of its session has left one."""
        session, number, _ = marker_of(call)
        found = self.rows(_READ_MARKER, session)
        if not found or found[0][0] < number:
            self.leave_marker(call, task_ids)
        elif found[0][0] == number:
            self.write(_MOVE_MARKER, session, number, task_ids)

    def close_call(self, call: ClientCall) -> bool:
        """Leave the marker of a call that changes nothing, unless it left one: then return False.

        Raises `KeyReusedError` for the marker of another call.
        """
        found = self.rows(_READ_MARKER, marker_of(call)[0])
        if found and call.answer_in((found[0][0], b"")) is not None:
            check_meaning(call, found[0][3])
            return False
        self.leave_marker(call, ())
        return True

    def check_kept(self, call: ClientCall) -> None:
        """Raise `OutcomeUnknownError` for a repeat that left nothing, if what its first try left may be forgotten."""
        if not call.age_seconds:
            return
        ((is_forgotten,),) = self.rows(_IS_FORGOTTEN, float(call.age_seconds))
        if is_forgotten:
            raise too_old(call)

    def _find_earlier(self, call: ClientCall) -> None:
        """Raise `VerbAnswerLostError` if the call took effect before, `OutcomeUnknownError` if a later one did,
        `KeyReusedError` if another one of its number did."""
        session, number, _ = marker_of(call)
        found = self.rows(_READ_MARKER, session)
        if not found or found[0][0] < number:
            self.check_kept(call)
            return
        last, xid, ids, meaning = found[0]
        call.answer_in((last, b""))
        check_meaning(call, meaning)
        self.has_marker = self.is_answered = True
        assert self._pool is not None, "a client's calls run in the store's own transactions"
        is_own = int(xid) == self.assigned_xid()  # the first try is in this transaction, which no other sees
        read = self.rows if is_own else read_committed(self._pool)
        raise VerbAnswerLostError(int(xid), ids, read, is_repeat=True)

    def rows(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that only reads, or returns the transaction's number itself (see `note_xid`)."""
        begin = self._begin
        if begin is None:
            return self._runner.call(statement, values)
        self._begin = None
        return self._runner.call_all([*begin, (statement, values)])

    def write_after(self, read: Call, *calls: Call) -> list[list[Row]]:
        """Run a statement that reads, then others as `write` does, in one round trip; return the rows of each."""
        self.is_xid_known = self.xid is not None
        begin, self._begin = self._begin or (), None
        return self._runner.call_each([*begin, read, *calls], last=1 + len(calls))

    def write(self, statement: Statement, *values: object) -> list[Row]:
        """Run a statement that may write and does not return the transaction's number."""
        self.is_xid_known = self.xid is not None
        return self.rows(statement, *values)

    def note_xid(self, xid: int | None) -> None:
        """Note the transaction's number; None: nothing is written yet."""
        if xid is not None:
            self.xid = xid

    def assigned_xid(self) -> int | None:
        """Return the transaction's number; None when it wrote nothing."""
        if not self.is_xid_known:
            self.note_xid(self.rows(_XID)[0][0])
            self.is_xid_known = True
        return self.xid

    def note_finished(self, queue: str, number: int) -> None:
        """Note that `number` samples were added to a queue."""
        self.finished[queue] = self.finished.get(queue, 0) + number

    def note_used(self, queue: str, tags: Iterable[str], work: int) -> None:
        """Note that tasks of these tags were added to a queue, or looked for in it: so many, or one call."""
        self.used.setdefault(queue, set()).update(tags)
        self.work += work

    def note_tagged(self, queue: str, number: int, *, now: Instant) -> None:
        """Note that `number` tagged tasks were added to a queue."""
        self.tagged[queue] = self.tagged.get(queue, 0) + number
        self.now = now

    def note_ready(self, queue: str, tag: str | None, number: int) -> None:
        """Note that `number` tasks of a tag became ready by time, for which the store must wake waiters."""
        key = (queue, tag)
        self.ready[key] = self.ready.get(key, 0) + number

    def _read_news(self) -> None:
        """Sort what the schema's `tell` told with the answers so far."""
        for text in self._runner.news:
            kind, what = json.loads(text)
            if kind == "lanes":
                self._with_lanes.add(what)
            else:
                self.admitted += [(queue, tag, number) for queue, tag, number in what]
        self._runner.news.clear()

    def is_limited(self, queue: str) -> bool:
        """Return whether a queue is known to have limits or priorities; the schema's fast paths do nothing for it."""
        return queue in self._runner.limited

    def note_limited(self, queue: str, *, limited: bool) -> None:
        """Note whether a queue has limits or priorities."""
        if limited:
            self._runner.limited.add(queue)
        elif self._runner.limited:
            self._runner.limited.discard(queue)

    def has_lanes(self, queue: str) -> bool:
        """Return whether a verb that added tasks to the queue told that its tags have lanes."""
        if self._runner.news:
            self._read_news()
        return queue in self._with_lanes

    def take_admitted(self) -> list[tuple[str, str | None, int]]:
        """Return, once, the tags of tasks that limits alone let be leased, and how many."""
        if self._runner.news:
            self._read_news()
        admitted, self.admitted = self.admitted, []
        return admitted

    def take_ready(self) -> dict[tuple[str, str | None], int]:
        """Return and clear the tasks noted with `note_ready`."""
        ready, self.ready = self.ready, {}
        return ready


def refuse(code: int, detail: str) -> NoReturn:
    """Raise the error for a refusal of a schema's function; nothing was written."""
    subject, _, rest = detail.partition(" ")
    if code == MOVED:
        check_not_moved(QueueSpec(subject, moved_to=rest))
    if code == RETIRED:
        raise WorkerRetiredError(f"worker {detail} was retired: finish and exit")
    if code == TOO_LONG:
        queue, seconds, longest = detail.rsplit(" ", 2)
        check_lease_time(QueueSpec(queue, max_lease_seconds=float(longest)), float(seconds))
    raise UnknownQueueError.among(subject, [rest] if rest else ())
