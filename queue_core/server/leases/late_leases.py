"""Leases that were granted some time before their holder is told of them, as a server or its store stood still.

See ADR 108.
"""

from collections.abc import Sequence
from dataclasses import replace

from queue_core.errors import InvalidLeaseTimeError
from queue_core.stores.idempotency import current_leases
from queue_core.task import Lease
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Renewal


def renew_late(
    work: UnitOfWork, queue: str, leases: Sequence[Lease], *, seconds: float | None, call: ClientCall
) -> list[Lease]:
    """Renew what a client's call was granted, for its whole time; return those leases that are still held.

    A repeat of the call may reach another server meanwhile, or later, and finds the same leases. One that was renewed
    since is left as it is: another server has told its holder of it, who may count on more time.

    Args:
        seconds: the length that was asked for; None: the queue's.
        call: the call under whose session a repeat looks for leases last.
    """
    held = current_leases(work.transaction, queue, [(lease.name, lease.token) for lease in leases], now=work.now)
    granted = {lease.token: lease.expires_at for lease in leases}
    untold = [lease.token for lease in held if lease.expires_at == granted[lease.token]]
    if not untold:
        return held
    try:
        renewed = work.renew(queue, [Renewal(token, seconds) for token in untold])
    except InvalidLeaseTimeError:  # beyond `max_lease`: no lease of it may last longer
        return held
    ends = {one.token: one.expires_at for one in renewed if one is not None}
    once = work.transaction.once_for_call(call, "lease")
    if ends and once is not None:
        once.keep_renewed(list(ends))
    return [replace(lease, expires_at=ends.get(lease.token, lease.expires_at)) for lease in held]
