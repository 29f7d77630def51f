"""`python3 -m tests.fuzz --for 10m`: a line a reader, and what any of them stumbled over; 1 if one did.

With `--stalls`: a line a door and role, with the longest pause of a server's loop; 1 if one is over 50 ms.
"""

import argparse
import sys

from queue_core.config.units import parse_seconds
from tests.fuzz.readers import readers
from tests.fuzz.run import fuzz
from tests.fuzz.stalls.run import HEADING, MAX_GROWTH_BYTES, line, stalls
from tests.fuzz.stalls.server import MIB, a_probed_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.fuzz", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=parse_seconds, default=60.0, help="such as 60s or 10m")
    parser.add_argument("--seed", type=int, default=1, help="the first batch's; the same seed gives the same inputs")
    parser.add_argument("--stalls", action="store_true", help="hostile requests to a server, and its longest pauses")
    arguments = parser.parse_args()
    if arguments.stalls:
        return show_stalls(arguments.seconds, arguments.seed)
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


def show_stalls(seconds: float, seed: int) -> int:
    """Send hostile requests for so long, and show the longest pauses."""
    with a_probed_server() as server:
        report = stalls(server, seconds=seconds, seed=seed, show=lambda text: sys.stderr.write(f"{text}\n"))
    lines = [HEADING, *[line(one) for one in report.longest()], f"{len(report.outcomes):,} requests"]
    lines += [f"before: {report.before.memory}", f"once:   {report.once.memory}", f"after:  {report.after.memory}"]
    sys.stdout.write("\n".join([*lines, ""]))
    failures = report.failures()
    if report.grown_bytes > MAX_GROWTH_BYTES:
        failures.append(f"memory grew by {report.grown_bytes / MIB:.0f} MiB")
    sys.stderr.write("".join(f"{one}\n" for one in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
