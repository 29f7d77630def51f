"""The class of an error says what is known of the outcome: nothing was changed, or it can't be known."""

import psycopg
import pytest

from queue_core.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from queue_core.stores.postgres.client.errors import translate

WHERE = "postgresql://h/work"


@pytest.mark.parametrize("kind", [psycopg.DataError, psycopg.ProgrammingError, psycopg.DatabaseError, psycopg.Error])
def test_an_answer_that_the_driver_did_not_understand_leaves_the_outcome_open(kind: type[psycopg.Error]) -> None:
    assert type(translate(kind("not understood"), WHERE)) is OutcomeUnknownError


@pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg.InterfaceError])
def test_a_server_that_was_not_reached_has_changed_nothing(kind: type[psycopg.Error]) -> None:
    assert type(translate(kind("no connection"), WHERE)) is StoreUnavailableError


def test_a_statement_that_the_server_refused_has_changed_nothing() -> None:
    error = translate(psycopg.errors.NumericValueOutOfRange("too large"), WHERE)
    assert type(error) is StoreError
    assert "nothing was changed" in str(error)
