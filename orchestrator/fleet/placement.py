"""The place of a worker in its cluster, what it waits for there, and whether it is being taken away. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from orchestrator.base.values import value
from queue_core.process.wording import counted, shown_seconds, shown_setting

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


def describe_waits(
    places: Iterable[Placement], *, wanted: int, usual_seconds: float, long_seconds: float, slo_seconds: float
) -> Iterator[str]:
    """Yield a sentence for each thing that workers of a pool wait for in their cluster.

    `wanted`: how many more are decided on. `usual_seconds` is the median wait for a node, `long_seconds` what nine
    tenths do not exceed; 0 where none is known.
    """
    waiting: dict[WaitsFor, list[Placement]] = {}
    silent = leaving = 0
    for place in places:
        waiting.setdefault(place.waits_for, []).append(place)
        silent += place.is_silent
        leaving += place.is_leaving and not place.is_silent
    for kind, what in _WAITS.items():
        found = waiting.get(kind, [])
        if not found:
            continue
        words = next((place.words for place in found if place.words), "")
        usual = f" (usually {shown_seconds(usual_seconds)}, most within {shown_seconds(long_seconds)})"
        more = f"{counted(wanted, 'more worker')} {'is' if wanted == 1 else 'are'} wanted, " if wanted > 0 else ""
        if kind != "node":
            usual = more = ""
        waits = f"{counted(len(found), 'worker')} {'waits' if len(found) == 1 else 'wait'} for {what}"
        yield f"{more}{waits}{usual if usual_seconds else ''}{': ' + words if words else ''}"
    if usual_seconds > slo_seconds and waiting.get("node"):
        yield (
            f"a new node usually takes {shown_seconds(usual_seconds)}, longer than its slo of"
            f" {shown_setting(slo_seconds)}: workers.min keeps workers ready, and a Pod of a low PriorityClass with the"
            " same requests keeps a node"
        )
    if silent:
        yield f"the node of {counted(silent, 'worker')} does not answer: no new work counts on them, and none is ended"
    if leaving:
        yield f"{counted(leaving, 'worker')} {'is' if leaving == 1 else 'are'} ended by the cluster, and replaced"


_WAITS: Final[Mapping[WaitsFor, str]] = {
    "admission": "admission (Kueue, or another that gates Pods)",
    "node": "a node",
    "image": "an image that can't be used",
}
ANYWHERE: Final = Placement()
"""The place of a worker of which its runtime says nothing."""
