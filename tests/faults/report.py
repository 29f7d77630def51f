"""The crash tests' results as table and JSON, and excerpts of histories that prove a violation. Pure."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from tests.faults.checker import INVARIANTS, REPORTED_BY_DRIVERS, Violation, count_by_invariant
from tests.faults.history import HistoryCall
from tests.faults.outcome import FaultTally

SHOWN_VIOLATIONS = 20
COLUMNS = ("operations", "unknown", "kills", "engine_kills", "cuts", "disk_errors", "reopenings")


def as_table(tallies: Sequence[FaultTally], seed: int) -> str:
    """Return counts by scenario, violations by invariant and scenario, and the first violations in words."""
    names = [tally.scenario for tally in tallies]
    lines = [_row("", [column.replace("_", " ") for column in COLUMNS])]
    lines += [_row(tally.scenario, [str(count) for count in _counts(tally)]) for tally in tallies]
    lines.append(_row("total", [str(sum(counts)) for counts in zip(*map(_counts, tallies), strict=True)]))
    lines += ["", _row("violations", [*names, "total"])]
    by_scenario = [count_by_invariant(tally.violations) for tally in tallies]
    for invariant in (*INVARIANTS, *REPORTED_BY_DRIVERS):
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
    lines += [
        f"{tally.scenario}: checked {', '.join(f'{number} {name}' for name, number in tally.checked.items())}"
        for tally in tallies
        if tally.checked
    ]
    lines += [f"{tally.scenario}: {tally.summary}" for tally in tallies if tally.summary]
    lines += [f"{tally.scenario}: not run: {tally.skipped}" for tally in tallies if tally.skipped]
    lines.append(f"seed {seed}: {len(violations)} violations")
    return "\n".join(lines)


def as_json(tallies: Sequence[FaultTally], seed: int) -> str:
    """Return the same as one line of JSON."""
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
                    "checked": dict(tally.checked),
                    "skipped": tally.skipped or None,
                }
                for tally in tallies
            },
            "what": [f"{violation.invariant} {violation.what}" for violation in violations[:SHOWN_VIOLATIONS]],
        }
    )


def _counts(tally: FaultTally) -> tuple[int, ...]:
    return tuple(getattr(tally, column) for column in COLUMNS)


def _row(title: str, cells: Sequence[str]) -> str:
    return f"{title:<12}" + "".join(f"{cell:>13}" for cell in cells)


SHOWN_TASKS = 20
NOT_ANSWERED = "no answer"


def excerpts(calls: Sequence[HistoryCall], violations: Sequence[Violation]) -> Iterator[str]:
    """Return, for each violation that names a task, the violation and that task's calls, in order of invocation."""
    uids = {adding.uid for call in calls for adding in call.request.adds}
    uids |= {adding.uid for call in calls for end in call.request.ends for adding in end.then}
    named = [(violation, word.rstrip(":")) for violation in violations for word in violation.what.split()[:4]]
    shown: set[str] = set()
    for violation, uid in named:
        if uid in uids and uid not in shown and len(shown) < SHOWN_TASKS:
            shown.add(uid)
            yield f"{violation.invariant} {violation.what}"
            yield from (f"  {line}" for line in story_of(calls, uid))


def story_of(calls: Sequence[HistoryCall], uid: str) -> Iterator[str]:
    """Return every call that added, leased or ended the task; times in seconds since the first call."""
    began = min((call.invoked.at for call in calls), default=0)
    tokens = {lease.token for call in calls for lease in call.answer.leases if lease.uid == uid}
    for call in sorted(calls, key=lambda one: one.invoked.ns):
        request = [f"adds {adding.uid}" for adding in call.request.adds if adding.uid == uid]
        for end in call.request.ends:
            request += [f"{call.request.verb} of {end.token}"] if end.token in tokens else []
            request += [f"then adds {uid} with {end.token}" for adding in end.then if adding.uid == uid]
        request += ["by name"] if uid in call.request.names else []
        told = [
            f"leased as {lease.token}, number {lease.number}, {(lease.leased_at - began) / 1e6:.4f} to "
            f"{(lease.expires_at - began) / 1e6:.4f}"
            for lease in call.answer.leases
            if lease.uid == uid
        ]
        told += [f"lost {token}" for token in call.answer.lost if token in tokens]
        told += [
            f"ends at {(end - began) / 1e6:.4f}" for token, end in sorted(call.answer.ends.items()) if token in tokens
        ]
        if request or told:
            answered = NOT_ANSWERED if call.answered is None else f"{(call.answered.at - began) / 1e6:.4f}"
            yield (
                f"{(call.invoked.at - began) / 1e6:.4f} to {answered} {call.request.worker or call.process} "
                f"{call.request.verb} {'; '.join(request)} -> {call.outcome} {call.error} {'; '.join(told)}".rstrip()
            )
