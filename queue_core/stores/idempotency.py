"""A client's call takes effect once, however often it is sent: its answer is stored with its change (ADR 28).

Pure but for its transaction. Stores that deduplicate calls themselves (`Transaction.once_for_call`) don't use it.
"""

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from queue_core import errors
from queue_core.clock import Instant
from queue_core.errors import KeyReusedError, QueueError, StoreError
from queue_core.limits import LARGEST_PAYLOAD_BYTES
from queue_core.stats import FinishedLease
from queue_core.store import Transaction
from queue_core.task import ANY, Lease, TaskState, lease_of
from queue_core.verbs import Added, ClientCall, Granted, Renewed, key_reused

T = TypeVar("T")

Encode = Callable[[T], bytes | None]
Decode = Callable[[bytes], T]

UNFIT = (TypeError, ValueError, IndexError, struct.error)
"""The errors that a kept answer raises when it is read as that of another call: a key was used for both."""
_REFUSED = b'{"refused":'
"""The beginning of a kept answer that is a refusal."""
NO_LEASES = b"[[],[],false]"
"""The answer of `encode_exchanged` to a lease that got nothing."""
_ADDED_CELLS = attrgetter("name", "status", "ready")
_NAME_AND_TOKEN = attrgetter("name", "token")
RENEWED_FIELDS = ("token", "name", "tag", "worker", "lease_number", "expires_at")


def once(
    transaction: Transaction,
    call: ClientCall,
    run: Callable[[], T],
    *,
    encode: Encode[T],
    decode: Decode[T],
    now: Instant,
) -> T:
    """Return the stored answer to `call`, or run it and store its answer.

    A repeat that is refused is stored too: its first try may still come, and would take effect.

    Args:
        encode: returns an answer as bytes; None when nothing was changed, so that nothing needs to be stored.

    Raises what `Transaction.answer_of`, `Transaction.record_answer` and `run` raise; `KeyReusedError` when the answer
    stored is of another call.
    """
    kept = transaction.answer_of(call, now=now)
    if kept is not None:
        raise_refusal(kept)
        try:
            return decode(kept)
        except UNFIT as error:
            raise key_reused(call) from error
    try:
        outcome = run()
    except (StoreError, KeyReusedError):
        raise
    except QueueError as error:
        if call.is_repeat:
            transaction.record_answer(call, encode_refusal(error), now=now)
        raise
    answer = encode(outcome)
    if answer is not None:
        transaction.record_answer(call, answer, now=now)
    return outcome


def encode_refusal(error: QueueError) -> bytes:
    """Encode the refusal of a repeat."""
    text = error.public_message if isinstance(error, errors.UnknownQueueError) else str(error)
    return to_json({"refused": [type(error).__name__, text]})


def raise_refusal(kept: bytes) -> None:
    """Raise the error of a stored answer that is a refusal."""
    if kept.startswith(_REFUSED):
        name, text = from_json(kept)["refused"]
        error = getattr(errors, name, errors.InvalidRequestError)(text)
        assert isinstance(error, QueueError), "only refusals are kept"
        raise error


def current_leases(
    transaction: Transaction, queue: str, names: Sequence[Sequence[str]], *, now: Instant
) -> list[Lease]:
    """Return those leases of a stored answer, given as [name, token], that are still live."""
    if not names:
        return []
    tokens = {token for _, token in names}
    page = transaction.peek(
        queue,
        ANY,
        frozenset({TaskState.LEASED}),
        names=[name for name, _ in names],
        limit=len(names),
        payload_bytes=LARGEST_PAYLOAD_BYTES,
        now=now,
    )
    live = {task.token: lease_of(task) for task in page.tasks if task.token in tokens and task.eta > now}
    return [live[token] for _, token in names if token in live]


# -- answers as bytes -------------------------------------------------------------------------------------------------


def encode_added(added: Sequence[Added]) -> bytes:
    """Encode the outcomes of an add."""
    return to_json(_cells(added))


def decode_added(tasks: int, kept: bytes) -> list[Added]:
    """See `encode_added`. Raises `ValueError` for another number of tasks."""
    return _as_many(tasks, list(_added(from_json(kept))))


def _as_many(number: int, outcomes: list[T]) -> list[T]:
    if len(outcomes) != number:
        raise ValueError(f"{number} outcomes are expected: {len(outcomes)}")
    return outcomes


def _cells(added: Sequence[Added]) -> list[tuple[str, str, bool]]:
    return list(map(_ADDED_CELLS, added))


def _added(cells: Sequence[tuple[str, Any, bool]]) -> tuple[Added, ...]:
    return tuple([Added(name, status, ready) for name, status, ready in cells])


def encode_exchanged(outcome: tuple[Granted, Sequence[str]], *, has_deleted: bool) -> bytes | None:
    """Encode the leases that an exchange granted, and the tokens that were not current; None if it changed nothing."""
    granted, lost = outcome
    if not has_deleted and not granted.leases:
        return None
    leases = list(map(_NAME_AND_TOKEN, granted.leases))
    parts: list[object] = [leases, list(lost), granted.refused]
    return to_json([*parts, _cells(granted.added)] if granted.added else parts)


def decode_exchanged(
    kept: bytes, transaction: Transaction, queue: str, *, now: Instant
) -> tuple[Granted, Sequence[str]]:
    """See `encode_exchanged`: the leases are those of `current_leases`."""
    names, lost, refused, *added = from_json(kept)
    leases = tuple(current_leases(transaction, queue, names, now=now))
    return Granted(leases, refused=refused, added=_added(added[0] if added else ())), lost


def encode_deleted(outcome: tuple[Sequence[Added], Sequence[str]]) -> bytes:
    """Encode the outcomes of the deletions' `then`, and the tokens that were not current."""
    added, lost = outcome
    return to_json([_cells(added), list(lost)])


def decode_deleted(kept: bytes) -> tuple[list[Added], list[str]]:
    """See `encode_deleted`."""
    added, lost = from_json(kept)
    return list(_added(added)), lost


def encode_renewed(outcomes: Sequence[Renewed | None]) -> bytes:
    """Encode the outcomes of a renewal; None for a token that was not current."""
    return to_json([one and [getattr(one, field) for field in RENEWED_FIELDS] for one in outcomes])


def decode_renewed(renewals: int, kept: bytes) -> list[Renewed | None]:
    """See `encode_renewed`. Raises `ValueError` for another number of renewals."""
    return _as_many(renewals, [one and Renewed(*one) for one in from_json(kept)])


def encode_finished(outcomes: Sequence[FinishedLease | None]) -> bytes:
    """Encode the outcomes of a release; None for a token that was not current."""
    return to_json(list(outcomes))


def decode_finished(releases: int, kept: bytes) -> list[FinishedLease | None]:
    """See `encode_finished`. Raises `ValueError` for another number of releases."""
    return _as_many(releases, [one and FinishedLease(**one) for one in from_json(kept)])
