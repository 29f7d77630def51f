"""The last answer of each client's session, so that a repeat of its call is answered again and not done again."""

from queue_core.clock import Instant, after
from queue_core.errors import OutcomeUnknownError
from queue_core.store import ClientCall
from queue_core.stores.sqlite.answer_log import (
    KEPT_ROWS,
    TRIM_EVERY,
    answers_after,
    find_answer,
    is_forgotten,
    line_of,
    parse_line,
    trim_answers,
)
from queue_core.stores.sqlite.step import Known, Step

MAX_SESSIONS = 20_000


def answer_of(step: Step, call: ClientCall, *, now: Instant) -> bytes | None:
    """See `Transaction.answer_of`."""
    if not call.is_repeat:
        _learn_calls_of_others(step)
        if step.known.calls.get(call.session, 0) < call.number:
            return None
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


def _learn_calls_of_others(step: Step) -> None:
    """Learn which calls other processes have answered since this one last looked.

    A call may arrive here, unread in a socket until now, after its client gave it up and had another server answer the
    repeat. At first all answers that are kept are read, 2 us each; later those of transactions that came in between.
    """
    known = step.known
    if known.answers_are_read:
        return
    for row_id, session, number in answers_after(step.cursor, known.answers_read):
        known.answers_read = row_id
        _remember(known, session, number)
    known.answers_are_read = True


def _remember(known: Known, session: str, number: int) -> None:
    calls = known.calls
    calls.pop(session, None)
    calls[session] = number
    if len(calls) > MAX_SESSIONS:
        del calls[next(iter(calls))]


def note_answer(step: Step, call: ClientCall, answer: bytes) -> None:
    """See `Transaction.note_answer`. Transactions are made one by one, so none can have come in between."""
    step.told = True
    step.answers[call.session] = line_of(call.session, call.number, answer.decode())
    _remember(step.known, call.session, call.number)
    step.known.kept_answers += 1
    if step.known.kept_answers % TRIM_EVERY == 0:
        trim_answers(step.cursor)
