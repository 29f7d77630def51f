"""An add that takes effect once, for stores whose transaction is one step: add and answer are kept together."""

import json
from collections.abc import Sequence

from queue_core.clock import Instant
from queue_core.errors import OutcomeUnknownError
from queue_core.store import Added, ClientCall, Transaction
from queue_core.task import NewTask


def add_once(
    transaction: Transaction, queue: str, tasks: Sequence[NewTask], call: ClientCall, *, now: Instant
) -> list[Added]:
    """See `Transaction.add_once`."""
    if call.is_repeat:
        known = transaction.last_answer(call.session)
        if known is not None and known[0] > call.number:
            raise OutcomeUnknownError("a later call of the same session was answered already; look before repeating")
        if known is not None and known[0] == call.number:
            return [Added(name, status, ready) for name, status, ready in json.loads(known[1])]
    added = transaction.add(queue, tasks, now=now)
    answer = json.dumps([(one.name, one.status, one.ready) for one in added], separators=(",", ":"))
    transaction.keep_answer(call.session, call.number, answer.encode(), now=now)
    return added
