"""One finished lease for one new one: the short way through `exchange` for who takes one task at a time."""

from queue_core.building import builder
from queue_core.clock import Instant
from queue_core.store import Deleted, Granted, LeaseRequest
from queue_core.stores.postgres import packing as pack
from queue_core.stores.postgres import told
from queue_core.stores.postgres.calling import Statement
from queue_core.stores.postgres.marking import MARK
from queue_core.stores.postgres.step import Step
from queue_core.task import Lease

_EXCHANGE_ONE = Statement(
    "towline_exchange_one",
    "SELECT * FROM towline.exchange_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    (pack.text, pack.int8, pack.int8, pack.int8, pack.float8, pack.int2, pack.text, pack.text, *MARK),
)
_ANY, _TAG, _UNTAGGED = 0, 1, 2
_NOTHING = Granted(())

new_deleted = builder(Deleted)
new_lease = builder(Lease)
new_granted = builder(Granted)


def filter_of(request: LeaseRequest) -> int | None:
    """How the schema's function is told which task is wanted; None: not by this one."""
    kind = request.tags.kind
    if request.count != 1:
        return None
    if kind == "any":
        return _ANY
    if kind == "untagged":
        return _UNTAGGED
    return _TAG if kind == "tags" and len(request.tags.tags) == 1 else None


def exchange_one(
    step: Step,
    queue: str,
    fence: tuple[int | None, int | None],
    request: LeaseRequest,
    wanted: int,
    *,
    now: Instant,
) -> tuple[Deleted | None, Granted] | None:
    """What became of the deletion, and of the request for one lease; None: nothing is done, and `exchange` is to do it.

    Args:
        fence: id and instant of the grant of what is done; Nones: nothing is.
        wanted: of `filter_of`.

    Raises `AnswerLostError`.
    """
    done_id, done_grant = fence
    ((xid, task_id, *lease, done_leases, ready_at, name, tag, worker),) = step.verb(
        _EXCHANGE_ONE,
        queue,
        now,
        done_id,
        done_grant,
        request.seconds,
        wanted,
        request.tags.tags[0] if wanted == _TAG else None,
        request.worker,
    )
    if xid is None:
        return None
    step.note_number(xid or None)
    deleted = None
    if done_leases is not None:
        assert done_id is not None and done_grant is not None, "something was done"
        step.note_finished(queue, 1)
        sample = (done_id, done_leases, max(0, done_grant - ready_at), done_grant)
        deleted = new_deleted(told.finished_of(queue, sample, (name, tag, worker), "deleted", now))
    if task_id is None:
        return deleted, _NOTHING
    eta, since, added_at, leased_at, leases, name, tag, payload = lease
    granted = new_lease(
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
    )
    return deleted, new_granted((granted,))
