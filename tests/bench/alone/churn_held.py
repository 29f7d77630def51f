"""The same churn while, in its last third, somebody keeps a transaction open: no row that dies can be cleaned up then.

What that does is told, not bounded: it is the engine's nature, and the remedy is to end that transaction.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from tests.bench.alone.churn import churn
from tests.bench.places import BenchStore, Engine
from tests.bench.site import BenchSite


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """As `churn.measure`."""
    return churn(site, engine, in_last_third=_open_transaction)


@contextmanager
def _open_transaction(place: BenchStore) -> Iterator[None]:
    import psycopg

    with closing(psycopg.connect(place.url)) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()
