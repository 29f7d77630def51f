"""The changes of all tasks that match a search, as every door offers them.

A new one is an entry here, and its effect in `unit.searches`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from queue_core.task import ALL_STATES, TaskState
from queue_core.verbs.roles import ADMINISTER, OPERATE, Access, Role

Action: TypeAlias = Literal["redrive", "release", "postpone", "retag", "delete"]
"""A change of all tasks that match."""
Given: TypeAlias = Literal["", "eta", "tag"]
"""What a change gives to tasks: nothing, a time, or a tag or none."""


@dataclass(frozen=True, slots=True)
class MatchingAction:
    """One of the changes.

    Args:
        summary: the sentence of the HTTP reference.
        help: that of the command's option.
        done: what its tasks are afterwards.
        states: those of the tasks that it is possible for.
        left: why tasks that matched were not changed.
    """

    summary: str
    help: str
    done: str
    states: frozenset[TaskState] = ALL_STATES
    gives: Given = ""
    left: str = "had moved on"
    role: Role = OPERATE
    access: Access = "update"

    @property
    def state(self) -> TaskState | None:
        """The state that its tasks have; None: any."""
        (only,) = self.states if len(self.states) == 1 else (None,)
        return only


CHANGES: Final[Mapping[Action, MatchingAction]] = {
    "redrive": MatchingAction(
        "Redrive all that match.",
        "Make all dead tasks that match ready again.",
        "ready again",
        frozenset({TaskState.DEAD}),
    ),
    "release": MatchingAction(
        "Give back leases of all that match.",
        "Give back the leases of all that match, uncounted.",
        "given back",
        frozenset({TaskState.LEASED}),
    ),
    "postpone": MatchingAction(
        "Postpone all that match.",
        "Move the eta of all delayed tasks that match to then.",
        "postponed",
        frozenset({TaskState.DELAYED}),
        gives="eta",
    ),
    "retag": MatchingAction(  # leased tasks match too, and are left as they are
        "Give all that match and are not leased another tag.",
        "Give all that match and are not leased this tag; '' takes it away.",
        "given another tag",
        gives="tag",
        left="are leased, or had that tag",
    ),
    "delete": MatchingAction(
        "Delete all that match.", "Delete all that match.", "deleted", role=ADMINISTER, access="delete"
    ),
}
BY_GIVEN: Final[Mapping[Given, Action]] = {one.gives: name for name, one in CHANGES.items() if one.gives}


def permission_of(action: Action) -> str:
    """Return the verb of `server.callers.auth.REQUIRED_ROLES`, which is the last part of its path too."""
    return f"{action}-matching"
