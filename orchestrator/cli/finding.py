"""A finding of `towline doctor`, as a value."""

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "warn", "bad"]

RUNBOOK: Final = "/docs/how-to/runbook"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and how to fix it."""

    check: str
    level: Level
    found: str
    fix: str = ""

    @property
    def see(self) -> str:
        """The runbook section with cause, check and cure; "" when nothing is wrong."""
        return "" if self.level == "ok" else f"{RUNBOOK}#doctor-{self.check.replace(' ', '-')}"
