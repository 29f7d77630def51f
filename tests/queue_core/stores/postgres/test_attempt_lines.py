"""Attempts as SQL writes them are those that Python would have written."""

from collections.abc import Iterator

import psycopg
import pytest

from queue_core.attempts.attempt import (
    EXPIRED_TEXT,
    MAX_ATTEMPTS,
    WORDS,
    Attempt,
    Failure,
    attempts_of,
    attempts_text,
    failure_text,
    with_attempt,
)
from queue_core.clock import START
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import at

_APPEND = "SELECT towline.with_attempt(%s, %s::int4, %s::text, %s::int8, %s::int8, %s)"


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(new_store_url("postgresql"), autocommit=True) as opened:
        yield opened


def one(connection: psycopg.Connection[tuple[object, ...]], query: str, *values: object) -> str:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return str(row[0])


def test_sql_and_python_have_the_same_words_for_a_lease_that_expired(
    connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    assert one(connection, "SELECT towline.expired_reason()") == WORDS["expired"]
    assert one(connection, "SELECT towline.expired_fields()") == EXPIRED_TEXT


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"quoted" \\ and / slashed', id="quotes"),
        pytest.param("two\nlines\r\n\tand a tab", id="lines"),
        pytest.param("".join(map(chr, range(1, 32))) + "\x7f\x85", id="control characters"),
        pytest.param("\u2028\u2029 ü \U0001f40c", id="beyond ASCII"),
        pytest.param("", id="nothing"),
    ],
)
def test_a_line_is_parsed_as_it_was_meant(connection: psycopg.Connection[tuple[object, ...]], text: str) -> None:
    failure = Failure("raised", text[:100], text, text, text)
    attempts: tuple[Attempt, ...] = ()
    for number in range(1, MAX_ATTEMPTS + 4):
        attempt = Attempt(number, text, START, at(number), "raised", failure.error, text, text, text)
        written = one(
            connection, _APPEND, attempts_text(attempts), number, text or None, START, at(number), failure_text(failure)
        )
        attempts = with_attempt(attempts, attempt)
        assert attempts_of(written) == attempts
    assert len(attempts) == MAX_ATTEMPTS
