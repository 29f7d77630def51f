"""Solo workers: a worker started for one quarantined task, encoded in the worker's name. Pure.

A task is quarantined by releasing it with a delay. The name holds its id and its eta to the microsecond, so a worker
that passes the name it was started with can lease that task, and only that one, before its eta.
"""

import re
from dataclasses import dataclass
from typing import Final

from queue_core.clock import Instant

MARK: Final = ".alone."
_NAME: Final = re.compile(r".+\.alone\.([0-9]{1,18})\.([0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class QuarantinedTask:
    """The task that a solo worker was started for; `held_until` is its eta."""

    task_id: int
    held_until: Instant


def quarantined_task_of(worker: str) -> QuarantinedTask | None:
    """Return the task of a solo worker; None for any other worker."""
    if MARK not in worker:
        return None
    match = _NAME.fullmatch(worker)
    return None if match is None else QuarantinedTask(int(match[1]), Instant(int(match[2])))
