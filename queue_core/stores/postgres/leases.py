"""The verbs of workers: lease, exchange, renew, release, delete; one round trip each."""

import json
import re
from collections.abc import Sequence
from operator import itemgetter, lt

from queue_core.attempts.attempt import failure_text
from queue_core.clock import Instant
from queue_core.errors import WorkerRetiredError
from queue_core.fast_values import LazyList, none_indexes
from queue_core.stats import FinishedLease
from queue_core.stores.postgres import queues, results
from queue_core.stores.postgres.adds import etas_of, given, more_of, outcome_of
from queue_core.stores.postgres.client import binary as pack
from queue_core.stores.postgres.client.statements import Row, Statement
from queue_core.stores.postgres.commit_markers import MARKER_PACKS, VerbAnswerLostError
from queue_core.stores.postgres.session import PostgresSession, refuse
from queue_core.stores.rare_text import set_rare_text
from queue_core.task import Lease, TagFilter, parse_token
from queue_core.verbs import (
    Deleted,
    Deletion,
    Granted,
    LeaseRequest,
    PayloadAllowance,
    Release,
    Renewal,
    Renewed,
    handed_over,
)
from queue_core.verbs.validation import check_lease_time

_EXCHANGE = Statement(
    "towline_exchange",
    "SELECT * FROM towline.exchange($1, $2, $3, $4, $5, $6, $7, $8, $9, $13, $14, $15, $10, $11, $12)",
    (
        pack.text,
        pack.int8,
        pack.int8s,
        pack.int8s,
        pack.int4,
        pack.float8,
        pack.int2,
        pack.texts,
        pack.text,
        pack.int8,
        pack.int4,
        pack.int4,
        *MARKER_PACKS,
    ),
)
_EXCHANGE_ONE = Statement(
    "towline_exchange_one",
    "SELECT * FROM towline.exchange_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    (pack.text, pack.int8, pack.int8, pack.int8, pack.float8, pack.int2, pack.text, pack.text, *MARKER_PACKS),
)
_EXCHANGE_RESULT = Statement(
    "towline_exchange_result",
    "SELECT * FROM towline.exchange_result($1, $2, $3::text::xid8)",
    (pack.text, pack.int8, pack.text),
)
_DELETED = Statement(
    "towline_deleted_by",
    "SELECT s.numbers, s.texts FROM towline.samples AS s JOIN towline.queues AS q ON q.id = s.queue"
    " WHERE q.name = $1 AND s.xid = $2::text::xid8 AND s.outcome = 'deleted'",
    (pack.text, pack.text),
)
_RENEW = Statement(
    "towline_renew",
    f"SELECT {results.COLUMNS} FROM towline.renew($1, $2, $3, $4, $5)",  # noqa: S608
    (pack.text, pack.int8, pack.int8s, pack.int8s, pack.float8s),
)
_RENEW_WITH_NEWS = Statement(
    "towline_renew_with_news",
    f"SELECT {results.COLUMNS} FROM towline.renew($1, $2, $3, $4, $5, $6, $7)",  # noqa: S608
    (*_RENEW.packs, pack.texts, pack.byteas),
)
_RELEASE = Statement(
    "towline_release",
    f"SELECT {results.COLUMNS} FROM towline.release($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",  # noqa: S608
    (
        pack.text,
        pack.int8,
        pack.int8s,
        pack.int8s,
        pack.float8s,
        pack.booleans,
        pack.float8s,
        pack.booleans,
        pack.texts,
        pack.texts,
        pack.texts,
    ),
)
_HAND_OVER = Statement(
    "towline_hand_over",
    "SELECT * FROM towline.hand_over($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    (
        pack.text,
        pack.int8,
        pack.int8s,
        pack.int8s,
        pack.int4s,
        pack.texts,
        pack.byteas,
        pack.texts,
        pack.some_int8s,
        pack.texts,
    ),
)
_HAND_OVER_MORE = Statement(
    "towline_hand_over_more",
    "SELECT * FROM towline.hand_over($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    (*_HAND_OVER.packs, pack.int4s, pack.texts, pack.int2s),
)
_LEASE_DELAYED = Statement(
    "towline_lease_delayed",
    "SELECT * FROM towline.lease_delayed($1, $2, $3, $4, $5, $6)",
    (pack.text, pack.int8, pack.int8, pack.int8, pack.text, pack.float8),
)
_EXPIRE = Statement("towline_settle", "SELECT * FROM towline.settle($1, $2, $3)", (pack.text, pack.int8, pack.int4))
_FILTERS = {"any": 0, "tags": 1, "untagged": 2, "oldest": 3}
_NOTHING = Granted(())
_TOKENS = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(?: [0-9]{1,18}\.[0-9]{1,18})*")

