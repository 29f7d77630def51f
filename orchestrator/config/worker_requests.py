"""Operators' orders about single workers, and about all workers that a pool has now. Pure (ADR 7).

They are kept as plain values in the state directory, so that a supervisor that starts later heeds them too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast, get_args

from orchestrator.config.overrides import Expiry, Moment
from queue_core.process.wording import counted

WorkerVerb = Literal["drain", "kill"]

MAX_REQUESTS: Final = 1_000
"""Orders that are kept, the newest; a worker's name never comes again, so that an old order does nothing."""
_VERSION: Final = 1
_VERBS: Final = get_args(WorkerVerb)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """An order that one worker drains, or is killed; `by` is the operator's name."""

    verb: WorkerVerb
    by: str
    at: Expiry


@dataclass(frozen=True, slots=True)
class ReplaceRequest:
    """An order that all workers of a pool that were started before `at` are replaced."""

    by: str
    at: Expiry


@dataclass(frozen=True, slots=True)
class WorkerRequests:
    """The orders, oldest first: by the worker's name, and by the pool's."""

    workers: Mapping[str, WorkerRequest] = field(default_factory=dict)
    pools: Mapping[str, ReplaceRequest] = field(default_factory=dict)

    def with_worker(self, worker: str, verb: WorkerVerb, *, by: str, now: Moment) -> "WorkerRequests":
        """Return the orders with one about a worker, in place of an earlier one; a killed worker is not drained."""
        known = self.workers.get(worker)
        if known is not None and known.verb == "kill":
            return self
        others = {name: one for name, one in self.workers.items() if name != worker}
        newest = {**others, worker: WorkerRequest(verb, by, Expiry.after(0.0, now))}
        return replace(self, workers=dict([*newest.items()][-MAX_REQUESTS:]))

    def with_replaced(self, pool: str, *, by: str, now: Moment) -> "WorkerRequests":
        """Return the orders with one to replace all workers that a pool has now."""
        others = {name: one for name, one in self.pools.items() if name != pool}
        newest = {**others, pool: ReplaceRequest(by, Expiry.after(0.0, now))}
        return replace(self, pools=dict([*newest.items()][-MAX_REQUESTS:]))

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "version": _VERSION,
            "workers": {name: {"verb": one.verb, **_order_json(one)} for name, one in self.workers.items()},
            "pools": {name: _order_json(one) for name, one in self.pools.items()},
        }

    @staticmethod
    def from_json(data: object) -> "WorkerRequests":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        match data:
            case {"version": int() as version, "workers": dict() as workers, "pools": dict() as pools} if (
                version == _VERSION
            ):
                return WorkerRequests(
                    {str(name): _worker_request(one) for name, one in workers.items()},
                    {str(name): ReplaceRequest(*_actor_and_expiry(one)) for name, one in pools.items()},
                )
        raise ValueError(f"not orders about workers of version {_VERSION}")


NO_WORKER_REQUESTS: Final = WorkerRequests()


def worker_sentence(holds: int, verb: WorkerVerb) -> str:
    """Return what becomes of a worker that is ordered to end, and of the tasks that it holds."""
    if verb == "kill":
        again = "its task runs again at once" if holds == 1 else f"its {holds:,} tasks run again at once"
        return f"it is killed; {again}, and the lease does not count" if holds else "it is killed; it holds no task"
    what = "its task" if holds == 1 else f"its {holds:,} tasks"
    return f"it finishes {what}, takes no other, and ends" if holds else "it takes no other task, and ends"


def pool_sentence(workers: int) -> str:
    """Return what becomes of a pool's workers that are all replaced."""
    if not workers:
        return "it has no worker to replace"
    return f"{counted(workers, 'worker is', 'workers are')} replaced, new before old; none is cut"


def _order_json(order: WorkerRequest | ReplaceRequest) -> dict[str, object]:
    return {"by": order.by, **order.at.to_json()}


def _worker_request(data: object) -> WorkerRequest:
    match data:
        case {"verb": str() as verb} if verb in _VERBS:
            return WorkerRequest(cast("WorkerVerb", verb), *_actor_and_expiry(data))
    raise ValueError(f"an order must be one of {', '.join(_VERBS)}: {data!r}")


def _actor_and_expiry(data: object) -> tuple[str, Expiry]:
    match data:
        case {"by": str() as by}:
            return by, Expiry.from_json(data)
    raise ValueError(f"an order must name who gave it: {data!r}")
