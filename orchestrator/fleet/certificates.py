"""Choose certificates of workers' ends: by a name, or by the beginning of it, and those that are failures. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.base.json_fields import mappings_of
from orchestrator.fleet.exits import ENDS_WELL

MAX_SHOWN: Final = 20
"""Names that an error lists."""

Certificate = Mapping[str, object]


class UnknownDeathError(ValueError):
    """No death of such a worker is on record."""


class AmbiguousWorkerError(ValueError):
    """Several dead workers' names begin so."""


def chosen_death(worker: str, deaths: Sequence[Certificate]) -> Certificate:
    """Return the certificate of this worker, or of the only one whose name begins so.

    Raises `UnknownDeathError`, `AmbiguousWorkerError`.
    """
    known: dict[str, Certificate] = {}
    for death in deaths:
        known.setdefault(str(death.get("worker")), death)
    if worker in known:
        return known[worker]
    alike = [name for name in known if name.startswith(worker)]
    if len(alike) == 1:
        return known[alike[0]]
    if alike:
        shown = ", ".join(alike[:MAX_SHOWN]) + (", ..." if len(alike) > MAX_SHOWN else "")
        raise AmbiguousWorkerError(f"{len(alike)} dead workers' names begin with '{worker}': {shown}")
    raise UnknownDeathError(f"no death of a worker '{worker}' is on record")


def is_failure(death: Certificate) -> bool:
    """Return whether an end needs a look: not one of a worker that finished when asked, or recycled itself."""
    held = death.get("held_total") or mappings_of(death.get("held"))
    return death.get("cause") not in ENDS_WELL or bool(death.get("failed_start") or held)


def worker_names(snapshot: Mapping[str, object]) -> set[str]:
    """Return the workers that a snapshot has."""
    return {str(one.get("worker")) for one in mappings_of(snapshot.get("workers"))}
