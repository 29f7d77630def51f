"""Somebody holds snapshots of a PostgreSQL store under fault, and its servers' floors rise all the time (ADR 35)."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import psycopg
import structlog

from queue_core.stores import Durability
from queue_core.stores.postgres import floors
from tests.faults.checker import Violation
from tests.faults.store_children import serve_until_killed

HOLD: Final = "hold snapshot"
"""The kind of the fault."""
HOLD_SECONDS: Final = (0.2, 6.0)
MEAN_SECONDS: Final = 3.0
EAGER: Mapping[str, float] = MappingProxyType(
    {
        "DEAD_ROWS": 0,
        "FEW_DEAD_ROWS": 0,
        "LOOK_SECONDS": 0.05,
        "RAISE_SECONDS": 0.005,
        "WORK": 5,
        "MARGIN_SECONDS": 0.0,
        "SEARCH_SECONDS": 1.0,
        "EPOCH_TRANSACTIONS": 20,
        "REWRITE_SECONDS": 0.2,
        "REWRITE_DEAD_ROWS": 10,
    }
)
"""Floors that rise whatever is dead, as often as they can, and are looked after from the bottom each second."""

_RAISED: Final = """
    SELECT coalesce(sum(q.newest), 0)::int8
    FROM (SELECT max(f.newest) AS newest FROM towline.floors AS f GROUP BY f.queue) AS q
"""


class SnapshotHolder:
    """A session that holds a snapshot until it is ended, or the server is."""

    def __init__(self, url: str) -> None:
        """Begin to hold; an engine that is down is let be."""
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        with suppress(psycopg.Error):
            self._connection = psycopg.connect(url, connect_timeout=2)
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._connection.execute("SELECT pg_current_xact_id()")

    def end(self) -> None:
        """Let it go."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()


def serve_floored(home: Path, name: str, url: str, port: int, skew_seconds: float, durability: Durability) -> None:
    """Run a server whose floors rise all the time, and leave a file for each floor that hid a task."""
    for setting, value in EAGER.items():
        setattr(floors, setting, value)

    def keep(_logger: object, _method: str, entry: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if entry["event"] == floors.FLOOR_MISSED:
            (home / f"{name}.missed").write_text(f"{entry}\n")
        return entry

    floors.log = structlog.wrap_logger(structlog.ReturnLogger(), processors=[keep])
    serve_until_killed(home, name, url, port, skew_seconds, durability)


def missed_floors(home: Path) -> list[Violation]:
    """Return a violation for each server that found a task below a floor."""
    return [Violation("I1", f"{path.stem} found a task below a floor") for path in sorted(home.glob("*.missed"))]


def floor_steps(url: str) -> int:
    """Return how often the floors of the store's queues were proposed or raised."""
    with psycopg.connect(url) as connection:
        row = connection.execute(_RAISED).fetchone()
    return int(str(row[0])) if row else 0
