"""The chart of a pool as rows on one time axis: size, target, busy, failures, deaths, and what waited. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from queue_core.verbs.wire import Json

MINUTE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ChartRow:
    """The pool from an instant on, until the next row; `failed` and `deaths` are what happened then.

    None: not known.
    """

    at: float
    workers: int | None = None
    target: int | None = None
    busy: int | None = None
    failed: int | None = None
    deaths: int | None = None
    ready: int | None = None


def chart_rows(
    decisions: Iterable[Json], decision: Json | None, trend: Json | None, deaths: Iterable[Json], *, now: float
) -> list[ChartRow]:
    """Return the rows of a chart, oldest first.

    Args:
        decisions: those on record, in any order.
        decision: the one in force now, if any.
        trend: the pool's last hour, a value a minute; None where it has none.
        deaths: workers of the pool that failed.
        now: seconds of the wall clock.
    """
    found = [_of_decision(one, float(str(one["at"]))) for one in decisions]
    found += _of_trend(trend, now=now) if trend else []
    begins = min((row.at for row in found), default=now)
    found += [ChartRow(at, deaths=1) for one in deaths if begins <= (at := float(str(one["at"]))) <= now]
    if decision is not None and found:
        found.append(_of_decision(decision, now))
    found.sort(key=lambda row: row.at)
    return _carried(found)


def _of_decision(one: Json, at: float) -> ChartRow:
    ready = cast("int | None", one.get("ready"))
    return ChartRow(at, workers=cast("int", one["current"]), target=cast("int", one["target"]), ready=ready)


def _of_trend(trend: Json, *, now: float) -> list[ChartRow]:
    names = ("workers", "busy", "failed", "ready")
    lines = [cast("list[int | None]", trend[name]) for name in names if name in trend]
    if len(lines) < len(names):
        return []  # a supervisor of before these lines
    rows = list(zip(*lines, strict=True))
    return [
        ChartRow(now - (len(rows) - 1 - place) * MINUTE_SECONDS, workers, busy=busy, failed=failed or None, ready=ready)
        for place, (workers, busy, failed, ready) in enumerate(rows)
        if workers is not None
    ]


def _carried(rows: Sequence[ChartRow]) -> list[ChartRow]:
    """Return rows in which what does not change is as in the row before, and rows of one instant are one."""
    carried: list[ChartRow] = []
    last = ChartRow(0.0)
    for row in rows:
        last = replace(
            row,
            workers=_or(row.workers, last.workers),
            target=_or(row.target, last.target),
            busy=_or(row.busy, last.busy),
            ready=_or(row.ready, last.ready),
        )
        if carried and carried[-1].at == row.at:
            both = carried.pop()
            last = replace(last, failed=_or(row.failed, both.failed), deaths=_sum(row.deaths, both.deaths))
        carried.append(last)
    return carried


def _or(new: int | None, old: int | None) -> int | None:
    return old if new is None else new


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