_UNSETTLED, _REFUSED, _IN_ORDER, _LIMITED = 1, 2, 4, 8

_OUTCOME = 11
"""The first column of a `lease_row` that only the last one has."""

_order = itemgetter(2, 0)
_task_id, _grant = itemgetter(0), itemgetter(3)


Fences = tuple[list[int], list[int]]
"""Ids of tasks, and the instants at which each was leased."""


def fences_of(tokens: Sequence[str]) -> Fences:
    """Parse tokens: `parse_token` for all of them at once. Raises `InvalidTokenError`."""
    joined = " ".join(tokens)
    if _TOKENS.fullmatch(joined):
        numbers = list(map(int, joined.replace(".", " ").split(" ")))
        if len(numbers) == 2 * len(tokens):
            return numbers[::2], numbers[1::2]
    pairs = [parse_token(token) for token in tokens]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def lease(session: PostgresSession, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
    """See `Transaction.lease`."""
    return _exchange(session, queue, None, request, now=now)[1]


def exchange(
    session: PostgresSession, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[Sequence[Deleted | None], Granted]:
    """See `Transaction.exchange`."""
    fences = fences_of([deletion.token for deletion in deletions])
    if not handed_over(deletions):
        return _exchange(session, queue, fences, request, now=now)
    if request.seconds is not None:
        check_lease_time(queues.find(session, queue), request.seconds)
    outcomes = _hand_over(session, queue, fences, deletions, now=now)
    try:
        return outcomes, lease(session, queue, request, now=now)
    except WorkerRetiredError:
        return outcomes, Granted((), refused=True)


def lease_delayed(
    session: PostgresSession,
    queue: str,
    task_id: int,
    *,
    expected: Instant,
    worker: str,
    seconds: float | None,
    now: Instant,
) -> Lease | None:
    """See `Transaction.lease_delayed`."""
    rows = session.rows(_LEASE_DELAYED, queue, now, task_id, expected, worker, seconds)
    refusal, detail, _, xid = rows.pop()[_OUTCOME : _OUTCOME + 4]
    session.note_xid(xid)
    if refusal:
        refuse(refusal, detail)
    leases = _leases(queue, rows, worker)
    return leases[0] if leases else None


def delete(
    session: PostgresSession, queue: str, deletions: Sequence[Deletion], *, now: Instant
) -> Sequence[Deleted | None]:
    """See `Transaction.delete`."""
    fences = fences_of([deletion.token for deletion in deletions])
    if handed_over(deletions):
        return _hand_over(session, queue, fences, deletions, now=now)
    return _exchange(session, queue, fences, LeaseRequest(0, None, TagFilter(), ""), now=now)[0]


def _exchange(
    session: PostgresSession, queue: str, fences: Fences | None, request: LeaseRequest, *, now: Instant
) -> tuple[Sequence[Deleted | None], Granted]:
    ids, grants = fences or (None, None)
    session.note_used(queue, request.tags.tags, request.count or 1)
    is_one = (ids is None or len(ids) == 1) and not session.is_limited(queue)
    wanted = _filter_of(request) if is_one else None
    try:
        if wanted is not None:
            fence = (ids[0], grants[0]) if ids and grants else (None, None)
            exchanged = _exchange_one(session, queue, fence, request, wanted, now=now)
            if exchanged is not None:
                return [] if fences is None else [exchanged[0]], exchanged[1]
        if ids and grants and grants.count(grants[0]) == len(grants) and all(map(lt, ids, ids[1:])):
            grants = grants[:1]  # leased together and in order, which is less work for the server
        rows = session.verb(
            _EXCHANGE,
            queue,
            now,
            ids,
            grants,
            request.count,
            request.seconds,
            _FILTERS[request.tags.kind],
            request.tags.tags,
            request.worker,
            *_bounds(request.allowance),
        )
    except VerbAnswerLostError as lost:
        rows = _rows_of_lost_call(session, lost, queue, now=now)
    refusal, detail, flags, xid, numbers, texts, settled = rows.pop()[_OUTCOME:]
    session.note_xid(xid)
    if refusal:
        refuse(refusal, detail)
    session.note_limited(queue, limited=bool(flags & _LIMITED))
    outcomes = [] if fences is None else _deleted(session, queue, fences, numbers, texts, now=now)
    expired = _expired(session, queue, settled) if settled else ()
    if detail:
        for tag, number in json.loads(detail):
            session.note_ready(queue, tag, number)
    if not rows:
        return outcomes, Granted((), expired, bool(flags & _UNSETTLED), bool(flags & _REFUSED))
    if len(rows) > 1 and not flags & _IN_ORDER:
        rows.sort(key=_order)
    return outcomes, Granted(_leases(queue, rows, request.worker), expired, bool(flags & _UNSETTLED))


def _filter_of(request: LeaseRequest) -> int | None:
    """Return the filter of `exchange_one` for a request; None: it can't serve this one."""
    kind = request.tags.kind
    is_plain = kind in ("any", "untagged") or (kind == "tags" and len(request.tags.tags) == 1)
    return _FILTERS[kind] if request.count == 1 and is_plain else None


def _exchange_one(
    session: PostgresSession,
    queue: str,
    fence: tuple[int | None, int | None],
    request: LeaseRequest,
    wanted: int,
    *,
    now: Instant,
) -> tuple[Deleted | None, Granted] | None:
    """Exchange one finished lease for a new one on the fast path (ADR 11); None: nothing was done, call `exchange`.

    Args:
        fence: id and instant of the grant of the finished lease; Nones: there is none.
        wanted: the filter, of `_filter_of`.

    Raises `VerbAnswerLostError`.
    """
    done_id, done_grant = fence
    ((xid, task_id, *granted, done_leases, ready_at, added_at, name, tag, worker, celery_id),) = session.verb(
        _EXCHANGE_ONE,
        queue,
        now,
        done_id,
        done_grant,
        request.seconds,
        wanted,
        request.tags.tags[0] if request.tags.kind == "tags" else None,
        request.worker,
    )
    if xid is None:
        return None
    session.note_xid(xid or None)
    deleted = None
    if done_leases is not None:
        assert done_id is not None and done_grant is not None, "a lease was finished"
        session.note_finished(queue, 1)
        sample = (done_id, done_leases, max(0, done_grant - ready_at), done_grant, added_at)
        deleted = Deleted(results.finished_of(queue, sample, (name, tag, worker, celery_id), "deleted", now))
    if task_id is None:
        return deleted, _NOTHING
    eta, since, added_at, leased_at, leases, name, tag, payload, rare, checkpoint = granted
    new = Lease(
        queue,
        f"_{task_id}" if name is None else name,
        tag,
        payload,
        f"{task_id}.{leased_at}",
        request.worker,
        leases,
        leased_at,
        eta,
        since,
        added_at,
        None,
        checkpoint,
    )
    return deleted, Granted((new if rare is None else set_rare_text(new, rare),))


def _bounds(allowance: PayloadAllowance | None) -> tuple[int | None, int, int]:
    return (None, 0, 1) if allowance is None else (allowance.total_bytes, allowance.each_bytes, allowance.least)


def _rows_of_lost_call(session: PostgresSession, lost: VerbAnswerLostError, queue: str, *, now: Instant) -> list[Row]:
    """Return the rows of a call that took effect; of a repeated call, only leases that are still held."""
    *leases, last = lost.read_answer(_EXCHANGE_RESULT, queue, 0 if lost.is_repeat else now)
    last = (*last[: _OUTCOME + 2], last[_OUTCOME + 2] | _IN_ORDER, *last[_OUTCOME + 3 :])
    leases = _in_lease_order(lost, leases)
    if not lost.is_repeat:
        session.note_xid(lost.xid)
        return [*leases, last]
    deleted = lost.read_answer(_DELETED, queue)  # those of all calls in the transaction, of which tokens pick the own
    numbers, texts = ([one for row in deleted for one in row[at]] for at in (0, 1))
    return [*(row for row in leases if row[1] > now), (*last[:-3], numbers or None, texts or None, None)]


def _in_lease_order(lost: VerbAnswerLostError, leases: Sequence[Row]) -> list[Row]:
    """Return the leases of a lost call in the order in which they were granted, which its marker has where it is not by
    eta and id."""
    places = lost.leased
    if places is None:
        return sorted(leases, key=_order)
    return sorted((row for row in leases if row[0] in places), key=lambda row: places[row[0]])


def _leases(queue: str, rows: Sequence[Row], worker: str) -> tuple[Lease, ...]:
    leases: list[Lease] = []
    for row in rows:
        lease = Lease(
            queue,
            f"_{row[0]}" if row[6] is None else row[6],
            row[7],
            row[8],
            f"{row[0]}.{row[4]}",
            worker,
            row[5],
            row[4],
            row[1],
            row[2],
            row[3],
            None,
            row[10],
        )
        leases.append(lease if row[9] is None else set_rare_text(lease, row[9]))
    return tuple(leases)


def _deleted(
    session: PostgresSession,
    queue: str,
    fences: Fences,
    numbers: Sequence[Sequence[int]] | None,
    texts: Sequence[Sequence[str | None]] | None,
    *,
    now: Instant,
) -> Sequence[Deleted | None]:
    """Return the outcome of each deletion, from the samples of those that took effect."""
    if not numbers or not texts:
        return [None] * len(fences[0])
    session.note_finished(queue, len(numbers))
    ids, grants = list(map(_task_id, numbers)), list(map(_grant, numbers))
    if ids == fences[0] and grants == fences[1]:
        return LazyList(len(ids), lambda: _ended(queue, numbers, texts, now=now))
    places = {fence: place for place, fence in enumerate(zip(ids, grants, strict=True))}
    found = [places.pop(fence, None) for fence in zip(*fences, strict=True)]

    def outcomes() -> list[Deleted | None]:
        ended = _ended(queue, numbers, texts, now=now)
        return [None if place is None else ended[place] for place in found]

    return LazyList(len(found), outcomes, none_indexes=none_indexes(found))


def _ended(
    queue: str, numbers: Sequence[Sequence[int]], texts: Sequence[Sequence[str | None]], *, now: Instant
) -> list[Deleted]:
    return [
        Deleted(results.finished_of(queue, sample, words, "deleted", now))
        for sample, words in zip(numbers, texts, strict=True)
    ]


def _expired(session: PostgresSession, queue: str, settled: str) -> tuple[FinishedLease, ...]:
    """Return the expired leases of a `settled` column, and note the tasks that became ready."""
    expired, became_ready = json.loads(settled)
    for tag, number in became_ready:
        session.note_ready(queue, tag, number)
    if expired:
        session.note_finished(queue, len(expired))
    return tuple(
        [results.finished_of(queue, one[:5], (*one[5:8], one[10]), "expired", one[8], one[9]) for one in expired]
    )


def _hand_over(
    session: PostgresSession, queue: str, fences: Fences, deletions: Sequence[Deletion], *, now: Instant
) -> list[Deleted | None]:
    tasks = [new for deletion in deletions for new in deletion.then]
    etas = etas_of(tasks, now=now)
    more = more_of(tasks)
    rows = session.rows(
        _HAND_OVER_MORE if more else _HAND_OVER,
        queue,
        now,
        *fences,
        [len(deletion.then) for deletion in deletions],
        [new.queue or queue for new in tasks],
        [new.payload for new in tasks],
        [new.tag for new in tasks],
        etas,
        [new.name for new in tasks],
        *more,
    )
    refusal, detail, xid, *_ = rows[-1]
    session.note_xid(xid)
    if refusal:
        refuse(refusal, detail)
    rows_by_place = {row[3]: row[4:] for row in rows[:-1]}
    outcomes: list[Deleted | None] = []
    first = 0
    for place, deletion in enumerate(deletions, start=1):
        last = first + len(deletion.then)
        if place not in rows_by_place:
            outcomes.append(None)
        else:
            numbers, texts, ids, refusals = rows_by_place[place]
            session.note_finished(queue, 1)
            then = [
                outcome_of(new, task_id, refusal, eta, has_lanes=session.has_lanes(new.queue or queue), now=now)
                for new, task_id, refusal, eta in zip(deletion.then, ids, refusals, etas[first:last], strict=True)
            ]
            outcomes.append(Deleted(results.finished_of(queue, numbers[0], texts[0], "deleted", now), tuple(then)))
        first = last
    return outcomes


def renew(session: PostgresSession, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
    """See `Transaction.renew`."""
    fences = fences_of([renewal.token for renewal in renewals])
    progresses = given([results.progress_text(renewal.progress) for renewal in renewals])
    checkpoints = given([renewal.checkpoint for renewal in renewals])
    news = (progresses, checkpoints) if progresses or checkpoints else ()
    _, rows = results.call(
        session,
        _RENEW_WITH_NEWS if news else _RENEW,
        queue,
        now,
        *fences,
        [renewal.seconds for renewal in renewals],
        *news,
    )
    outcomes: list[Renewed | None] = [None] * len(renewals)
    for row in rows:
        place = row[results.ID] - 1
        outcomes[place] = Renewed(
            renewals[place].token,
            row[results.NAME],
            row[results.TAG],
            row[results.WORKER] or "",
            row[results.LEASES],
            row[results.ETA],
        )
    return outcomes


def release(
    session: PostgresSession, queue: str, releases: Sequence[Release], *, now: Instant
) -> list[FinishedLease | None]:
    """See `Transaction.release`."""
    fences = fences_of([release.token for release in releases])
    _, rows = results.call(
        session,
        _RELEASE,
        queue,
        now,
        *fences,
        [release.delay_seconds for release in releases],
        [release.charge == "uncounted" for release in releases],
        [release.jitter for release in releases],
        [bool(release.dead_reason) for release in releases],
        [release.reason for release in releases],
        [release.failure.given_reason or None for release in releases],
        [failure_text(release.failure) for release in releases],
    )
    outcomes: list[FinishedLease | None] = [None] * len(releases)
    for row in rows:
        outcomes[row[results.ID] - 1] = results.finished_from(queue, row, "released", now)
    if rows:
        session.note_finished(queue, len(rows))
    return outcomes


def expire(session: PostgresSession, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
    """See `Transaction.expire`."""
    ((*_, refusal, detail, flags, xid, _numbers, _texts, settled),) = session.rows(_EXPIRE, queue, now, limit)
    if refusal:
        refuse(refusal, detail)
    session.note_xid(xid)
    return list(_expired(session, queue, settled)), bool(flags & _UNSETTLED)
