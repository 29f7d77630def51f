"""Carry a verb out in a store that this program opened."""

from typing import Any, TypeVar, cast

from queue_core.attempts.failures import this_program
from queue_core.errors import StoreUnavailableError
from queue_core.unit.pieces import Piece, RunPiece, run_pieces
from queue_core.unit.service import QueueService
from queue_core.unit.verb import Change, InPieces, Query, ReadStep, Stepwise, Verb, WriteStep

R = TypeVar("R")


def carry_out(service: QueueService, verb: Verb[R]) -> R:
    """Return the result of a verb; it is durable then. Raises its error."""
    if isinstance(verb, Query):
        return cast("R", service.read(verb.run))
    if isinstance(verb, Stepwise):
        return cast("R", _in_steps(service, verb))
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


def _in_steps(service: QueueService, verb: Stepwise[R]) -> R:
    steps, result = verb.steps(this_program(), None), cast("Any", None)
    while True:
        try:
            step = steps.send(result)
        except StopIteration as over:
            return cast("R", over.value)
        match step:
            case ReadStep(operation):
                result = service.read(operation)
            case WriteStep(operation):
                result = service.run(operation)
            case InPieces(run):
                result = run_pieces(service.run, run)
