"""A worker that is there for one task: its name says for which, and until when that is held back for it. Pure.

Whoever holds a task back, by releasing it with a delay, knows its eta to the microsecond; nobody else is named so. Any
program that gives the name it was started with can do such an errand.
"""

import re
from dataclasses import dataclass
from typing import Final

from queue_core.clock import Instant

MARK: Final = ".alone."
_NAME: Final = re.compile(r".+\.alone\.([0-9]{1,18})\.([0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class QuarantinedTask:
    """The task that a worker is there for; `held_until` is its eta, which it has because it is held back."""

    task_id: int
    held_until: Instant


def quarantined_task_of(worker: str) -> QuarantinedTask | None:
    """What a worker is there for; None for one that takes whatever there is."""
    if MARK not in worker:
        return None
    match = _NAME.fullmatch(worker)
    return None if match is None else QuarantinedTask(int(match[1]), Instant(int(match[2])))


def solo_worker_name(errand: QuarantinedTask, *, base: str) -> str:
    """What a worker on this errand is called; `base` is a name that no other worker has."""
    return f"{base}{MARK}{errand.task_id}.{errand.held_until}"
