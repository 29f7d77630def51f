"""Carry a verb out in a store that this program opened."""

from typing import TypeVar, cast

from queue_core.attempts.failures import this_program
from queue_core.errors import StoreUnavailableError
from queue_core.unit.pieces import Piece, RunPiece, run_pieces
from queue_core.unit.service import QueueService
from queue_core.unit.verb import Change, Query, Verb

R = TypeVar("R")


def carry_out(service: QueueService, verb: Verb[R]) -> R:
    """Return the result of a verb; it is durable then. Raises its error."""
    if isinstance(verb, Query):
        return cast("R", service.read(verb.run))
    assert isinstance(verb, Change)
    by = this_program()
    if verb.in_pieces:
        return cast("R", run_pieces(service.run, pieces_of(verb, by=by)))
    for _ in range(1, verb.tries):
        try:
            return cast("R", service.run(lambda work: verb.run(work, by)))
        except StoreUnavailableError:
            continue  # another program changed the same record at the same time
    return cast("R", service.run(lambda work: verb.run(work, by)))


def pieces_of(verb: Change[int], *, by: str) -> RunPiece:
    """Return the pieces of a verb that goes on until it changes no more."""

    def run(piece: Piece) -> tuple[int, bool]:
        count = verb.run(piece.work, by)
        return count, not count

    return run
