"""Measure churn while a transaction is open in its last third, so that dead rows can't be cleaned up.

Latencies stay as they were (ADR 35); the tables grow until the transaction ends.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from tests.bench.alone.churn import churn
from tests.bench.places import BenchStore, Engine
from tests.bench.site import BenchSite


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """See `churn.measure`."""
    return churn(site, engine, in_last_third=_open_transaction)


@contextmanager
def _open_transaction(place: BenchStore) -> Iterator[None]:
    import psycopg

    with closing(psycopg.connect(place.url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()
