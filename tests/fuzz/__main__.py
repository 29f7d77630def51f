"""`python3 -m tests.fuzz --for 10m`: a line a reader, and what any of them stumbled over; 1 if one did."""

import argparse
import sys

from queue_core.config.units import parse_seconds
from tests.fuzz.readers import readers
from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.fuzz", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=parse_seconds, default=60.0, help="such as 60s or 10m")
    parser.add_argument("--seed", type=int, default=1, help="the first batch's; the same seed gives the same inputs")
    arguments = parser.parse_args()
    with readers() as found:
        counts = fuzz(found, seconds=arguments.seconds, first_seed=arguments.seed)
    lines = [f"{'reader':<24}{'inputs':>12}{'right':>12}{'refused':>12}{'slowest':>12}"]
    for count in counts:
        slowest = f"{count.slowest_seconds * 1000:.1f} ms"
        lines.append(f"{count.name:<24}{count.inputs:>12,}{count.right:>12,}{count.refused:>12,}{slowest:>12}")
    sys.stdout.write("\n".join([*lines, ""]))
    failures = [count for count in counts if count.failure is not None]
    for count in failures:
        sys.stderr.write(f"\n{count.name}: {count.failure}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
