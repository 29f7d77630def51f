"""An attempt shows the class, text and place of an error, and never a payload or a secret."""

import inspect
import json
import re
from collections.abc import Callable

import pytest
from pydantic import BaseModel

from queue_core.attempts.attempt import (
    MAX_MESSAGE_CHARACTERS,
    Attempt,
    Failure,
    attempts_of,
    attempts_text,
    check_failure,
)
from queue_core.attempts.failures import failure_message, failure_of, place_in, redacted
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.local import LocalQueue
from queue_core.task import NewTask, QueueSpec
from queue_core.testing import MemoryQueues


class Picture(BaseModel):
    width: int


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def raised_by(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def test_the_place_is_not_in_this_package() -> None:
    ours = [(inspect.getfile(LocalQueue), 7), (inspect.getfile(failure_of), 8)]
    assert place_in([*ours, (__file__, 9)]).endswith("test_failures.py:9")


def test_the_place_is_in_the_users_code_and_not_in_a_library() -> None:
    failure = failure_of(raised_by(lambda: json.loads("{")))
    assert failure.error == "JSONDecodeError"
    assert failure.place.startswith("tests/queue_core/attempts/test_failures.py:")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("no user 'pay load 7'", "no user '<payload>'", id="the payload"),
        pytest.param("at postgres://me:s3cret@db/x", "at postgres://***@db/x", id="credentials of a URL"),
        pytest.param("password=hunter2, retry", "password=***, retry", id="a password"),
        pytest.param("{'api_key': 'abc123'}", "{'api_key': '***'}", id="a key in a dict"),
        pytest.param("Authorization: Bearer abcdefgh123", "Authorization: Bearer ***", id="a bearer token"),
        pytest.param("no file cat.jpg", "no file cat.jpg", id="nothing to hide"),
        pytest.param("a\x00b\udc80", "ab?", id="what a store can't keep"),
    ],
)
def test_payloads_and_secrets_are_replaced(text: str, shown: str) -> None:
    assert failure_of(ValueError(text), payloads=[b"pay load 7"]).message == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ghp_x@github.com/a", "https://***@github.com/a"),
        ("redis://:p@ss@cache:1/0", "redis://***@cache:1/0"),
        ("postgresql://bob:hun/ter2@db/x", "postgresql://***@db/x"),
        ("see http://host:8080/users/bob@example.com", "see http://host:8080/users/bob@example.com"),
        ("postgres://u:pw@a,postgres://u:pw2@b", "postgres://***@a,postgres://***@b"),
        ("pwd=hunter2 passphrase: hunter3", "pwd=*** passphrase: ***"),
        ("{'password': 'hunter two', 'a': 1}", "{'password': '***', 'a': 1}"),
        ('{"password": "a\\",b;c"}', '{"password": "***"}'),
        ("Authorization: Token abcdef123456", "Authorization: Token ***"),
        ("Authorization: Bearer abcdef123456 x", "Authorization: Bearer *** x"),
        ("?X-Amz-Signature=abcdef&x=1", "?X-Amz-Signature=***&x=1"),
        ("bad key ghp_0123456789abcdefghijABCD", "bad key ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.abcDEF is old", "*** is old"),
        ("unexpected token '<' at 3", "unexpected token '<' at 3"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text: str, shown: str) -> None:
    assert failure_message(text) == shown


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"card 4111-1111\n", "bad: 'card 4111-1111'"),
        ("Gr\u00fc\u00dfe\nan alle".encode(), repr("Gr\u00fc\u00dfe\nan alle")),
        (b'{"card": "4111"}', json.dumps({"got": '{"card": "4111"}'})),
        (b"4111" * 10_000, "bad: " + "4111" * 10_000),
        (b"4111" * 100, f"invalid literal: '{'4111' * 50}"),
    ],
    ids=["stripped", "quoted text", "as JSON", "longer than what is read", "its beginning"],
)
def test_a_payload_is_replaced_however_it_is_quoted(payload: bytes, message: str) -> None:
    shown = failure_message(message, [payload])
    assert "<payload>" in shown
    assert not re.search("4111|an alle", shown)


@pytest.mark.parametrize("part", ["a-", "://a:", "eyJ-", "token ", "basic ", "\\'"])
def test_a_long_text_is_redacted_in_linear_time(part: str) -> None:
    """A pattern that is quadratic in its text takes an hour for this one, and holds the interpreter lock meanwhile."""
    text = part * (400_000 // len(part))
    assert redacted(text) == text


def test_a_model_that_does_not_fit_is_told_by_field_without_its_input() -> None:
    failure = failure_of(raised_by(lambda: Picture.model_validate({"width": "s3cret"})))
    assert failure.message.startswith("width: Input should be a valid integer")
    assert "s3cret" not in failure.message


def test_a_long_text_is_cut_and_one_that_can_not_be_made_is_told() -> None:
    assert len(failure_of(ValueError("x" * 9999)).message) == MAX_MESSAGE_CHARACTERS
    assert "ZeroDivisionError" in failure_of(UnspeakableError()).message


@pytest.mark.parametrize("error", [ValueError("bad pay load 7"), "bad pay load 7"])
def test_a_release_with_an_error_hides_the_payloads_of_its_leases(error: object) -> None:
    queues = MemoryQueues(QueueSpec("q"))
    queue: LocalQueue = queues.queue("q")
    queue.add(NewTask(b"pay load 7"))
    queue.release(queue.lease(), delay_seconds=0.0, error=error)  # type: ignore[arg-type]
    (task,) = queue.peek().tasks
    assert [one.message for one in task.attempts] == ["bad <payload>"]


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        pytest.param(Failure(message="x" * 501), "message", id="too long a message"),
        pytest.param(Failure(place="x" * 201), "place", id="too long a place"),
        pytest.param(Failure(error=7), "error", id="no text"),  # type: ignore[arg-type]
        pytest.param(Failure(outcome="expired"), "outcome", id="an outcome that only time has"),  # type: ignore[arg-type]
        pytest.param("ValueError", "Failure", id="no failure"),
    ],
)
def test_a_failure_out_of_range_is_refused(failure: object, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        check_failure(failure)


def test_attempts_come_back_from_their_text_as_they_were() -> None:
    attempts = tuple(
        Attempt(
            number, 'w "1"\n', Instant(number), Instant(number + 1), "raised", "E", 'a\n"b"\\ü\u2028', "t.py:1", "h"
        )
        for number in range(3)
    )
    assert attempts_of(attempts_text(attempts)) == attempts
    assert attempts_of(attempts_text(())) == attempts_of(None) == ()


def test_a_place_that_the_message_names_is_not_told_twice() -> None:
    at_the_place = Failure("timed_out", "MaxLease", "it was at tasks.py:10 in resize", "tasks.py:10")
    assert at_the_place.text == "MaxLease: it was at tasks.py:10 in resize"
    assert Failure("failed", "ValueError", "no image", "tasks.py:9").text == "ValueError: no image (tasks.py:9)"
