"""How long new workers wait for a node, learned apart from their start-up: a cluster adds nodes when it has none. Pure.

A start that finds a node at once says nothing about nodes, and one that waits for a node says nothing about starts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.base.values import value
from orchestrator.fleet.workers import Started

KEPT: Final = 30
"""Waits that are remembered: nodes of other kinds come and go."""
LAST_STARTS: Final = 3
"""Starts in a row that had to wait for a node, from which the next is expected to."""
_NINE_TENTHS: Final = 0.9


@value
class NodeWaits:
    """The last waits for a node, the newest last; and the pool's size at the last starts in a row that had one."""

    seconds: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()

    def after(self, started: Sequence[Started], *, size: int) -> "NodeWaits":
        """Learn from workers that have started, in a pool that has this size now."""
        seconds, sizes = self.seconds, self.sizes
        for one in started:
            if one.node_wait_seconds is None:
                continue
            if one.is_cold:
                seconds = (*seconds, one.node_wait_seconds)[-KEPT:]
                sizes = (*sizes, size)[-LAST_STARTS:]
            elif size >= min(sizes, default=0):
                sizes = ()  # at this size there was a node
        return NodeWaits(seconds, sizes)

    @property
    def usual_seconds(self) -> float:
        """The median; 0 where no start has waited yet."""
        return _at(self.seconds, 0.5)

    @property
    def long_seconds(self) -> float:
        """The time that nine tenths of them do not exceed; 0 where no start has waited yet."""
        return _at(self.seconds, _NINE_TENTHS)

    def is_expected(self, *, size: int) -> bool:
        """Return whether the next start in a pool of this size will have to wait for a node."""
        return len(self.sizes) == LAST_STARTS and size >= min(self.sizes)

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {"seconds": list(self.seconds), "sizes": list(self.sizes)}

    @staticmethod
    def from_json(data: object) -> "NodeWaits":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"not waits for nodes: {data!r}")  # noqa: TRY004  callers handle one class of error
        numbers = [*data.get("seconds", ()), *data.get("sizes", ())]
        if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < 1e9 for one in numbers):
            raise ValueError(f"not waits for nodes: {data!r}")
        seconds = tuple(float(one) for one in data.get("seconds", ()))
        return NodeWaits(seconds[-KEPT:], tuple(int(one) for one in data.get("sizes", ()))[-LAST_STARTS:])


def _at(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0
