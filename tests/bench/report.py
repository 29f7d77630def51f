"""A run's figures as tables and as JSON. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median

from tests.bench.catalog import ALONE
from tests.bench.measure import KINDS
from tests.bench.places import ENGINES
from tests.bench.requirements import SCALE, Verdict

HEADINGS = {
    "add": "add 1 by 1",
    "add_batch": "add x100",
    "drain": "drain 1 by 1",
    "drain_batch": "drain x100",
    "latency": "latency p50",
}


def systems_table(rows: Sequence[tuple[str, str, str]], figures: Mapping[str, float]) -> str:
    """Return rates in tasks a second and latency of each system; `rows` are (key, name, durable)."""
    lines = [["system", *(HEADINGS[kind] for kind in KINDS), "durable when acknowledged"]]
    for key, name, durable in rows:
        if not any(f"{key}.{kind}" in figures for kind in KINDS):
            continue
        cells = [_cell(kind, figures.get(f"{key}.{kind}")) for kind in KINDS]
        lines.append([name, *cells, durable])
    return text_table(lines)


def alone_table(figures: Mapping[str, float]) -> str:
    """Return Towline's figures without peers, in readable units."""
    sections = tuple(part.owner(engine) + "." for part in ALONE for engine in ENGINES)
    named = [(name, value) for name, value in figures.items() if name.startswith(sections) and ".minute_" not in name]
    return text_table([["figure", "value"], *([name, _plain(name, value)] for name, value in named)])


STARTS = {
    "one": "1 worker: decision to its task begun",
    "way": "1 worker: add to a pool at zero, through `up`, to begun",
    "again": "1 worker: kill -9, through `up`, to its task restarted",
    "first": "40 workers: first task begun",
    "median": "40 workers: median task begun",
    "last": "40 workers: last task begun",
    "cpu": "CPU time of the 40 starts",
    "pss": "memory of the 40 (PSS)",
    "pss_after": "memory after 1,000 tasks each and a collection",
}


def starts_table(rounds: Mapping[str, Sequence[float]]) -> str:
    """Return the starts' medians by exec and by fork with their ratio, and the range of several rounds; "" if none."""
    lines = [["start of workers, application that imports", "exec", "fork", "exec/fork", "ranges"]]
    applications = dict.fromkeys(name.split(".")[1].split("_")[0] for name in rounds if name.startswith("starts."))
    for application in applications:
        for what, text in STARTS.items():
            pair = [rounds.get(f"starts.{application}_{kind}_{what}", ()) for kind in ("exec", "fork")]
            if not all(pair):
                continue
            by_exec, by_fork = median(pair[0]), median(pair[1])
            ranges = [f"{_plain(what, min(values))} - {_plain(what, max(values))}" for values in pair]
            cells = [_plain(what, by_exec), _plain(what, by_fork), f"{by_exec / by_fork:.1f}"]
            lines.append([f"{application}: {text}", *cells, ", ".join(ranges) if len(pair[0]) > 1 else ""])
    return text_table(lines) if len(lines) > 1 else ""


def verdicts_table(verdicts: Sequence[Verdict]) -> str:
    """Return each requirement with its figure, its bound, its value and the verdict."""
    lines = [["requirement", "must be", "measured", ""]]
    for verdict in verdicts:
        wanted = verdict.requirement
        measured = "-" if verdict.measured is None else f"{verdict.measured:.2f} {wanted.unit}"
        word = f"{verdict.word} ({verdict.reason})" if verdict.reason else verdict.word
        lines.append([wanted.what, f"{wanted.side} {wanted.bound:g} {wanted.unit}", measured, word])
    return text_table(lines)


def as_json(
    machine: Mapping[str, object],
    rounds: Mapping[str, Sequence[float]],
    figures: Mapping[str, float],
    verdicts: Sequence[Verdict],
    missing: Mapping[str, str],
) -> dict[str, object]:
    """Return all tables and rounds; rates in tasks a second, times in seconds, bytes."""
    return {
        "machine": dict(machine),
        "figures": {name: {"median": figures[name], "rounds": list(values)} for name, values in rounds.items()},
        "requirements": [
            {
                "what": verdict.requirement.what,
                "must_be": f"{verdict.requirement.side} {verdict.requirement.bound:g} {verdict.requirement.unit}",
                "measured": verdict.measured,
                "verdict": verdict.word,
                "reason": verdict.reason,
            }
            for verdict in verdicts
        ],
        "skipped": dict(missing),
    }


def _cell(kind: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.2f} ms" if kind == "latency" else f"{value:,.0f}"


def _plain(name: str, value: float) -> str:
    """Format a figure by its name: a rate, a share of a core, bytes, a count, or else a time."""
    if "add_by" in name:
        return f"{value:,.0f} /s"
    if name.endswith("share"):
        return f"{value * SCALE['%']:.2f} %"
    if name.endswith("bytes") or "rss" in name or "pss" in name:
        return f"{value * SCALE['MiB']:.1f} MiB"
    if "round_trips" in name or name.endswith("count"):
        return f"{value:g}"
    return f"{value * SCALE['ms']:.3f} ms"


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells below each other: the first is the heading, the first and last columns are to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    first, *rest = [
        "  ".join(
            cell.ljust(width) if column == 0 or column == len(widths) - 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([first, "-" * len(first), *rest])
