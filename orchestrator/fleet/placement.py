"""Where a worker's cluster has placed it, what it waits for there, and whether it is being taken away. Pure."""

from typing import Final, Literal

from orchestrator.base.values import value

WaitsFor = Literal["", "admission", "node", "image", "start"]
"""`admission`: a queue of jobs has not admitted it; `node`: no node has room for it; `image`: its image can't be
pulled; `start`: its containers are being made."""
UNPLACED: Final = frozenset({"admission", "node"})
"""The waits of a worker that has no node yet."""
COLD_SECONDS: Final = 5.0
"""A start that waited longer than this for its node did not find one that was there."""


@value
class Placement:
    """A worker's place, as its cluster says it; `words` are the cluster's own.

    `node_wait_seconds`: how long it waited for its node, once it has one; `was_gated`: for its admission, too.
    `neighbours` counts the fleet's workers on its node, with it. `is_leaving`: something other than its
    supervisor ends it. `is_silent`: its node does not answer.
    """

    node: str = ""
    waits_for: WaitsFor = ""
    words: str = ""
    node_wait_seconds: float | None = None
    was_gated: bool = False
    neighbours: int = 0
    is_leaving: bool = False
    is_silent: bool = False

    @property
    def is_unplaced(self) -> bool:
        """True for a worker that no node has yet."""
        return self.waits_for in UNPLACED

    def describe(self) -> str:
        """Return what it waits for, or what happens to it, in words; "" when there is nothing to say."""
        said = f": {self.words}" if self.words else ""
        match self.waits_for:
            case "admission":
                return f"waits for admission{said}"
            case "node":
                return f"waits for a node{said}"
            case "image":
                return f"its image can't be used{said}"
            case "start":
                return f"its containers are made{said}"
        return self.words


ANYWHERE: Final = Placement()
"""The place of a worker of which its runtime says nothing."""
