"""The report of a differential run: a table per store, and each difference with the shortest program. Pure."""

from dataclasses import dataclass

from tests.differential.comparison import CHOSEN_NAMES, RECENT_FIGURES, ComparisonTally, Difference
from tests.differential.operations import Program
from tests.differential.rules import RULES

REASONS = {rule.name: rule.reason for rule in RULES} | {
    CHOSEN_NAMES: "differ in their form; a task is known by the pair of its names",
    RECENT_FIGURES: "the stub draws them at random: ours are checked against what was leased",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A difference of one program on one store."""

    store: str
    seed: int
    program: Program
    difference: Difference


def table(store: str, programs: int, tally: ComparisonTally, found: int) -> str:
    """Return the counts of one store."""
    total = tally.calls.total()
    lines = [
        f"{store}: {programs} programs, {total} answers compared, {found} unexplained differences",
        f"  {'call':<18}{'compared':>9}{'same':>9}{'by a rule':>11}",
    ]
    for name, count in sorted(tally.calls.items()):
        same = tally.same[name]
        lines.append(f"  {name:<18}{count:>9}{same:>9}{count - same:>11}")
    lines.append("  our answers: " + ", ".join(f"{kind} {count}" for kind, count in tally.kinds.most_common()))
    lines.append("  allowed differences, and in how many answers each was needed:")
    for name, reason in REASONS.items():
        lines.append(f"  {name:<26}{tally.rules[name]:>7}  {reason}")
    return "\n".join(lines)


def story(found: Found) -> str:
    """Describe a difference so that it can be understood and run again."""
    difference = found.difference
    steps = "\n".join(f"  {number:>3} {step}" for number, step in enumerate(found.program))
    return "\n".join(
        (
            f"DIFFERENCE over {found.store}, seed {found.seed}, step {difference.step} of",
            steps,
            f"  request:  {' '.join(difference.request.split())}",
            f"  stub:     {difference.google}",
            f"  expected: {difference.expected}",
            f"  ours:     {difference.ours}",
        )
    )
