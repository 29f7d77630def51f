"""Calls of several transactions, such as a purge: each of their pieces takes effect once (ADR 46).

How far a call has come is stored with each piece, so whoever runs it goes on where the last one stopped: the server
that gets a repeat, and one that was stopped meanwhile. Once the call is over, nobody changes anything for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydantic_core import from_json, to_json

from queue_core.errors import KeyReusedError, OutcomeUnknownError, QueueError, StoreError
from queue_core.process.wording import counted
from queue_core.stores.idempotency import encode_refusal, raise_refusal
from queue_core.unit.once import recognised
from queue_core.unit.service import Operation
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall


@dataclass(frozen=True, slots=True)
class CallProgress:
    """How many pieces of a call are done, and how many tasks they changed."""

    pieces: int = 0
    total: int = 0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """One transaction of a call.

    Args:
        number: from 0 on.
        kept_as: the session that keeps what the piece is to do; "": a piece is all or nothing.
    """

    work: UnitOfWork
    number: int
    kept_as: str = ""

    def plan(self, make: Callable[[], bytes]) -> bytes:
        """Return what the piece is to do, which is the same for everyone who runs it."""
        return keep_first(self.work, self.kept_as, make) if self.kept_as else make()


RunPiece = Callable[[Piece], tuple[int, bool]]
"""Changes some tasks; returns how many, and whether that was the last piece."""


def next_piece(work: UnitOfWork, call: ClientCall | None, run: RunPiece, *, done: CallProgress) -> CallProgress:
    """Run the next piece of a call, unless it is over; return how far it is then.

    Raises `KeyReusedError` when its number is another call's, of those that have pieces, and `OutcomeUnknownError` when
    what a repeat's first try did may be forgotten.

    Args:
        done: how far a call without a key is.
    """
    if call is None:
        count, is_over = run(Piece(work, done.pieces))
        return CallProgress(done.pieces + 1, done.total + count, is_over)
    session = session_of(call)
    last = work.transaction.last_answer(session)
    known = CallProgress()
    if last is None and call.is_repeat:
        work.transaction.check_kept(call, now=work.now)
    elif last is not None:
        kept = call.answer_of(last[1])
        raise_refusal(kept)
        known = CallProgress(last[0], *from_json(kept))
    if known.is_over:
        return known
    number = known.pieces + 1
    try:
        age_seconds = call.age_seconds if call.is_repeat else 0
        piece_call = ClientCall(session, number, True, age_seconds, call.meaning)  # noqa: FBT003 - it may be one
        with recognised(work, piece_call) as by_verb:
            count, is_over = run(Piece(work, known.pieces, f"{session}.{known.pieces}" if by_verb else ""))
    except (StoreError, KeyReusedError):
        raise
    except QueueError as error:
        if call.is_repeat:  # its first try may still come, and would take effect
            work.transaction.keep_answer(session, number, call.kept(encode_refusal(error)), now=work.now)
        raise
    after = CallProgress(number, known.total + count, is_over)
    work.transaction.keep_answer(session, number, call.kept(to_json([after.total, is_over])), now=work.now)
    return after


def piece_after(done: CallProgress, call: ClientCall | None, run: RunPiece) -> Operation[CallProgress]:
    """Return `next_piece` as an operation."""
    return partial(next_piece, call=call, run=run, done=done)


def run_pieces(commit: Callable[[Operation[CallProgress]], CallProgress], run: RunPiece) -> int:
    """Run all pieces of a call without a key; return how many tasks were changed."""
    done = CallProgress()
    while not done.is_over:
        try:
            done = commit(piece_after(done, None, run))
        except StoreError as error:
            raise failed_after(done, error) from error
    return done.total


def failed_after(done: CallProgress, error: StoreError) -> StoreError:
    """Return the error of a call whose piece failed: it says what the pieces before it did."""
    if not done.total:
        return error
    return OutcomeUnknownError(
        f"{counted(done.total, 'task')} {'was' if done.total == 1 else 'were'} changed, and then the store "
        f"failed ({error}); the others may be unchanged: "
        "repeat the call for them"
    )


def session_of(call: ClientCall) -> str:
    """Return the session that keeps how far a call is; no client's session has a dot."""
    return f"{call.session}.{call.number}"


def keep_first(work: UnitOfWork, session: str, make: Callable[[], bytes]) -> bytes:
    """Return what is kept under a name, or make and keep it."""
    last = work.transaction.last_answer(session)
    if last is not None:
        return last[1]
    made = make()
    work.transaction.keep_answer(session, 1, made, now=work.now)
    return made
