"""A check that a store lies in the database of a Django connection, so that an add can be part of its transaction."""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from queue_core.config.store_urls import masked
from queue_core.errors import StoreUnavailableError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

SCHEMES: Final = ("postgresql:", "postgres:")
_IDENTITY: Final = "SELECT current_database(), extract(epoch FROM pg_postmaster_start_time())::text"
"""The database and the run of its server, which no two servers share to the microsecond."""
MAX_URLS: Final = 32


def is_same_database(url: str, database: "BaseDatabaseWrapper") -> bool:
    """Return whether the store of a URL is in the database to which Django has a psycopg 3 connection.

    Raises `StoreUnavailableError` when the store can't be reached: Django's transaction can still be rolled back.
    """
    if not url.startswith(SCHEMES) or database.vendor != "postgresql":
        return False
    import psycopg

    if not isinstance(database.connection, psycopg.Connection):
        return False
    row = database.connection.cursor(row_factory=psycopg.rows.tuple_row).execute(_IDENTITY).fetchone()
    try:
        return row == _identity_of(url, str(row))
    except psycopg.Error as error:
        raise StoreUnavailableError(f"can't reach {masked(url)}: {str(error).splitlines()[0]}") from error


@lru_cache(maxsize=MAX_URLS)
def _identity_of(url: str, _seen: str) -> tuple[object, ...] | None:
    """Return the identity of a store's database, asked once for each that Django's may be."""
    import psycopg

    from queue_core.stores.postgres.client.address import parse_address

    with psycopg.connect(parse_address(url).conninfo, autocommit=True) as connection:
        return connection.execute(_IDENTITY).fetchone()
