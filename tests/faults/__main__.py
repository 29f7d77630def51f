"""`python3 -m tests.faults --for 60s`: inject every kind of fault and count broken promises."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from queue_core.config.units import parse_seconds
from tests.faults.fork_starts import fork_starts
from tests.faults.full_disk import failing_disks
from tests.faults.kill_random import kills_at_random
from tests.faults.kill_server import kills_of_servers
from tests.faults.kill_store import kills_on
from tests.faults.kill_write import kills_at_writes
from tests.faults.outcome import FaultBudget, FaultTally
from tests.faults.over_http import FaultConditions, held_conditions, over_http, progress
from tests.faults.power_cut import power_cuts
from tests.faults.report import as_json, as_table
from tests.faults.schedules import ticks_once
from tests.faults.sites import STORES
from tests.faults.stopped import stopped_servers
from tests.faults.two_servers import two_servers

Scenario = Callable[[FaultBudget, Path], FaultTally]

SCENARIOS: dict[str, tuple[str, Scenario]] = {
    "kill": ("producers and workers on one file, killed at random", kills_at_random),
    "limits": (
        "the same on queues with limits, priorities and rotation: no lease too many or too soon",
        partial(kills_at_random, limited=True),
    ),
    "write": ("a store's process killed at each of its writes and syncs", kills_at_writes),
    "power": ("power cuts that keep any mixture of what was not synced", power_cuts),
    "server": ("server, supervisor and workers killed under HTTP producers", kills_of_servers),
    "disk": ("a full disk, and one that can't sync", failing_disks),
    **{
        store: (
            f"callers, servers, the engine and the connections to them, all on one {store} store",
            partial(kills_on, store),
        )
        for store in STORES
    },
    **{
        f"limits-{store}": (f"the same on {store}, on queues with limits", partial(kills_on, store, limited=True))
        for store in STORES
        if store != "sqlite"
    },
}
ON_HOSTS: dict[str, tuple[str, Scenario]] = {
    f"servers-{store}": (
        f"two servers on two hosts and {store} on a third, killed and cut off",
        partial(two_servers, store),
    )
    for store in STORES
    if store != "sqlite"
}
"""Scenarios that run only when named: each takes a minute and a half, whatever the time given."""
OVER_HTTP: dict[str, tuple[str, Scenario]] = {
    f"http-{store}": (
        f"clients over HTTP through proxies that reset, stall and swallow, servers over {store}, all of it killed",
        partial(over_http, store, report=progress),
    )
    for store in STORES
}
"""Scenarios that run only when named: each takes minutes to reach its operations."""
STOPPED: dict[str, tuple[str, Scenario]] = {
    f"stopped-{store}": (
        f"callers of two servers over {store} that are stopped for 1 to 60 s, each call held against a model",
        partial(stopped_servers, store),
    )
    for store in STORES
}
"""Run only when named, or as `stopped`: a stop lasts several seconds."""
STARTS: dict[str, tuple[str, Scenario]] = {
    "starts": ("whoever takes part in the start of a forked worker, killed or stopped at any step", fork_starts),
}
"""Runs only when named: its operations are rounds, 20 by default."""
SCHEDULES: dict[str, tuple[str, Scenario]] = {
    f"schedules-{store}": (
        f"a schedule of a tick a second on {store}, two servers and two supervisors killed in turn",
        partial(ticks_once, store),
    )
    for store in STORES
    if store != "sqlite"
}
"""Run only when named, or as `schedules`: three minutes each show what they should."""
ALL = {**SCENARIOS, **STARTS, **SCHEDULES, **ON_HOSTS, **OVER_HTTP, **STOPPED}
LONGEST_SECONDS = 86_400.0
DEFAULT_SECONDS = 60.0
MIN_FREE_BYTES = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios one after another; return 0 when nothing was violated, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.servers is not None and not options.http:
        parser.error("--servers goes with --http")
    if options.servers == 2 and "sqlite" in options.store:
        parser.error("--servers 2: a file of SQLite belongs to one server; leave sqlite out, or say --servers 1")
    if options.held and not (options.http and options.store == "postgresql"):
        parser.error("--held goes with --http --store postgresql")
    names = _names(options)
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        print(f"no scenario {', '.join(unknown)}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    if options.directory is not None and not Path(options.directory).is_dir():
        print(f"--directory {options.directory}: no such folder; create it, or leave the option out", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="towline-faults-", dir=options.directory))
    tallies: list[FaultTally] = []
    try:
        free = shutil.disk_usage(folder).free
        if free < MIN_FREE_BYTES:
            print(f"{folder}: {free >> 20} MiB free, {MIN_FREE_BYTES >> 20} MiB needed", file=sys.stderr)
            return 2
        for name in names:
            title, scenario = ALL[name]
            if options.held:
                how = held_conditions(options.servers or 2)
                scenario = partial(over_http, "postgresql", conditions=how, report=progress)
            elif options.servers is not None:
                scenario = _with_servers(name, options.servers)
            _report(f"{name:7} {title} ...")
            home = folder / name
            home.mkdir()
            tally = scenario(_budget(options, len(names)), home)
            tallies.append(tally)
            if not tally.violations:
                shutil.rmtree(home)
            _report(f"{name:7} {tally.skipped or f'{tally.operations} operations, {len(tally.violations)} violations'}")
    finally:
        if any(tally.violations for tally in tallies):
            print(f"the histories that prove it are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(as_json(tallies, options.seed) if options.json else as_table(tallies, options.seed))
    return 1 if any(tally.violations for tally in tallies) else 0


def _names(options: argparse.Namespace) -> list[str]:
    if options.http:
        stores = STORES if options.store in ("", "all") else options.store.split(",")
        return [f"http-{store}" for store in stores]
    if options.store:
        return list(STORES) if options.store == "all" else options.store.split(",")
    groups = {"servers": ON_HOSTS, "schedules": SCHEDULES, "stopped": STOPPED}
    if options.only in groups:
        return list(groups[options.only])
    return options.only.split(",") if options.only else list(SCENARIOS)


def _with_servers(name: str, servers: int) -> Scenario:
    """Return an HTTP run with that many servers on one store; SQLite allows one."""
    store = next(store for store in STORES if name == f"http-{store}")
    conditions = FaultConditions(1 if store == "sqlite" else servers)
    return partial(over_http, store, conditions=conditions, report=progress)


def _budget(options: argparse.Namespace, scenarios: int) -> FaultBudget:
    """Return each scenario's share of the time, or a number of operations without a time limit."""
    if options.operations is not None:
        return FaultBudget(options.seconds or LONGEST_SECONDS, options.seed, options.operations)
    return FaultBudget((options.seconds or DEFAULT_SECONDS) / scenarios, options.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m tests.faults", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=_seconds, default=None, help="for all scenarios (default 60s)")
    parser.add_argument("--store", default="", help=f"only the stores, by commas: {', '.join(STORES)}; or all")
    parser.add_argument("--http", action="store_true", help="only clients over HTTP, on the stores of --store")
    parser.add_argument(
        "--servers", type=int, choices=(1, 2), default=None, help="on one store, with --http (default 2; of sqlite 1)"
    )
    parser.add_argument(
        "--held",
        action="store_true",
        help="with --http --store postgresql: somebody holds snapshots now and then, and floors rise all the time",
    )
    parser.add_argument(
        "--operations", type=_count, default=None, help="of each store's callers, however long it takes; or --for each"
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn, is drawn from it (default 1)")
    parser.add_argument("--only", default="", help=f"scenarios, by commas: {', '.join(ALL)}")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the files go (default: the temporary folder)"
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not 1 <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be in [1s, 24h]: {text}")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive number: {text}")
    return int(text)


def _report(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that children and files are removed, too
    sys.exit(main())
