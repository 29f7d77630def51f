"""The verbs of workers: lease, renew, release, delete, and exchange (delete and lease in one call)."""

import re
from collections.abc import Sequence
from struct import Struct, pack, unpack_from

from queue_core.attempts.attempt import GIVEN_BACK, failure_text
from queue_core.clock import MICROSECONDS, Instant
from queue_core.stats import FinishedLease
from queue_core.stores.redis.adds import cells_of, change_with_ids, queues_of
from queue_core.stores.redis.binary import (
    pack_filter,
    pack_instants,
    parse_added,
    parse_all_finished,
    parse_finished,
    parse_leases,
    progress_text,
)
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.client.connection import Cell
from queue_core.task import Lease, parse_token
from queue_core.verbs import Deleted, Deletion, Granted, LeaseRequest, Release, Renewal, Renewed, handed_over

_TOKENS = re.compile(r"[0-9]{1,18}\.[0-9]{1,18}(?: [0-9]{1,18}\.[0-9]{1,18})*")


def numbers_of(tokens: Sequence[str]) -> list[int]:
    """Return the task id and the instant of the grant of each token, in turn. Raises `InvalidTokenError`."""
    joined = " ".join(tokens)
    if _TOKENS.fullmatch(joined):
        numbers = list(map(int, joined.replace(".", " ").split(" ")))
        if len(numbers) == 2 * len(tokens):
            return numbers
    return [number for token in tokens for number in parse_token(token)]


def pack_tokens(tokens: Sequence[str]) -> bytes:
    """Pack tokens as the functions take them."""
    return pack_instants(numbers_of(tokens))


_UNSETTLED, _REFUSED = 2, 4
REQUEST = Struct(">QqdHBIIB")
DELAYED = Struct(">QQQqd")
_HEAD = Struct(">QH")
_RELEASE = Struct(">qdBHH")
_COUNTS_LEASE, _DIES, _IS_TOLD = 1, 2, 4
_HAS_PROGRESS, _HAS_CHECKPOINT = 1, 2
_RENEWED = Struct(">QIHHH")
_COUNTS = Struct(">HH")
_OWN = -1  # a length or delay that comes from the queue's settings
_ONE = ord("1")


def lease(calls: Calls, queue: str, request: LeaseRequest, *, now: Instant) -> Granted:
    """See `Transaction.lease`."""
    data = calls.change("lease", queue, *_request(request, now), worker=request.worker)
    return _granted(queue, request.worker, data, DATA + _COUNTS.size)


def exchange(
    calls: Calls, queue: str, deletions: Sequence[Deletion], request: LeaseRequest, *, now: Instant
) -> tuple[list[Deleted | None], Granted]:
    """See `Transaction.exchange`."""
    tokens = pack_tokens([deletion.token for deletion in deletions])
    number = pack(">H", len(deletions))
    head, worker, *tags = _request(request, now)
    if handed_over(deletions):
        cells = [pack(">H", len(tags)), head, worker, *tags]
        data = _delete_and_add(calls, "exchange_and_add", queue, deletions, [number, tokens], cells, now=now)
    else:
        data = calls.change("exchange", queue, number, tokens, head, worker, *tags, worker=request.worker)
    outcomes, at = _deleted(queue, data, DATA + _COUNTS.size, deletions)
    return outcomes, _granted(queue, request.worker, data, at)


def lease_delayed(
    calls: Calls, queue: str, task_id: int, *, expected: Instant, worker: str, seconds: float | None, now: Instant
) -> Lease | None:
    """See `Transaction.lease_delayed`."""
    params = DELAYED.pack(now, task_id, max(expected, 0), _microseconds(seconds), seconds or 0.0)
    data = calls.change("lease_delayed", queue, params, worker, worker=worker)
    leases = _granted(queue, worker, data, DATA + _COUNTS.size).leases
    return leases[0] if leases else None


def delete(calls: Calls, queue: str, deletions: Sequence[Deletion], *, now: Instant) -> list[Deleted | None]:
    """See `Transaction.delete`."""
    tokens = pack_tokens([deletion.token for deletion in deletions])
    head = _HEAD.pack(now, len(deletions))
    if handed_over(deletions):
        data = _delete_and_add(calls, "delete_and_add", queue, deletions, [head, tokens], [], now=now)
    else:
        data = calls.change("delete", queue, head, tokens)
    return _deleted(queue, data, DATA, deletions)[0]


def _delete_and_add(
    calls: Calls,
    verb: str,
    queue: str,
    deletions: Sequence[Deletion],
    head: Sequence[Cell],
    cells: Sequence[Cell],
    *,
    now: Instant,
) -> bytes:
    """Call a verb that deletes tasks and adds those that follow them (`Deletion.then`)."""
    tasks = [new for deletion in deletions for new in deletion.then]
    queues = queues_of(calls, queue, tasks)
    follows = pack(f">I{len(deletions)}H", len(tasks), *[len(deletion.then) for deletion in deletions])
    added = cells_of(queues, queue, tasks, now=now)
    return change_with_ids(calls, verb, queues, [*head, follows], [*cells, *added], ids=len(tasks))


