"""An attempt shows the class, text and place of an error, and never a payload or a secret."""

import asyncio
import base64
import inspect
import json
import re
import urllib.parse
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
from queue_core.attempts.failures import failure_message, failure_of, place_in
from queue_core.attempts.redaction import redacted
from queue_core.client.local_calls import LocalQueue
from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
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


ORDER = {"card": "4111-1111", "lines": [{"text": "Gr\u00fc\u00dfe an alle"}], "paid": True}


@pytest.mark.parametrize(
    "quoted",
    [
        pytest.param(str(ORDER), id="as Python has it"),
        pytest.param(json.dumps(ORDER, indent=2), id="as json.dumps prints it, escaped"),
        pytest.param(json.dumps(ORDER, indent=4, ensure_ascii=False), id="as others print it"),
        pytest.param(json.dumps(ORDER, ensure_ascii=False), id="as json.dumps has it, unescaped"),
        pytest.param(str(ORDER)[:40] + "...", id="its beginning"),
        pytest.param(base64.b64encode(json.dumps(ORDER).encode()).decode(), id="base64"),
        pytest.param(urllib.parse.quote(json.dumps(ORDER)), id="in an address"),
        pytest.param(urllib.parse.urlencode({"q": json.dumps(ORDER)}), id="in a query"),
    ],
)
def test_a_payload_is_replaced_however_its_json_is_written(quoted: str) -> None:
    shown = failure_message(f"bad order: {quoted}", [json.dumps(ORDER).encode()])
    assert "<payload>" in shown
    assert not re.search("4111|alle", shown)


def test_a_payload_that_is_one_json_text_is_replaced_without_its_quotes() -> None:
    assert failure_message("no user cat lover", [b'"cat lover"']) == "no user <payload>"


@pytest.mark.parametrize(
    ("payload", "text", "shown"),
    [
        pytest.param('{"password": "hunter2"}', "KeyError: 'hunter2'", "KeyError: '***'", id="by its name"),
        pytest.param('{"password": "hun\'ter2"}', repr("hun'ter2"), '"***"', id="by repr"),
        pytest.param('{"a": [{"ApiKey": 47110815}]}', "no 47110815", "no ***", id="a number, within"),
        pytest.param('{"credentials": {"user": ["anna"]}}', "no anna", "no ***", id="all that is below its name"),
        pytest.param(
            '{"path": "cat.jpg"}', "no file cat.jpg", "no file <payload>", id="a name that is none of a secret"
        ),
        pytest.param('{"token": true, "pwd": "abc"}', "true abc", "true abc", id="too short to tell"),
        pytest.param('{"token": "' + "a" * 70_000 + '"}', "aaaa", "aaaa", id="a payload too long to read"),
    ],
)
def test_a_value_that_its_payload_calls_secret_is_replaced(payload: str, text: str, shown: str) -> None:
    assert failure_message(text, [payload.encode()]) == shown


@pytest.mark.parametrize("payload", [b"[" * 60_000, b'{"a":' * 12_000, b"\xff{", b'{"a": "\\ud800"}', b"1" * 9_999])
def test_a_payload_that_is_no_json_or_a_deep_one_hides_what_it_can(payload: bytes) -> None:
    assert failure_message("no file cat.jpg", [payload]) == "no file cat.jpg"


def test_what_pydantic_was_given_is_hidden_in_a_text_too() -> None:
    error = raised_by(lambda: Picture.model_validate({"width": "4111-1111\n, x"}))
    assert "4111" in str(error)
    shown = redacted(f"{error}\n{error}")
    assert shown.count("[type=int_parsing, input_value=***, input_type=str]") == 2


async def _two_that_fail() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_find("cat.jpg"))  # the second line of the group
        group.create_task(_find("dog.jpg"))


async def _find(name: str) -> None:
    raise FileNotFoundError(name)  # the line that raised


def test_a_group_of_errors_is_told_by_its_errors_and_the_line_of_the_first() -> None:
    failure = failure_of(raised_by(lambda: asyncio.run(_two_that_fail())))
    assert failure.error == "ExceptionGroup"
    assert failure.message == (
        "unhandled errors in a TaskGroup (2 sub-exceptions): FileNotFoundError: cat.jpg; FileNotFoundError: dog.jpg"
    )
    assert failure.place.endswith(f"test_failures.py:{_find.__code__.co_firstlineno + 1}")


def test_a_group_within_a_group_is_told_by_its_first_errors_without_payloads() -> None:
    inner = ExceptionGroup("inner", [ValueError("bad pay load 7"), KeyError("b"), OSError(), ValueError("4th")])
    failure = failure_of(ExceptionGroup("outer", [inner, ValueError("5th")]), payloads=[b"pay load 7"])
    assert failure.message == "outer (2 sub-exceptions): ValueError: bad <payload>; KeyError: 'b'; OSError"
    assert failure.place == ""


@pytest.mark.parametrize("part", ["input_value=", "a-", "://a:", "eyJ-", "token ", "basic ", "\\'"])
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


def test_a_place_or_signal_that_the_message_names_is_not_told_twice() -> None:
    assert Failure("worker_died", "SIGKILL", "ended by SIGKILL").text == "ended by SIGKILL"
    assert Failure("worker_died", "SIGKILL", "out of memory").text == "SIGKILL: out of memory"
    at_the_place = Failure("timed_out", "MaxLease", "it was at tasks.py:10 in resize", "tasks.py:10")
    assert at_the_place.text == "MaxLease: it was at tasks.py:10 in resize"
    assert Failure("failed", "ValueError", "no image", "tasks.py:9").text == "ValueError: no image (tasks.py:9)"
