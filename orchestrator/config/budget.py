"""The budget of a pool in worker-hours a day: a bucket that fills steadily and that every worker drains. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DAY_SECONDS: Final = 86_400.0
_HOUR_SECONDS: Final = 3_600.0
_FORM: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)h/day")
_MOST_HOURS: Final = 240_000
"""Of 10,000 workers that run all day."""
_WRITE: Final = "write worker-hours a day, such as 200h/day"
_ENOUGH_AGAIN_SECONDS: Final = 900.0  # seconds' worth to be available before a spent budget counts as left
_OVERDRAWN_SECONDS: Final = 3_600.0  # seconds' worth of debt at most

Left = Literal["left", "spent", "overdrawn"]


def parse_worker_hours(value: object) -> float:
    """Return worker-hours a day from "200h/day" or a number. Raises `ValueError` for anything else."""
    match = _FORM.fullmatch(value) if isinstance(value, str) else None
    hours = float(match[1]) if match is not None else value
    if isinstance(hours, bool) or not isinstance(hours, int | float):
        raise ValueError(f"{str(value)[:40]}: {_WRITE}")  # noqa: TRY004  pydantic reports a ValueError, not a TypeError
    if not hours <= _MOST_HOURS:
        raise ValueError(f"must be at most {_MOST_HOURS:,}h/day: {str(value)[:40]}")
    return float(hours)


def format_worker_hours(hours: float) -> str:
    """Return it as a file writes it: 200.0 is "200h/day"."""
    return f"{hours:g}h/day"


WorkerHours = Annotated[
    float,
    BeforeValidator(parse_worker_hours),
    PlainSerializer(format_worker_hours, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": f"^{_FORM.pattern}$"}, {"type": "number", "exclusiveMinimum": 0}],
            "examples": ["200h/day"],
        }
    ),
]
"""Worker-hours a day; a file may write "200h/day"."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The worker-seconds that are left: at most a day's worth, and no less than an hour's worth of debt.

    It is `spent` from when nothing is left until 15 minutes' worth is available again, and `overdrawn` from when the
    debt reaches its bound until it is paid.
    """

    worker_seconds: float
    state: Left = "left"

    def after(self, workers: int, *, elapsed_seconds: float, hours_per_day: float) -> "Budget":
        """Return the budget after `workers` were there for `elapsed_seconds`."""
        rate = hours_per_day * _HOUR_SECONDS / _DAY_SECONDS
        low, high = -rate * _OVERDRAWN_SECONDS, rate * _DAY_SECONDS
        left = min(high, max(low, self.worker_seconds + (rate - workers) * max(0.0, elapsed_seconds)))
        if left <= low:
            return Budget(left, "overdrawn")
        if left <= 0:
            return Budget(left, "overdrawn" if self.state == "overdrawn" else "spent")
        if left < rate * _ENOUGH_AGAIN_SECONDS and self.state != "left":
            return Budget(left, "spent")
        return Budget(left, "left")

    def to_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {"worker_seconds": round(self.worker_seconds, 3), "state": self.state}

    @staticmethod
    def from_json(data: object) -> "Budget":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        match data:
            case {"worker_seconds": int() | float() as seconds, "state": "left" | "spent" | "overdrawn" as state}:
                return Budget(float(seconds), state)
        raise ValueError(f"not a budget: {data!r}")


def full_budget(hours_per_day: float) -> Budget:
    """Return the budget that a pool begins with: a day's worth."""
    return Budget(hours_per_day * _HOUR_SECONDS)


def budgets_to_json(budgets: Mapping[str, Budget], *, wall_seconds: float) -> dict[str, object]:
    """Return the budgets as plain values, with the instant to which they apply, in seconds since the epoch."""
    return {"at": wall_seconds, "pools": {name: budget.to_json() for name, budget in budgets.items()}}


def budgets_from_json(data: object) -> tuple[float, dict[str, Budget]]:
    """Read what `budgets_to_json` returned: the instant and the budgets by pool. Raises `ValueError` otherwise."""
    match data:
        case {"at": int() | float() as at, "pools": dict() as pools}:
            return float(at), {str(name): Budget.from_json(one) for name, one in pools.items()}
    raise ValueError(f"not budgets: {data!r}")
