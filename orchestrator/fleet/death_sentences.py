"""The sentence in which a worker's end is told where people look, with what became of its tasks. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.fleet.exits import Cause

_FATES: Final[Mapping[str, tuple[str, str]]] = {
    "given back": ("was given back", "were given back"),
    "lease ended": ("was ready again when its lease ended", "were ready again when their leases ended"),
    "held back": ("will run alone", "will run alone"),
    "dead": ("is dead", "are dead"),
    "deleted": ("was deleted while it was running", "were deleted while they were running"),
}
"""Each fate of a task, of one and of several."""


def death_sentence(cause: Cause, detail: str, held: Sequence[Mapping[str, object]]) -> str:
    """Return why a worker ended, in words, and what became of its tasks; `held` as the certificate has them."""
    why = detail if cause is not Cause.UNKNOWN else f"it is gone: {detail}"
    if not held:
        return why
    if len(held) == 1:
        (one,) = held
        number = f", lease {one['lease_number']}," if one.get("lease_number") else ""
        return f"{why}; its task {one.get('queue')}/{one.get('task')}{number} {_fate(str(one.get('fate')), 1)}"
    counts: dict[str, int] = {}
    for one in held:
        fate = str(one.get("fate"))
        counts[fate] = counts.get(fate, 0) + 1
    told = ", ".join(f"{count:,} {_fate(fate, count)}" for fate, count in counts.items())
    return f"{why}; of its {len(held):,} tasks {told}"


def _fate(fate: str, count: int) -> str:
    one, several = _FATES.get(fate, (fate, fate))
    return one if count == 1 else several
