"""The part of a fleet that a caller sees: pools whose queues its token and their acls allow, by the queues' own rule.

A pool is seen by those who see each of its queues. Calls about the fleet as a whole are for tokens of all queues.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Final

from prometheus_client.registry import Collector
from pydantic import BaseModel

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.json_fields import Json, list_in, mapping_of, mappings_of
from orchestrator.fleet.certificates import AmbiguousWorkerError, UnknownDeathError, chosen_death
from orchestrator.http_api.fleet import PATH as FLEET
from orchestrator.http_api.fleet import PublishedFleet
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.metrics import FleetMetrics
from orchestrator.http_api.registry import ListedSupervisors
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.view import Heartbeat
from queue_core.errors import PermissionDeniedError, QueueError, StoreUnavailableError
from queue_core.server.callers.access import ACCESS_OF_VERB, check_whole_store, is_in_scope, is_listed
from queue_core.server.callers.auth import Principal
from queue_core.server.v1.endpoint import Endpoint
from queue_core.task import QueueSpec
from queue_core.verbs.roles import Access

FRESH_SECONDS: Final = 1.0
"""For so long the acls of queues are used that were read."""
MAX_DEATHS: Final = 1_000
LISTS: Final = frozenset({"/v1/pools", "/v1/trends", "/v1/workers", "/v1/deaths"})
"""Paths whose answers are lists: of those a caller gets the entries of its pools."""
OF_NO_POOL: Final = frozenset({"/v1/supervisors", "/v1/hosts/{host}"})
"""Paths of facts that are of no pool: every caller of the role gets them."""


class FleetRights:
    """The rights of callers to one supervisor's fleet: see `extensions.Rights`."""

    def __init__(
        self, heartbeat: Heartbeat, clock: MonotonicClock, files: StateDir | None, queues: OwnQueues | None
    ) -> None:
        """`queues`: where acls are read; without it there are none."""
        self._heartbeat = heartbeat
        self._clock = clock
        self._files = files
        self._queues = queues
        self._lock = Lock()
        self._read_at = Monotonic(float("-inf"))
        self._specs: Mapping[str, QueueSpec] | None = None

    def is_unbounded(self, caller: Principal) -> bool:
        """See `Rights.is_unbounded`."""
        return caller.queues is None and caller.is_admin

    def check(self, caller: Principal, endpoint: Endpoint, names: Mapping[str, str]) -> None:
        """See `Rights.check`. A pool that is hidden and one that is not there are refused alike."""
        access = ACCESS_OF_VERB[endpoint.permission or "stats"]
        if "pool" in names:
            self._check_pool(caller, names["pool"], access)
        elif "worker" in names:
            self._check_worker(caller, names["worker"], access)
        elif endpoint.path not in LISTS | OF_NO_POOL | {FLEET} or endpoint.method != "GET":
            check_whole_store(caller, endpoint.name)
            for pool in self._pools():
                self._check_pool(caller, pool, access)

    def shown(self, caller: Principal, endpoint: Endpoint, answer: BaseModel) -> BaseModel:
        """See `Rights.shown`."""
        access = ACCESS_OF_VERB[endpoint.permission or "stats"]
        if isinstance(answer, PublishedFleet):
            return self._fleet_shown(caller, answer, self._shown_pools(caller, access))
        if isinstance(answer, ListedSupervisors):
            seen = self._shown_pools(caller, access)
            rows = [one.model_copy(update={"pools": list(filter(seen, one.pools))}) for one in answer.supervisors]
            return answer.model_copy(update={"supervisors": rows})
        if endpoint.path not in LISTS:
            return answer
        seen = self._shown_pools(caller, access)

        def is_seen(entry: object) -> bool:
            pool, queue = _member(entry, "pool"), _member(entry, "queue")
            if isinstance(entry, Mapping) and not pool and not queue:  # a worker that no supervisor started
                return self._allows_all(caller, map(str, list_in(entry, "queues")), access)
            return seen(pool) if pool else self._allows(caller, queue, access)

        kept = {name: type(value)(filter(is_seen, value)) for name, value in answer if isinstance(value, list | tuple)}
        return answer.model_copy(update=kept)

    def _fleet_shown(self, caller: Principal, fleet: PublishedFleet, seen: Callable[[str], bool]) -> PublishedFleet:
        """Return a fleet with these pools only; of what else it has, plain values such as its phase."""
        whole = fleet.snapshot
        snapshot: Json = {name: one for name, one in whole.items() if one is None or isinstance(one, str | int | float)}
        snapshot["pools"] = {name: one for name, one in mapping_of(whole.get("pools")).items() if seen(name)}
        snapshot["workers"] = [one for one in mappings_of(whole.get("workers")) if seen(_member(one, "pool"))]
        snapshot["unserved"] = [
            one for one in mappings_of(whole.get("unserved")) if self._allows(caller, _member(one, "queue"), "look")
        ]
        snapshot["unsupervised"] = [
            one
            for one in mappings_of(whole.get("unsupervised"))
            if self._allows_all(caller, map(str, list_in(one, "queues")), "look")
        ]
        return fleet.model_copy(
            update={
                "snapshot": snapshot,
                "decisions": [one for one in fleet.decisions if seen(_member(one, "pool"))],
                "deaths": [one for one in fleet.deaths if seen(_member(one, "pool"))],
                "templates": {name: one for name, one in fleet.templates.items() if seen(name)},
            }
        )

    def collector(self, caller: Principal, collector: Collector) -> Collector:
        """See `Rights.collector`."""
        if not isinstance(collector, FleetMetrics):
            return collector
        queues = {queue for one in self._pools().values() for queue in one}
        queues |= {one.queue for one in self._heartbeat.view.unserved}
        return collector.of(
            self._seen(caller, "look"), frozenset(one for one in queues if self._allows(caller, one, "look"))
        )

    def _check_pool(self, caller: Principal, pool: str, access: Access) -> None:
        queues = self._pools().get(pool)
        if queues is None and caller.queues is None:
            return  # the call itself says that there is none
        if queues is None or not self._allows_all(caller, queues, access):
            raise PermissionDeniedError(f"this token is not for all queues of a pool {pool[:100]}")

    def _check_worker(self, caller: Principal, worker: str, access: Access) -> None:
        pool = self._pool_of(worker)
        if pool is None and caller.queues is None:
            return
        if pool is None or pool not in self._seen(caller, access):
            raise PermissionDeniedError(f"this token is not for the queues of a worker {worker[:100]}")

    def _pool_of(self, worker: str) -> str | None:
        """Return the pool of a worker that lives, or that has ended."""
        if self._files is None:
            return None
        known = mappings_of((self._files.shared_snapshot() or {}).get("workers"))
        found = next((str(one.get("pool")) for one in known if one.get("worker") == worker), None)
        if found is not None:
            return found
        try:
            return str(chosen_death(worker, self._files.read_deaths(limit=MAX_DEATHS)).get("pool"))
        except (UnknownDeathError, AmbiguousWorkerError):
            return None

    def _pools(self) -> Mapping[str, Sequence[str]]:
        """Return the queues of each pool that is known."""
        published = mapping_of(((self._files.shared_snapshot() if self._files else None) or {}).get("pools"))
        found: dict[str, Sequence[str]] = {
            name: [str(one) for one in list_in(mapping_of(pool), "queues")] or [str(mapping_of(pool).get("queue", ""))]
            for name, pool in published.items()
        }
        return found | {name: pool.spec.queues for name, pool in self._heartbeat.view.pools.items()}

    def _seen(self, caller: Principal, access: Access) -> frozenset[str]:
        """Return the pools that a caller may use so."""
        return frozenset(name for name, queues in self._pools().items() if self._allows_all(caller, queues, access))

    def _shown_pools(self, caller: Principal, access: Access) -> Callable[[str], bool]:
        """Return whether a pool is shown: one that was removed or renamed since only to tokens of all queues."""
        known, seen = self._pools().keys(), self._seen(caller, access)
        return lambda pool: pool in seen or (caller.queues is None and pool not in known)

    def _allows_all(self, caller: Principal, queues: Iterable[str], access: Access) -> bool:
        return all(self._allows(caller, queue, access) for queue in queues)

    def _allows(self, caller: Principal, queue: str, access: Access) -> bool:
        if not is_in_scope(caller, queue):
            return False
        if caller.is_admin:
            return True
        spec = self._known().get(queue)
        return spec is None or is_listed(caller, spec, access)

    def _known(self) -> Mapping[str, QueueSpec]:
        """Return the queues' settings, read once a second; the last that were read while the store does not answer.

        Raises `StoreUnavailableError` when they were never read.
        """
        if self._queues is None:
            return {}
        with self._lock:
            now = self._clock.monotonic()
            if self._specs is None or not 0 <= now - self._read_at < FRESH_SECONDS:
                self._read_at = now
                try:
                    with self._queues.opened() as queues:
                        self._specs = {spec.name: spec for spec in queues.queues()}
                except (QueueError, OSError) as error:
                    if self._specs is None:
                        raise StoreUnavailableError(f"the acls of queues can't be read now: {error}") from error
            return self._specs or {}


def _member(entry: object, name: str) -> str:
    value = entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)
    return str(value) if value is not None else ""
