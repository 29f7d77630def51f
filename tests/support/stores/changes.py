"""Verbs over `Transaction.apply`, as the tests of stores call them: without a unit of work."""

from collections.abc import Sequence

from pydantic_core import from_json, to_json

from queue_core.clock import Instant
from queue_core.store import Transaction
from queue_core.task import StoredTask, TagFilter, TaskState
from queue_core.unit.once import once
from queue_core.unit.queue_verbs import Redrive, Retag
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, NameOutcome
from queue_core.verbs.change_verbs import READY_OR_HELD, Changed, InStates, Selector


def redrive(
    transaction: Transaction, queue: str, names: Sequence[str] | None, tags: TagFilter, *, limit: int, now: Instant
) -> list[StoredTask]:
    """Make dead tasks ready again; return them as they are then."""
    verb = Redrive(queue, tags, None if names is None else list(names))
    which = verb.selector() if names is not None else InStates((TaskState.DEAD,), tags, limit, depth="whole")
    return [one.task for one in _apply(transaction, verb, which, now)]


def retag(
    transaction: Transaction, queue: str, names: Sequence[str], tag: str | None, *, now: Instant
) -> list[tuple[str, bool]]:
    """Give tasks that are not leased another tag; return the name of each, and whether its eta has come."""
    verb = Retag(queue, list(names), tag)
    return [(one.name, one.before.state in READY_OR_HELD) for one in _apply(transaction, verb, verb.selector(), now)]


def delete_by_name_once(work: UnitOfWork, call: ClientCall, queue: str, names: Sequence[str]) -> list[NameOutcome]:
    """Delete tasks by name for a client's call, as a server does."""
    return once(work, call, lambda work: work.delete_by_name(queue, names), encode=to_json, decode=from_json)


def _apply(transaction: Transaction, verb: Redrive | Retag, which: Selector, now: Instant) -> list[Changed]:
    return transaction.apply(verb.queue, which, lambda task, _: verb.transition(task, now=now), now=now)
