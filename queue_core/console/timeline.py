"""The story of a task as steps in time: added, leased, given back, dead. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from queue_core.verbs.wire import Json

_WORDS: Final[Mapping[str, str]] = {
    "raised": "failed",
    "timed_out": "timed out",
    "expired": "lease expired",
    "worker_died": "worker died",
    "given_back": "given back",
    "released": "given back",
    "deleted": "completed",
    "removed": "deleted while it was running",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step: when (microseconds since the epoch), what, by which worker, and what was said."""

    at: int
    what: str
    worker: str = ""
    said: str = ""
    place: str = ""
    lease_number: int = 0
    seconds: float | None = None
    is_failure: bool = False


def timeline(task: Json | None, ended: Sequence[Json]) -> list[Step]:
    """Return the steps of a task, oldest first: of its attempts, its queue's history, and its present state."""
    steps: list[Step] = []
    added_at = (
        _number(task["added_at"]) if task is not None else min((_number(one["added_at"]) for one in ended), default=0)
    )
    if added_at:
        steps.append(Step(added_at, "added"))
    attempts = [dict(one) for one in _list(task.get("attempts") if task is not None else None)]
    told = {(str(one["worker"]), _number(one["ended_at"])) for one in attempts}
    for one in attempts:
        outcome = str(one["outcome"])
        said = f"{one.get('error', '')}: {one.get('message', '')}".strip(": ")
        steps += _lease(one, _number(one["began_at"]), outcome, said=said, place=str(one.get("place", "")))
    for one in ended:
        if (str(one["worker"]), _number(one["ended_at"])) in told or _number(one["ended_at"]) < added_at:
            continue
        began = _number(one["ended_at"]) - round(float(str(one["held_seconds"])) * 1e6)
        outcome = "dead" if one.get("died") else str(one["outcome"])
        steps += _lease(one, began, outcome, said=str(one.get("reason") or ""), place="")
    if task is not None:
        steps += _present(task)
    return _numbered(sorted(steps, key=lambda step: step.at))


def _numbered(steps: Sequence[Step]) -> list[Step]:
    """Number leases in the order in which they began, also after a redrive, which begins to count them anew."""
    found: list[Step] = []
    number = 0
    for step in steps:
        if step.lease_number and step.what == "leased":
            number = max(step.lease_number, number + 1)
        found.append(replace(step, lease_number=number) if step.lease_number else step)
    return found


def _lease(one: Mapping[str, object], began: int, outcome: str, *, said: str, place: str) -> list[Step]:
    number, worker, ended = _number(one["lease_number"]), str(one["worker"]), _number(one["ended_at"])
    is_failure = outcome not in ("deleted", "given_back", "released")
    return [
        Step(began, "leased", worker, lease_number=number),
        Step(
            ended,
            _WORDS.get(outcome, outcome),
            worker,
            said,
            place,
            number,
            max(0.0, (ended - began) / 1e6),
            is_failure=is_failure,
        ),
    ]


def _present(task: Json) -> list[Step]:
    if task["state"] == "in_flight":
        return [Step(_number(task["leased_at"]), "leased", str(task["worker"]), lease_number=_number(task["leases"]))]
    if task["state"] == "dead":
        return [Step(_number(task["eta"]), "dead", said=str(task["reason"]), is_failure=True)]
    return []


def _number(found: object) -> int:
    return found if isinstance(found, int) else 0


def _list(found: object) -> Sequence[Mapping[str, object]]:
    return found if isinstance(found, list) else []
