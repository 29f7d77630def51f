"""Dead tasks grouped by what their reasons have in common: the class of the error. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.verbs.wire import Json

MAX_EXAMPLES: Final = 20
_CLASS: Final = re.compile(r"([A-Za-z_][\w.]{0,99})(?::|$| \()")


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """The dead tasks of one class of errors: their names, the commonest reason, and the newest of them as examples.

    `is_matched`: whether the API finds exactly them by the error of their last attempt.
    """

    error: str
    names: tuple[str, ...]
    reason: str
    tags: tuple[str, ...]
    newest_at: int
    examples: tuple[Json, ...]
    is_matched: bool


def error_class(reason: str) -> str:
    """Return the class of the error that a reason begins with; else its first words."""
    found = _CLASS.match(reason)
    if found is not None:
        return found[1]
    return " ".join(reason.split()[:6]) or "no reason given"


def error_groups(tasks: Sequence[Json]) -> list[ErrorGroup]:
    """Group dead tasks, the largest group first."""
    by_class: dict[str, list[Json]] = {}
    for task in tasks:
        by_class.setdefault(_class_of(task), []).append(task)
    groups = [_group(error, found) for error, found in by_class.items()]
    return sorted(groups, key=lambda group: (-len(group.names), group.error))


def _group(error: str, tasks: Sequence[Json]) -> ErrorGroup:
    newest = sorted(tasks, key=lambda task: -int(str(task["eta"])))
    reasons = Counter(str(task["reason"]) for task in tasks)
    tags = Counter(str(task["tag"]) for task in tasks if task["tag"] is not None)
    return ErrorGroup(
        error,
        tuple(str(task["name"]) for task in tasks),
        reasons.most_common(1)[0][0],
        tuple(tag for tag, _ in tags.most_common(5)),
        int(str(newest[0]["eta"])),
        tuple(newest[:MAX_EXAMPLES]),
        all(_last_error(task) == error for task in tasks),
    )


def _class_of(task: Json) -> str:
    """Return the class of a dead task's error: as its reason begins, else as its last attempt has it."""
    reason = str(task["reason"])
    return error_class(reason) if _CLASS.match(reason) else _last_error(task) or error_class(reason)


def _last_error(task: Json) -> str:
    """Return the class of the error of a task's last attempt; "" where it is not known."""
    attempts = task.get("attempts")
    return str(attempts[-1].get("error", "")) if isinstance(attempts, list) and attempts else ""
