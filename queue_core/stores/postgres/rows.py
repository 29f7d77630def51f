"""Between a task's row and its `StoredTask`."""

from queue_core.stores.postgres.calling import Row
from queue_core.task import StoredTask, TaskState

COLUMNS = (
    "t.id, t.eta, t.added_at, t.name, t.tag, t.state, t.leases, t.leased_at, t.ready_at, t.worker, t.reason, t.spent,"
    " t.max_leases"
)


def task_of(queue: str, row: Row) -> StoredTask:
    """The task of a row that was selected as `COLUMNS` and its payload."""
    task_id, eta, added_at, name, tag, state, leases, leased_at, ready_at, worker, reason, spent, bound, payload = row
    return StoredTask(
        task_id,
        queue,
        payload,
        eta,
        added_at,
        name,
        tag,
        TaskState(state),
        leases,
        leased_at,
        ready_at,
        worker or "",
        reason or "",
        tuple(spent or ()),
        bound,
    )
