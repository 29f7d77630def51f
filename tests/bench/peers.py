"""Compare Towline with its peers in one run on this machine: `python3 -m tests.bench.peers`.

It measures and reports; a missed figure is no failure. Servers are private, and ended with it.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from queue_core.errors import QueueError
from tests.bench.catalog import ALONE, DEFAULT_SECTIONS, ENTRIES, NAMES, SECTIONS, CatalogEntry, SoloSection
from tests.bench.driver import BenchDriver
from tests.bench.measure import KINDS, Kind, MeasurementFailedError, measure
from tests.bench.places import ENGINES, Engine
from tests.bench.report import HEADINGS, alone_table, as_json, starts_table, systems_table, verdicts_table
from tests.bench.requirements import judge
from tests.bench.site import BenchSite
from tests.support.stores.engines import EngineUnavailableError

QUICK_DIVISOR = 10


@dataclass(slots=True)
class Results:
    """Every round's figures so far, and why some are missing."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    drivers: dict[str, BenchDriver] = field(default_factory=dict)

    def note(self, owner: str, figures: Mapping[str, float] | Mapping[Kind, float]) -> None:
        """Record one round's figures under their owner's name."""
        for name, value in figures.items():
            self.rounds.setdefault(f"{owner}.{name}", []).append(value)

    def lack(self, owner: str, error: Exception, label: str) -> None:
        """Record why an owner has no figures: unavailable here, or failed."""
        word = "not here" if isinstance(error, EngineUnavailableError) else "failed"
        self.missing[owner] = f"{word}: {error}"
        print(f"{label}: {owner} {word}: {error}", flush=True)

    def medians(self) -> dict[str, float]:
        """Return each figure's median over its rounds."""
        return {name: statistics.median(values) for name, values in self.rounds.items()}


def main() -> None:
    """Run the command."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that every server is ended
    divisor = QUICK_DIVISOR if arguments.quick else 1
    rounds = 1 if arguments.quick else arguments.rounds
    results = Results()
    with (
        tempfile.TemporaryDirectory(prefix="towline-bench-", dir=arguments.dir) as directory,
        BenchSite(
            Path(directory),
            pgmq_sql=arguments.pgmq_sql,
            divide_loads_by=divisor,
            churn_minutes=arguments.churn_minutes,
        ) as site,
    ):
        machine = machine_of(site)
        print("  ".join(f"{name}: {value}" for name, value in machine.items()), flush=True)
        with suppress(KeyboardInterrupt):  # figures measured so far are still reported
            _run(arguments, rounds, site, results)
    figures = results.medians()
    verdicts = judge(figures, results.missing)
    shown = [(key, driver.name, driver.durable) for key, driver in results.drivers.items()]
    tables = (
        systems_table(shown, figures),
        alone_table(figures),
        starts_table(results.rounds),
        verdicts_table(verdicts),
    )
    print("", *filter(None, tables), sep="\n\n")
    for owner, reason in results.missing.items():
        print(f"skipped {owner}: {reason}")
    if arguments.json:
        text = json.dumps(as_json(machine, results.rounds, figures, verdicts, results.missing), indent=2)
        arguments.json.write_text(text + "\n")


def _run(arguments: argparse.Namespace, rounds: int, site: BenchSite, results: Results) -> None:
    """Run round by round, each measurement for all systems in turn, so that a busy minute affects all.

    Every other round goes backwards through the systems, so that none always follows the same one.
    """
    for number in range(1, rounds + 1):
        label = f"round {number}/{rounds}"
        entries = ENTRIES if number % 2 else ENTRIES[::-1]
        for kind in KINDS:
            for entry in entries:
                if entry.name in arguments.only and kind in entry.kinds(arguments.section):
                    _measure_system(entry, kind, site, results, label)
        for part in ALONE:
            if part.name in arguments.section and "towline" in arguments.only and not (part.is_long and number > 1):
                for engine in arguments.engine or part.engines:
                    _measure_alone(part, engine, site, results, label)


def _measure_system(entry: CatalogEntry, kind: Kind, site: BenchSite, results: Results, label: str) -> None:
    if entry.name in results.missing:
        return
    try:
        if entry.name not in results.drivers:
            results.drivers[entry.name] = entry.make()
        driver = results.drivers[entry.name]
        began = time.monotonic()
        figures = measure(driver, (kind,), site)
        results.note(entry.name, figures)
        if figures:
            print(f"{label}: {driver.name}: {HEADINGS[kind]} ({time.monotonic() - began:.0f} s)", flush=True)
    except (EngineUnavailableError, MeasurementFailedError, QueueError) as error:
        results.lack(entry.name, error, label)


def _measure_alone(part: SoloSection, engine: Engine, site: BenchSite, results: Results, label: str) -> None:
    owner = part.owner(engine)
    if owner in results.missing:
        return
    try:
        began = time.monotonic()
        results.note(owner, part.measure(site, engine))
        print(f"{label}: {owner} ({time.monotonic() - began:.0f} s)", flush=True)
    except (EngineUnavailableError, MeasurementFailedError, QueueError) as error:
        results.lack(owner, error, label)


def machine_of(site: BenchSite) -> dict[str, object]:
    """Describe the machine, above all its disk's sync time (0 on a memory file system)."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "sync": f"{site.fsync_seconds() * 1e6:.0f} us",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    long = ", ".join(name for name in SECTIONS if name not in DEFAULT_SECTIONS)
    parser.add_argument(
        "--section", nargs="+", choices=SECTIONS, default=DEFAULT_SECTIONS, help=f"default: all but {long}"
    )
    parser.add_argument(
        "--engine", nargs="+", choices=ENGINES, help="where Towline alone is measured (default: by section)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="figures are medians over them (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth: proves that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures there")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="on the disk to measure (default: the temporary one)")
    parser.add_argument("--churn-minutes", type=int, default=10, metavar="N", help="at least 3 (default: 10)")
    parser.add_argument("--pgmq-sql", type=Path, metavar="FILE", help="pgmq.sql, when no package brings it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
