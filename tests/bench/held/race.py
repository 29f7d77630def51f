"""Each holder, and with it each system in turn, in one private PostgreSQL."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import psycopg

from queue_core.errors import QueueError
from tests.bench.held.catalog import PeerName, system_named
from tests.bench.held.figures import HeldRun, flat, fresh_database, measure_run
from tests.bench.held.holders import SETTINGS
from tests.bench.held.tables import holder_table, part_line
from tests.bench.measure import MeasurementFailedError
from tests.bench.report import verdicts_table
from tests.bench.requirements import judge
from tests.support.stores.engines import EngineUnavailableError, postgresql

HOLDING_SECONDS: Final = 600.0
OWNER: Final = "postgres-held-postgresql"
"""Of the figures that requirements name."""


class HeldRace:
    """The runs so far, and why some are missing."""

    def __init__(self, peers: Sequence[PeerName], holders: Sequence[str], *, seconds: float) -> None:
        self.seconds = seconds
        self.runs: list[HeldRun] = []
        self.skipped: dict[str, str] = {}
        self._peers = peers
        self._holders = holders
        self._names: dict[str, str] = {}

    def run(self, directory: Path, *, then: Callable[[], None] = lambda: None) -> None:
        """Run all, and do something after each, as the next may take an hour.

        Raises `EngineUnavailableError` when there is no PostgreSQL.
        """
        with postgresql(directory, settings=SETTINGS) as engine:
            numbers = count(1)
            for holder in self._holders:
                for peer in self._peers:
                    if peer in self.skipped:
                        continue
                    try:
                        self._names[peer] = system_named(peer).name
                        url = fresh_database(engine, next(numbers))
                        self.runs.append(measure_run(engine, url, peer, holder, seconds=self.seconds))
                        print(f"  {part_line(self.runs[-1], self._names[peer])}", flush=True)
                    except EngineUnavailableError as error:
                        self._lack(peer, f"not here: {error}")
                    except (MeasurementFailedError, QueueError, psycopg.Error) as error:
                        self._lack(f"{holder}, {peer}", f"failed: {error}")
                    then()

    def report(self) -> str:
        """Return a table for each holder, how each system did the load, what was skipped, and the verdicts."""
        parts = []
        for holder in self._holders:
            runs = [run for run in self.runs if run.holder == holder]
            if runs:
                parts.append(holder_table(holder, runs, self._names))
        measured = dict.fromkeys(run.system for run in self.runs)
        parts.append("\n".join(f"{self._names[peer]}: {system_named(peer).notions}" for peer in measured))
        parts.append(
            "\n".join(
                f"{run.holder}, {self._names[run.system]}: {run.before.done_share:.0%} of the load was done before"
                " it was held, so its figures tell nothing of the holder: run it on an idle machine"
                for run in self.runs
                if not run.is_carried
            )
        )
        parts.append("\n".join(f"skipped {owner}: {reason}" for owner, reason in self.skipped.items()))
        verdicts = judge({f"{OWNER}.{name}": value for name, value in flat(self.runs).items()}, {})
        parts.append(verdicts_table(verdicts) if verdicts else "")
        return "\n\n".join(filter(None, parts))

    def _lack(self, owner: str, reason: str) -> None:
        self.skipped[owner] = reason
        print(f"  {owner}: {reason}", flush=True)
