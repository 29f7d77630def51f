"""What the payloads of all tasks may come to; triggers count them while there is a limit (see `schema/storage.sql`)."""

from queue_core.store import Storage
from queue_core.stores.postgres import packing as pack
from queue_core.stores.postgres.calling import Statement
from queue_core.stores.postgres.step import Step

_SET = Statement("towline_set_storage", "SELECT towline.set_storage_limit($1)", (pack.int8,))
_STORAGE = Statement(
    "towline_storage",
    "SELECT l.bytes, (SELECT coalesce(sum(s.bytes), 0)::int8 FROM towline.stored AS s) FROM towline.storage_limit AS l",
)


def set_storage_limit(step: Step, limit_bytes: int | None) -> None:
    """See `Transaction.set_storage_limit`."""
    if storage(step).limit_bytes != limit_bytes:
        step.write(_SET, limit_bytes)


def storage(step: Step) -> Storage:
    """See `Transaction.storage`. What other transactions under way add is not in it."""
    rows = step.rows(_STORAGE)
    return Storage(*rows[0]) if rows else Storage()
