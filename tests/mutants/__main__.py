"""`python3 -m tests.mutants [NAME ...]`: a line for each mutation, then `killed N of M`.

Exit code 1 when one survived, 2 when a mutation is stale or its tests can't be run.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.mutants.mutation import Mutation, Result, StaleMutationError, summary
from tests.mutants.mutations import MUTATIONS
from tests.mutants.running import BrokenTestsError, a_copy, applied, check_passing, tried


def main(arguments: Sequence[str] | None = None, mutations: Sequence[Mutation] = MUTATIONS) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tests.mutants", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="of mutations; all by default")
    parser.add_argument("--list", action="store_true", help="only print their names")
    asked = parser.parse_args(arguments)
    chosen = [one for one in mutations if not asked.names or one.name in asked.names]
    if unknown := set(asked.names) - {one.name for one in mutations}:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}; --list prints their names")
    if asked.list:
        sys.stdout.write("".join(f"{one.name:<52}{one.breaks}\n" for one in chosen))
        return 0
    results: list[Result] = []
    passing: set[tuple[tuple[str, ...], str]] = set()
    try:
        with a_copy() as tree:
            for mutation in chosen:
                with applied(mutation, tree):  # all are looked at before the first is run: a stale one ends it at once
                    pass
            for mutation in chosen:
                results.append(tried(mutation, tree))
                if results[-1].is_killed and (mutation.tests, mutation.only) not in passing:
                    check_passing(mutation, tree)
                    passing.add((mutation.tests, mutation.only))
                sys.stdout.write(f"{results[-1].line()}\n")
                sys.stdout.flush()
    except (StaleMutationError, BrokenTestsError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{summary(results)}\n")
    return 0 if all(one.is_killed for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
