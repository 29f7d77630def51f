"""The output of workers that are Pods, read from their cluster: a Pod keeps it until it is removed."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.config.pools import PoolSpec
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.api import Api, ApiError
from orchestrator.runtimes.kubernetes.body import POOL_LABEL, WORKER
from orchestrator.runtimes.kubernetes.pods import PodState, pod_state
from orchestrator.supervisor.output import OutputBatch, WorkerLine, merged_by_time
from queue_core.cli import exits
from queue_core.cli.failure import CommandError

LOOK_SECONDS: Final = 1.0


class PodReader:
    """The output of the Pods of some pools; see `commands.logs.OutputReader`."""

    pause_seconds = LOOK_SECONDS

    def __init__(self, pools: Sequence[PoolSpec], *, environment: Mapping[str, str]) -> None:
        self._pools = pools
        self._environment = environment
        self._apis: dict[str, Api] = {}
        self._name: str | None = None
        self._seen: dict[str, str] = {}

    def last(self, name: str | None, *, lines: int, since: float | None) -> OutputBatch:
        """Return the last lines of a pool's Pods, of a worker's, or of all."""
        found = self._pods(name)
        if name is not None and not found:
            is_pool = any(name == pool.name for pool in self._pools)
            fix = "`towline why` says what the pool waits for" if is_pool else f"`towline why-died {name}` has its end"
            why = "an ended worker's Pod is removed, with its output"
            raise CommandError(f"there is no Pod of {name} now: {why}", code=exits.NO_INPUT, fix=fix)
        streams = [self._read(api, state, lines=lines) for api, state in found]
        merged = [
            line for line in merged_by_time(streams) if since is None or (line.at is not None and line.at >= since)
        ]
        return OutputBatch(merged[-lines:] if lines else ())

    def follow(self, name: str | None) -> None:
        """Begin to follow: behind what `last` returned for the same name."""
        self._name = name

    def new(self) -> OutputBatch:
        """Return what is new since the last call."""
        return OutputBatch(list(merged_by_time([self._read(api, state) for api, state in self._pods(self._name)])))

    def close(self) -> None:
        """Close the connections."""
        for api in self._apis.values():
            api.close()

    def _pods(self, name: str | None) -> list[tuple[Api, PodState]]:
        found: list[tuple[Api, PodState]] = []
        for pool in self._pools:
            if name is not None and name != pool.name and not name.startswith(f"{pool.name}-"):
                continue
            api = self._api(pool)
            try:
                listed = api.list("pods", selector=f"{POOL_LABEL}={pool.name}")
            except (ApiError, RuntimeUnavailableError) as error:
                raise CommandError(str(error), code=exits.UNAVAILABLE, where=api.url) from None
            states = [state for pod in listed.items if (state := pod_state(pod)) is not None]
            found += [(api, one) for one in states if name in {None, pool.name} or one.worker.startswith(str(name))]
        return found

    def _api(self, pool: PoolSpec) -> Api:
        settings = pool.runtime.kubernetes
        assert settings is not None
        key = settings.engine or ""
        if key not in self._apis:
            try:
                access = Access.found(settings.context, environment=self._environment)
            except RuntimeUnavailableError as error:
                raise CommandError(str(error), code=exits.UNAVAILABLE) from None
            self._apis[key] = Api(access, settings.namespace)
        return self._apis[key]

    def _read(self, api: Api, state: PodState, *, lines: int | None = None) -> list[WorkerLine]:
        """Return the lines of one Pod behind those that were read; none while its container has not begun."""
        seen = self._seen.get(state.name, "")
        try:
            data = b"".join(api.logs(state.name, container=WORKER, lines=lines, since=seen))
        except (ApiError, RuntimeUnavailableError):
            return []
        found: list[WorkerLine] = []
        for line in data.decode(errors="replace").splitlines():
            stamp, _, text = line.partition(" ")
            at = _seconds(stamp)
            if at is None or stamp <= seen:
                continue
            self._seen[state.name] = stamp
            found.append(WorkerLine(state.pool, state.worker, text, at, has_time=True))
        return found


def _seconds(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(f"{stamp[:26].rstrip('Z')}+00:00").timestamp()
    except ValueError:
        return None
