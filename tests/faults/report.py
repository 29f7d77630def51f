"""The crash tests' result for people and for programs."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from tests.faults.checker import INVARIANTS, TOLD_BY_DRIVERS, Violation, count_by_invariant
from tests.faults.outcome import Tally

SHOWN_VIOLATIONS = 20
COLUMNS = ("operations", "unknown", "kills", "engine_kills", "cuts", "disk_errors", "reopenings")


def as_table(tallies: Sequence[Tally], seed: int) -> str:
    """Counts by scenario, then violations by invariant and scenario, then the first violations in words."""
    names = [tally.scenario for tally in tallies]
    lines = [_row("", [column.replace("_", " ") for column in COLUMNS])]
    lines += [_row(tally.scenario, [str(count) for count in _counts(tally)]) for tally in tallies]
    lines.append(_row("total", [str(sum(counts)) for counts in zip(*map(_counts, tallies), strict=True)]))
    lines += ["", _row("violations", [*names, "total"])]
    by_scenario = [count_by_invariant(tally.violations) for tally in tallies]
    for invariant in (*INVARIANTS, *TOLD_BY_DRIVERS):
        counts = [counted[invariant] for counted in by_scenario]
        lines.append(_row(invariant, [str(count) for count in (*counts, sum(counts))]))
    violations = list(chain.from_iterable(tally.violations for tally in tallies))
    lines += ["", *(f"{violation.invariant}  {violation.what}" for violation in violations[:SHOWN_VIOLATIONS])]
    if len(violations) > SHOWN_VIOLATIONS:
        lines.append(f"... and {len(violations) - SHOWN_VIOLATIONS} more")
    lines += [
        f"{tally.scenario}: {name.replace('_', ' ')} {value:.3g}"
        for tally in tallies
        for name, value in tally.figures.items()
    ]
    lines += [f"{tally.scenario}: {tally.summary}" for tally in tallies if tally.summary]
    lines += [f"{tally.scenario}: not run: {tally.skipped}" for tally in tallies if tally.skipped]
    lines.append(f"seed {seed}: {len(violations)} violations")
    return "\n".join(lines)


def as_json(tallies: Sequence[Tally], seed: int) -> str:
    """The same as one object in one line."""
    violations: list[Violation] = list(chain.from_iterable(tally.violations for tally in tallies))
    totals: Counter[str] = Counter()
    for tally in tallies:
        totals.update(dict(zip(COLUMNS, _counts(tally), strict=True)))
    return json.dumps(
        {
            "seed": seed,
            **{column: totals[column] for column in COLUMNS},
            "violations": count_by_invariant(violations),
            "scenarios": {
                tally.scenario: {
                    **dict(zip(COLUMNS, _counts(tally), strict=True)),
                    "violations": len(tally.violations),
                    "figures": {name: round(value, 4) for name, value in tally.figures.items()},
                    "counts": tally.counts,
                    "skipped": tally.skipped or None,
                }
                for tally in tallies
            },
            "what": [f"{violation.invariant} {violation.what}" for violation in violations[:SHOWN_VIOLATIONS]],
        }
    )


def _counts(tally: Tally) -> tuple[int, ...]:
    return tuple(getattr(tally, column) for column in COLUMNS)


def _row(title: str, cells: Sequence[str]) -> str:
    return f"{title:<12}" + "".join(f"{cell:>13}" for cell in cells)
