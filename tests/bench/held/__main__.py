"""Measure steady work while somebody holds a snapshot of PostgreSQL open: Towline and its peers, one after the other.

    python3 -m tests.bench.held                                        # ten minutes held for each: hours
    python3 -m tests.bench.held --for 90s --peers towline --holders transaction dump

Four producers add 800 tasks a second in batches of 40: half of them tagged, a tenth delayed by a second. Two consumers
lease by tag, two what is untagged, ten at a time; a twentieth is released for a second, one in fifty left to expire.
All work on before, while and after the snapshot is held, in one private PostgreSQL with the same settings.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.bench.held.catalog import PEERS
from tests.bench.held.holders import HOLDERS
from tests.bench.held.race import HOLDING_SECONDS, HeldRace
from tests.bench.held.tables import runs_as_json
from tests.bench.peers import machine_of
from tests.bench.site import BenchSite

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def main() -> None:
    """Run the command."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwind, so that every server is ended
    with (
        tempfile.TemporaryDirectory(prefix="towline-bench-", dir=arguments.dir) as directory,
        BenchSite(Path(directory)) as site,
    ):
        machine = machine_of(site)
        print("  ".join(f"{name}: {value}" for name, value in machine.items()), flush=True)
        race = HeldRace(arguments.peers, arguments.holders, seconds=getattr(arguments, "for"))

        def keep() -> None:
            if arguments.json:
                document = runs_as_json(machine, race.seconds, race.runs, race.skipped)
                arguments.json.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")

        with suppress(KeyboardInterrupt):  # figures measured so far are still reported
            race.run(site.directory, then=keep)
    print("", race.report(), sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.bench.held", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--for", type=_seconds, default=HOLDING_SECONDS, metavar="TIME", help="how long it is held (default: 10m)"
    )
    parser.add_argument(
        "--holders",
        nargs="+",
        choices=HOLDERS,
        default=list(HOLDERS),
        metavar="NAME",
        help=f"default: {', '.join(HOLDERS)}",
    )
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=PEERS, metavar="NAME", help=f"default: {', '.join(PEERS)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    parser.add_argument("--dir", type=Path, help="on the disk to measure (default: the temporary one)")
    return parser.parse_args()


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9.]+)(s|m|min|h)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time is a number and its unit, as 90s or 10m: {text!r}")
    return float(found[1]) * _UNITS[found[2]]


if __name__ == "__main__":
    main()
