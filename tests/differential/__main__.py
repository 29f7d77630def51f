"""`python3 -m tests.differential --programs 100 --steps 150 --store memory sqlite`: compare us with Google's stub."""

import argparse
import sys
from collections.abc import Sequence

from tests.differential.report import story, table
from tests.differential.running import EMBEDDED, STORES, run

FIRST_SEED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when every answer was the stub's, or differed by a rule; else 1."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.differential", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first program; the others follow")
    parser.add_argument("--store", nargs="+", choices=STORES, default=list(EMBEDDED))
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.programs)
    worst = 0
    for store in options.store:
        outcome = run(store, seeds, options.steps)
        for found in outcome.found:
            sys.stdout.write(story(found) + "\n\n")
            worst = 1
        sys.stdout.write(table(store, outcome.programs, outcome.tally, len(outcome.found)) + "\n\n")
        sys.stdout.flush()
    return worst


if __name__ == "__main__":
    sys.exit(main())
