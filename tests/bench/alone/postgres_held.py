"""Measure steady work while somebody holds a snapshot of PostgreSQL open, as `python3 -m tests.bench.held` does."""

from collections.abc import Mapping

from tests.bench.held.catalog import PEERS
from tests.bench.held.figures import flat
from tests.bench.held.holders import HOLDERS
from tests.bench.held.race import HeldRace
from tests.bench.places import Engine
from tests.bench.site import BenchSite


def measure(site: BenchSite, engine: Engine) -> Mapping[str, float]:
    """Return the figures of each holder and system."""
    seconds = 60.0 * site.churn_minutes / site.divide_loads_by**2  # sixteen runs: a tenth would still be an hour
    race = HeldRace(PEERS, list(HOLDERS), seconds=seconds)
    race.run(site.directory)
    print(race.report(), flush=True)
    return flat(race.runs)