def renew(calls: Calls, queue: str, renewals: Sequence[Renewal], *, now: Instant) -> list[Renewed | None]:
    """See `Transaction.renew`."""
    numbers = numbers_of([renewal.token for renewal in renewals])
    seconds = pack(f">{len(renewals)}q", *[_microseconds(renewal.seconds) for renewal in renewals])
    cells = [_HEAD.pack(now, len(renewals)), pack_instants(numbers), seconds, *_reports(renewals)]
    data = calls.change("renew", queue, *cells)
    at = DATA + len(renewals)
    outcomes: list[Renewed | None] = []
    for letter, renewal, task_id in zip(data[DATA:at], renewals, numbers[::2], strict=True):
        if letter != _ONE:
            outcomes.append(None)
            continue
        expires_at, number, *lengths = _RENEWED.unpack_from(data, at)
        at += _RENEWED.size
        texts: list[str] = []
        for length in lengths:
            texts.append(data[at : at + length].decode())
            at += length
        tag, name, worker = texts
        outcomes.append(Renewed(renewal.token, name or f"_{task_id}", tag or None, worker, number, expires_at))
    return outcomes


def _reports(renewals: Sequence[Renewal]) -> list[bytes]:
    """Return what handlers report: a byte for each renewal that tells what comes with it, then these; or nothing."""
    if all(renewal.progress is None and renewal.checkpoint is None for renewal in renewals):
        return []
    told, parts = bytearray(), list[bytes]()
    for renewal in renewals:
        flags = 0
        if renewal.progress is not None:
            flags |= _HAS_PROGRESS
            parts.append(progress_text(renewal.progress))
        if renewal.checkpoint is not None:
            flags |= _HAS_CHECKPOINT
            parts.append(renewal.checkpoint)
        told.append(flags)
    return [bytes(told), *parts]


def release(calls: Calls, queue: str, releases: Sequence[Release], *, now: Instant) -> list[FinishedLease | None]:
    """See `Transaction.release`."""
    tokens = pack_tokens([wanted.token for wanted in releases])
    packed: list[bytes] = []
    for wanted in releases:
        failure, reason = failure_text(wanted.failure).encode(), wanted.reason.encode()
        flags = (
            _COUNTS_LEASE * (wanted.charge == "counted")
            + _DIES * bool(wanted.dead_reason)
            + _IS_TOLD * (wanted.failure != GIVEN_BACK)
        )
        delay = _microseconds(wanted.delay_seconds)
        packed += (_RELEASE.pack(delay, wanted.jitter, flags, len(reason), len(failure)), reason, failure)
    data = calls.change("release", queue, _HEAD.pack(now, len(releases)), tokens, b"".join(packed))
    at = DATA + len(releases)
    outcomes: list[FinishedLease | None] = []
    for letter in data[DATA:at]:
        finished = None
        if letter == _ONE:
            finished, at = parse_finished(queue, data, at)
        outcomes.append(finished)
    return outcomes


def expire(calls: Calls, queue: str, *, limit: int, now: Instant) -> tuple[list[FinishedLease], bool]:
    """See `Transaction.expire`."""
    data = calls.change("settle", queue, pack(">QI", now, limit))
    expired: list[FinishedLease] = []
    at = DATA
    while at < len(data):
        finished, at = parse_finished(queue, data, at)
        expired.append(finished)
    return expired, bool(data[1] & _UNSETTLED)


def _request(request: LeaseRequest, now: Instant) -> list[Cell]:
    kind, tags = pack_filter(request.tags)
    allowance = request.allowance
    bounds = (0, 0, 0) if allowance is None else (max(1, allowance.total_bytes), allowance.each_bytes, allowance.least)
    return [
        REQUEST.pack(now, _microseconds(request.seconds), request.seconds or 0.0, request.count, kind, *bounds),
        request.worker,
        *tags,
    ]


def _microseconds(seconds: float | None) -> int:
    return _OWN if seconds is None else round(seconds * MICROSECONDS)


def _deleted(queue: str, data: bytes, at: int, deletions: Sequence[Deletion]) -> tuple[list[Deleted | None], int]:
    """Parse the outcomes of deletions; also return the index behind them."""
    letters = data[at : at + len(deletions)]
    at += len(deletions)
    outcomes: list[Deleted | None] = []
    for letter, deletion in zip(letters, deletions, strict=True):
        if letter != _ONE:
            outcomes.append(None)
            continue
        finished, at = parse_finished(queue, data, at)
        if deletion.then:
            added, at = parse_added(deletion.then, data, at)
            outcomes.append(Deleted(finished, tuple(added)))
        else:
            outcomes.append(Deleted(finished))
    return outcomes, at


def _granted(queue: str, worker: str, data: bytes, at: int) -> Granted:
    """Parse what a lease verb granted, from the index of the expired leases."""
    (expired_total,) = unpack_from(">H", data, DATA + 2)
    flags = data[1]
    expired: tuple[FinishedLease, ...] = ()
    if expired_total:
        expired, at = parse_all_finished(queue, data, at, expired_total)
    leases = parse_leases(queue, worker, data, at)
    return Granted(leases, expired, bool(flags & _UNSETTLED), bool(flags & _REFUSED))
