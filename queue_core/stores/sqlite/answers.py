"""The last answer of each client's session, so that a repeat of its call is answered again and not done again."""

from queue_core.clock import Instant, after
from queue_core.errors import OutcomeUnknownError
from queue_core.store import ClientCall
from queue_core.stores.sqlite.answer_log import (
    KEPT_ROWS,
    TRIM_EVERY,
    find_answer,
    is_forgotten,
    line_of,
    parse_line,
    trim_answers,
)
from queue_core.stores.sqlite.step import Step

MAX_SESSIONS = 20_000


def answer_of(step: Step, call: ClientCall, *, now: Instant) -> bytes | None:
    """See `Transaction.answer_of`."""
    if not call.is_repeat and step.known.calls.get(call.session, 0) < call.number:
        return None  # no call of this process has come before it, and those of earlier ones had their answers lost
    here = step.answers.get(call.session)
    found = find_answer(step.connection, call.session) if here is None else parse_line(f"\n{here}", call.session)
    if found is not None:
        return call.answer_in((found[0], found[1].encode()))
    if is_forgotten(step.connection, since=after(now, -call.age_seconds)):
        raise OutcomeUnknownError(
            f"more than {KEPT_ROWS} changes were made since this call was first sent ({call.age_seconds} s ago): "
            "whether it took effect is not known any more; look before repeating"
        )
    return None


def note_answer(step: Step, call: ClientCall, answer: bytes) -> None:
    """See `Transaction.note_answer`. Transactions are made one by one, so none can have come in between."""
    step.told = True
    step.answers[call.session] = line_of(call.session, call.number, answer.decode())
    known = step.known.calls
    known.pop(call.session, None)
    known[call.session] = call.number
    if len(known) > MAX_SESSIONS:
        del known[next(iter(known))]
    step.known.kept_answers += 1
    if step.known.kept_answers % TRIM_EVERY == 0:
        trim_answers(step.cursor)
