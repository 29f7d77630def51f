"""Containers of other supervisors of this host that are gone for good: found on the engine, judged, ended.

Whether a supervisor lives is told by the lock in its folder. Only what has been without one for as long as its own
label says is ended; of a folder that cannot be looked into nothing is known, and nothing done.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal

from orchestrator.clock import Monotonic
from orchestrator.runtimes.docker.place import identity_in
from orchestrator.runtimes.docker.state import Known
from orchestrator.runtimes.warden import is_held
from orchestrator.value import value

LOOK_SECONDS: Final = 60.0
MARGIN_SECONDS: Final = 10.0
"""A container's own warden, and the worker itself, come first."""

Verdict = Literal["kill", "remove"]
Supervision = Literal["alive", "away", "gone", "unknown"]


@value
class Sentence:
    """What is done to one container, and why."""

    container: Known
    verdict: Verdict
    why: str


class Judge:
    """Remembers since when each supervisor has been away, as far as looks of its own have seen."""

    def __init__(self, look: Callable[[str], Supervision] | None = None) -> None:
        self._look = look or supervision_of
        self._away_since: dict[str, Monotonic] = {}

    def judged(self, containers: Iterable[Known], *, own_state: str, host: str, now: Monotonic) -> list[Sentence]:
        """Those to be ended or removed now. A container of this state, or of another host, is none of our business."""
        others = [one for one in containers if one.state != own_state and one.host == host]
        found = {state: self._look(state) for state in {one.state for one in others}}
        self._away_since = {
            state: self._away_since.get(state, now) for state, how in found.items() if how in {"away", "gone"}
        }
        sentences = []
        for one in others:
            since = self._away_since.get(one.state)
            if since is None or now - since < one.orphan_seconds + MARGIN_SECONDS:
                continue
            folder = one.state.partition(":")[2]
            if found[one.state] == "gone":
                sentences.append(Sentence(one, "remove", f"its supervisor's folder {folder} is gone"))
            elif one.phase in {"running", "paused"}:
                sentences.append(Sentence(one, "kill", f"its supervisor in {folder} has been gone for too long"))
        return sentences


def supervision_of(state: str) -> Supervision:
    """How the supervisor of a state directory is: `gone` when its folder is no more, or is another one's by now."""
    identity, _, path = state.partition(":")
    folder = Path(path)
    try:
        known = identity_in(folder)
    except PermissionError:
        return "unknown"
    except OSError:
        return "gone"
    if known != identity:
        return "gone"
    try:
        lock = os.open(folder / "supervisor.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return "away"
    except OSError:
        return "unknown"
    try:
        return "alive" if is_held(lock) else "away"
    finally:
        os.close(lock)
