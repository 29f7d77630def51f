"""Translate errors of PostgreSQL. Pure: the one table from SQLSTATE to the store's errors."""

import psycopg

from queue_core.errors import (
    OutcomeUnknownError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    StoreUnsafeError,
)

_FULL = {"53100"}
_READ_ONLY = {"25006"}
_UNKNOWN = {"40003", "08007"}
_ENDED = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"}
_NOT_ALLOWED = {"42501"}
_MISSING = {"3F000", "42P01", "42883", "42703", "42704", "26000"}
_TAKEN, _OF_MARKERS = "23505", "commit_markers_pkey"
_DAMAGED_CLASS = "XX"
_PASSING_CLASSES = {"08", "40", "53", "55", "57", "58"}
_MAX_CHARACTERS = 300


def translate(error: psycopg.Error, where: str) -> StoreError:
    """Return the store's error for one of the driver's.

    A `StoreUnavailableError` says that nothing took effect, which is true of every failed statement and of a connection
    that was lost before its commit was sent. After a lost answer to a commit call `ConnectionPool.outcome` instead.

    Args:
        where: the store's URL without secrets, with which the message begins.
    """
    state = error.sqlstate
    if state is None:
        return _without_state(error, where)
    message = f"{where}: {_first_line(error)} (SQLSTATE {state})"
    if state == _TAKEN and error.diag.constraint_name == _OF_MARKERS:
        return StoreUnavailableError(f"{where}: the call was made before, by another connection; nothing was changed")
    if state in _FULL:
        return StoreFullError(f"{message}; nothing was changed: free space on the server's disk")
    if state in _UNKNOWN:
        return OutcomeUnknownError(message)
    if state in _READ_ONLY:
        return StoreUnavailableError(f"{message}; nothing was changed: the server takes no writes, as a standby does")
    if state in _NOT_ALLOWED:
        return StoreUnsafeError(f"{message}: let the role that made the schema open the store, or grant its rights")
    if state in _MISSING:
        return StoreCorruptError(f"{message}: the schema is not the one that this program made; open the store again")
    if state.startswith(_DAMAGED_CLASS) and state != "XX000":
        return StoreCorruptError(f"{message}: the server's files are damaged; restore a backup")
    if state in _ENDED or state[:2] in _PASSING_CLASSES:
        return StoreUnavailableError(f"{message}; nothing was changed")
    return StoreError(f"{message}; nothing was changed")


def read_only(where: str) -> StoreReadOnlyError:
    """Return the error for a server that takes no writes from this role."""
    return StoreReadOnlyError(
        f"{where}: default_transaction_read_only is on: set it off for this role and database, or free the disk space "
        "for which the provider set it"
    )


def _without_state(error: psycopg.Error, where: str) -> StoreError:
    """Translate an error of the driver itself: no server was reached, the connection ended, or an answer was not
    understood, of a statement that the server may have committed."""
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(f"{where}: {_first_line(error)}")
    return OutcomeUnknownError(
        f"{where}: {type(error).__name__}: {_first_line(error)}: it may have taken effect; check before repeating"
    )


def _first_line(error: psycopg.Error) -> str:
    """Return the first line of the server's message; its details may quote a payload."""
    text = error.diag.message_primary or str(error).strip().partition("\n")[0]
    return text[:_MAX_CHARACTERS]
