"""A text that a client's method takes is kept, or refused by a named error of a readable length, by each client."""

import pytest

from queue_core.client.http_calls import HttpQueue, HttpQueues
from queue_core.client.schedules_over_http import HttpSchedules
from queue_core.errors import InvalidRequestError, QueueError, StoreError
from tests.queue_core.test_client_numbers import ASYNC_INNER, Facade, facade
from tests.support.number_arguments import NumberArgument, text_arguments

__all__ = ["facade"]

NO_CALLS = (*ASYNC_INNER, "queue", "queue_for")
"""Those of `queue` and `queue_for` are sent with the first call of the queue that they return."""
TEXTS = {
    "none": "",
    "a lone surrogate": "\ud800",
    "NUL": "a\0b",
    "a million characters": "x" * 1_000_000,
    "a line end": "a\r\nx-role: admin\r\n\r\nb",
    "a path": "../../x?y#z",
    "an escaped path": "%2e%2e%2fx/",
    "not ASCII": "\N{SNOWMAN}" * 9,
    "digits": "9" * 5_000,
}
LONGEST_MESSAGE = 2_000


def test_a_text_is_taken_or_refused_by_a_named_error(facade: Facade) -> None:
    wrong: list[str] = []
    for of in facade.objects:
        for argument in text_arguments(of, without=NO_CALLS):
            for name, text in TEXTS.items():
                found = _fault(facade, of, argument, text)
                if found:
                    wrong.append(f"{of.__name__}.{argument.name} = {name}: {found}")
    assert not wrong, "\n".join(wrong)


def _fault(facade: Facade, of: type, argument: NumberArgument, text: str) -> str:
    """Return what is wrong with the outcome of a call; "": nothing."""
    try:
        facade.call(of, argument, text)
    except QueueError as error:
        if isinstance(error, StoreError) or len(str(error)) > LONGEST_MESSAGE:
            return f"{type(error).__name__} of {len(str(error))} characters: {error!s:.100}"
    except Exception as error:  # noqa: BLE001 - any other is the fault
        return f"{error!r:.200}"
    return ""


def test_an_unknown_change_of_all_that_match_is_named(facade: Facade) -> None:
    argument = next(one for one in text_arguments(HttpQueue) if one.name == "change_matching action")
    of = next(one for one in facade.objects if hasattr(one, "change_matching"))
    with pytest.raises(InvalidRequestError, match="action must be 'release' or"):
        facade.call(of, argument, "wipe")


def test_the_generated_calls_reach_every_kind_of_text() -> None:
    names = {one.name for of in (HttpQueue, HttpQueues, HttpSchedules) for one in text_arguments(of)}
    assert {"add tasks[].name", "add tasks[].headers[]", "delete_queue name", "put_queue spec.name"} <= names
    assert {"declare schedules[].origin", "lead holder", "release charge", "search search.worker"} <= names
