"""The verbs that move a queue to or from another store, and the answers that are kept for clients' sessions."""

from collections.abc import Sequence
from struct import Struct, pack, unpack_from

from queue_core import semantics
from queue_core.clock import Instant
from queue_core.errors import StoreUnavailableError
from queue_core.store import Kept
from queue_core.stores.rare_text import rare_text
from queue_core.stores.redis.adds import change_with_ids
from queue_core.stores.redis.binary import pack_body, pack_lease_record, parse_added, rare_parts
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.client.connection import Cell
from queue_core.stores.redis.keys import session_key
from queue_core.task import StoredTask
from queue_core.verbs import Added, ClientCall, HeldName, too_old

_PLACE = Struct(">BQ")
_NAME = Struct(">QH")
_ONE = ord("1")
_ANSWER_KEPT_SECONDS = 2 * 86_400
CALL_KEPT_SECONDS = 3_600
"""How long an answer to a client's call is kept in a key of its own."""
_ALWAYS_SECONDS = 100 * 366 * 86_400


def restore(calls: Calls, queue: str, tasks: Sequence[StoredTask], *, now: Instant) -> list[Added]:
    """See `Transaction.restore`."""
    restored = [semantics.restore(task, task_id=0, queue=queue, now=now) for task in tasks]
    places = b"".join(_PLACE.pack(int(task.state) + 1, task.eta) for task in restored)
    cells: list[Cell] = [places]
    for task in restored:
        cells.append(pack_lease_record(task))
        cells += pack_body(task.added_at, task.tag, task.name, task.payload, rare_text(task), task.priority)
        cells += rare_parts(task)
    head = pack(">QH", now, len(tasks))
    data = change_with_ids(calls, "restore", [queue], [head], cells, ids=len(tasks))
    return parse_added(tasks, data, DATA)[0]


def held_names(calls: Calls, queue: str, *, after: str | None, limit: int, now: Instant) -> list[HeldName]:
    """See `Transaction.held_names`."""
    data = calls.read("held_names", queue, pack(">QI", now, limit), after or "")
    names: list[HeldName] = []
    at = DATA
    while at < len(data):
        until, size = _NAME.unpack_from(data, at)
        at += _NAME.size + size
        names.append(HeldName(data[at - size : at].decode(), until))
    return names


def hold_names(calls: Calls, queue: str, names: Sequence[HeldName], *, now: Instant) -> None:
    """See `Transaction.hold_names`."""
    cells: list[Cell] = []
    for held in names:
        cells += (held.name, pack(">Q", held.until))
    calls.change("hold_names", queue, pack(">Q", now), *cells)


def check_kept(call: ClientCall) -> None:
    """See `Transaction.check_kept`."""
    if call.age_seconds > _ANSWER_KEPT_SECONDS:
        raise too_old(call)


def last_answer(calls: Calls, session: str) -> tuple[int, bytes] | None:
    """See `Transaction.last_answer`."""
    kept = calls.client.execute(session_key(session), "GET", session_key(session))
    return (int.from_bytes(kept[:8], "big"), kept[8:]) if isinstance(kept, bytes) else None


def keep_answer(
    calls: Calls, session: str, number: int, answer: bytes, *, kept: Kept = "days", seconds: int = _ANSWER_KEPT_SECONDS
) -> None:
    """See `Transaction.keep_answer`."""
    args = (pack(">Q", number), answer, _ALWAYS_SECONDS if kept == "always" else seconds)
    data = calls.done(calls.send("keep_answer", (session_key(session),), args))
    if data[DATA] != _ONE:
        (last,) = unpack_from(">Q", data, DATA + 1)
        raise StoreUnavailableError(f"call {number} of session {session!r} came late: call {last} was answered")
