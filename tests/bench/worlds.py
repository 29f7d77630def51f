"""Compare a pool with its peers in random worlds: in which is it far worse than one of them?

    python3 -m tests.bench.worlds FIRST LAST                  # worlds FIRST to LAST - 1, a line each, and a summary
    python3 -m tests.bench.worlds FIRST LAST --fork 0.01      # each start but the first takes that part of its time

A line has for the pool and each peer: late %, the longest wait in slos, cost over that of hindsight. `!` marks
worlds with a regret (see `WorldResult.regrets`).
"""

import argparse
import math
from collections.abc import Iterable, Sequence

from tests.support.fleet.worlds import WorldResult, a_world, forking, world_result


def _mean(numbers: Iterable[float]) -> float:
    listed = list(numbers)
    return math.fsum(listed) / len(listed)


def _geometric(numbers: Iterable[float]) -> float:
    return math.exp(_mean(math.log(number) for number in numbers))


def summary(found: Sequence[WorldResult]) -> str:
    """Return the summary of some worlds, in a few lines."""
    marked = [one for one in found if one.regrets]
    late, best_late = (
        _mean(one.pool.late_share for one in found),
        _mean(one.best_late_share for one in found),
    )
    worst = _geometric(max(1.0, one.pool.worst_over_slo) for one in found)
    best_worst = _geometric(max(1.0, one.best_worst_over_slo) for one in found)
    cost, least_cost = _geometric(one.cost for one in found), _geometric(one.least_cost for one in found)
    return "\n".join(
        (
            f"{len(found)} worlds, {len(marked)} marked ({len(marked) / len(found):.1%})",
            f"late, mean: {late:.2%} (best peer of each {best_late:.2%})",
            f"worst wait / slo, 1 at least, geometric mean: {worst:.2f} (best peer of each {best_worst:.2f})",
            f"cost, geometric mean: {cost:.2f} (cheapest peer that is no later {least_cost:.2f})",
        )
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.worlds", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--fork", type=float)
    given = parser.parse_args()
    found = []
    for number in range(given.first, given.last):
        world = a_world(number) if given.fork is None else forking(a_world(number), given.fork)
        found.append(world_result(world))
        print(found[-1].line, flush=True)
    if found:
        print(summary(found))


if __name__ == "__main__":
    main()
