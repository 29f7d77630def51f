"""Run a verb of one transaction so that a client's call takes effect once, however late one of its tries comes.

The verbs of producers and workers do so by themselves (`UnitOfWork`); this is for all others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from queue_core.stores import idempotency
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, key_reused

T = TypeVar("T")


def once(
    work: UnitOfWork,
    call: ClientCall | None,
    run: Callable[[UnitOfWork], T],
    *,
    encode: Callable[[T], bytes],
    decode: Callable[[bytes], T],
) -> T:
    """Return the stored answer to `call`, or run a verb and store its answer; None: run it.

    Args:
        run: its calls of the transaction follow from its arguments, not from what it reads: a store that recognises
            repeated calls itself is sent the same ones again.

    Raises `OutcomeUnknownError` when a later call of the session was answered, and what `run` raises.
    """
    if call is None:
        return run(work)

    def run_recognised() -> T:
        with recognised(work, call) as by_store:
            try:
                return run(work)
            except idempotency.UNFIT as error:
                if by_store:
                    raise key_reused(call) from error
                raise

    return idempotency.once(work.transaction, call, run_recognised, encode=encode, decode=decode, now=work.now)


@contextmanager
def recognised(work: UnitOfWork, call: ClientCall) -> Iterator[bool]:
    """Have a store that recognises repeated calls itself do so for the verbs in this block; True: it does."""
    plain = work.transaction
    own = plain.once_for_call(call, "other")
    work.transaction = own or plain
    try:
        yield own is not None
    finally:
        work.transaction = plain
