"""Measure one system with one holder: before, while held, after."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from statistics import quantiles

import psutil
import psycopg

from tests.bench.held.catalog import PeerName, system_named
from tests.bench.held.holders import HOLDERS
from tests.bench.held.system import BATCH, PRODUCERS, Counts
from tests.bench.held.workload import HeldWorkload
from tests.bench.places import BenchStore, sizes
from tests.support.stores.engines import Engine

WARM_SECONDS = 8.0
"""Before anything is measured: longer than it takes the first leases that expire to be done."""
SLICE_SECONDS = 10.0
LONGEST_SECONDS = 60.0
"""The longest part before and after."""
CATCH_UP_SECONDS = 120.0
SETTLE_SECONDS = 30.0
"""From the holder's end, at least, to the part after."""
FINISH_SECONDS = 120.0
UNCARRIED_SHARE = 0.03
"""The share of what is offered that may be missing before, or done of what was late: beyond it the machine is busy."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The figures of a part of a run; times in seconds, `again` of leases after a release or an expiry."""

    seconds: float
    done_share: float
    added_share: float
    p50: float
    p95: float
    again_p95: float | None
    load_average: float
    engine_cores: float
    """CPU time of the engine by the time: what the part costs on a machine that is busy with something else too."""
    slices: Sequence[tuple[float, float, float]] = ()
    """Tasks added and done in a second, and the p95, of each ten seconds."""


@dataclass(frozen=True, slots=True)
class HeldRun:
    """The figures of one system with one holder."""

    holder: str
    system: PeerName
    tasks_per_second: int
    before: HeldPart
    held: HeldPart
    after: HeldPart
    behind: int
    """Tasks that were offered and never leased when the holder ended, the delayed ones of a second among them."""
    usually_behind: int
    """The most that are behind without a holder: twice as many as before, or as are added at a time."""
    catch_up_seconds: float | None
    """Until no more were behind than usual; None: not in two minutes."""
    table_bytes: float
    index_bytes: float
    """At the end of what was held."""
    differences: Sequence[str] | None
    """Between its totals and what was done in all; None: it keeps no totals."""

    @property
    def is_carried(self) -> bool:
        """Return whether the load was carried before: else what happened while held tells nothing of the holder."""
        return abs(self.before.done_share - 1.0) <= UNCARRIED_SHARE

    @property
    def ratio(self) -> float:
        """How many times the p95 is while held."""
        return self.held.p95 / self.before.p95


def measure_run(engine: Engine, url: str, name: PeerName, holder: str, *, seconds: float) -> HeldRun:
    """Run it in an empty database.

    Args:
        seconds: how long the snapshot is held.

    Raises `EngineUnavailableError` when the system can't run here, `MeasurementFailedError`.
    """
    short = min(seconds, LONGEST_SECONDS)
    system = system_named(name)
    system.install(url)
    with HOLDERS[holder](engine, url) as hold, HeldWorkload(name, url) as load:
        time.sleep(WARM_SECONDS)
        before = measure_part(load, engine, short)
        usual = 2 * max(load.behind(), BATCH * PRODUCERS)
        with hold():
            held = measure_part(load, engine, seconds)
            behind = load.behind()
            size = sizes(BenchStore(url, "strict", "postgresql"))
        ended = time.monotonic()
        caught_up = 0.0 if behind <= usual else _caught_up(load, usual)
        time.sleep(max(0.0, ended + min(SETTLE_SECONDS, seconds / 2) - time.monotonic()))
        after = measure_part(load, engine, short)
        return HeldRun(
            holder,
            name,
            system.tasks_per_second,
            before,
            held,
            after,
            behind,
            usual,
            caught_up,
            size["table_bytes"],
            size["index_bytes"],
            load.differences(FINISH_SECONDS),
        )


def measure_part(load: HeldWorkload, engine: Engine, seconds: float) -> HeldPart:
    """Measure for so long."""
    load.taken()
    spent = _cpu_seconds(engine)
    counts, slices = Counts(), []
    began = at = time.monotonic()
    while at < began + seconds:
        time.sleep(min(SLICE_SECONDS, max(began + seconds - at, 0.0)))
        one = load.taken()
        counts += one
        last, at = at, time.monotonic()
        rates = [one.numbers[what] / (at - last) for what in ("added", "done")]
        slices.append((rates[0], rates[1], _percentile(one.waits, 95)))
    lasted = at - began
    offered = load.system.tasks_per_second * lasted
    return HeldPart(
        lasted,
        counts.numbers["done"] / offered,
        counts.numbers["added"] / offered,
        _percentile(counts.waits, 50),
        _percentile(counts.waits, 95),
        _percentile(counts.waits_again, 95) if counts.waits_again else None,
        os.getloadavg()[0],
        (_cpu_seconds(engine) - spent) / lasted,
        slices,
    )


def _cpu_seconds(engine: Engine) -> float:
    """Return the CPU time of the engine's processes, and of those that ended."""
    times = []
    for process in engine.family():
        with suppress(psutil.NoSuchProcess):
            times.append(process.cpu_times())
    return sum(one.user + one.system for one in times) + times[0].children_user + times[0].children_system


def _percentile(values: Sequence[float], percent: int) -> float:
    """Return it, or infinity when there are no values: nothing was leased."""
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else float("inf")


def _caught_up(load: HeldWorkload, usual: int) -> float | None:
    began = time.monotonic()
    while time.monotonic() < began + CATCH_UP_SECONDS:
        time.sleep(POLL_SECONDS)
        load.taken()
        if load.behind() <= usual:
            return time.monotonic() - began
    return None


def flat(runs: Sequence[HeldRun]) -> Mapping[str, float]:
    """Return the figures that requirements are made of, by name, of the loads that were carried before."""
    figures: dict[str, float] = {}
    for run in runs:
        if not run.is_carried:
            continue
        name = f"{run.holder}_{run.system}"
        for part in ("before", "held", "after"):
            figures[f"{name}_{part}_done_share"] = getattr(run, part).done_share
            figures[f"{name}_{part}_p95"] = getattr(run, part).p95
        figures[f"{name}_behind_count"] = run.behind
        if run.differences is not None:
            figures[f"{name}_wrong_totals_count"] = len(run.differences)
    return figures


def fresh_database(engine: Engine, number: int) -> str:
    """Make an empty database in it, alone in its statistics and tables; return its URL."""
    name = f"held_{number}"
    with closing(psycopg.connect(engine.socket_url, autocommit=True)) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS held_{number - 1} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute("CHECKPOINT")  # what was measured before must not slow this down
    return engine.socket_url.replace("/postgres?", f"/{name}?")
