"""Fold a pool's decisions that repeat within a moment into one, with a count, where people read them. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

MOMENT_SECONDS: Final = 3.0
"""Time between two decisions within which the later one repeats the earlier one."""
_NUMBER: Final = re.compile(r"\d[\d,.]*")

Json = Mapping[str, object]


def folded(decisions: Sequence[Json]) -> list[dict[str, object]]:
    """Return decisions of one or several pools, newest first, each followed by none that it repeats.

    A folded one has the newest one's fields, `current` of the oldest, and how many `times` it was made.
    """
    shown: list[dict[str, object]] = []
    last: dict[object, tuple[dict[str, object], Json]] = {}
    for one in decisions:
        known = last.get(one.get("pool"))
        if known is not None and repeats(known[1], one):
            line = known[0]
            line |= {"current": one.get("current"), "times": int(str(line["times"])) + 1}
        else:
            line = {**one, "times": 1}
            shown.append(line)
        last[one.get("pool")] = (line, one)
    return shown


def repeats(later: Json, earlier: Json) -> bool:
    """Return whether a decision of the same pool is the earlier one again: the same size for the same reason."""
    return 0 <= _seconds(later) - _seconds(earlier) <= MOMENT_SECONDS and _said(later) == _said(earlier)


def times_in_words(decision: Json) -> str:
    """Return how often a folded decision was made, as text to append; "" for once."""
    times = decision.get("times", 1)
    return "" if times == 1 else f" (x{times})"


def _said(decision: Json) -> tuple[object, ...]:
    why = _NUMBER.sub("#", str(decision.get("why")))
    is_change = decision.get("current") != decision.get("target")
    return decision.get("target"), decision.get("rule"), decision.get("limited_by"), why, is_change


def _seconds(decision: Json) -> float:
    at = decision.get("at")
    return float(at) if isinstance(at, int | float) else 0.0
