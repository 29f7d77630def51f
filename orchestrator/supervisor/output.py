"""The output of pools and workers as people look for it: chosen by name, merged by time, followed within bounds.

It only reads the state directory, in any process and thread.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.base.errors import NoOutputError
from orchestrator.runtimes.docker.container_state import POOL_LABEL
from orchestrator.runtimes.worker_output import OutputLine, OutputPosition, WorkerOutput
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.snapshot import workers_in

MAX_LINES: Final = 10_000
"""Lines of one look, at most."""
MAX_NEW_BYTES: Final = 256 * 1024
"""New output of one worker that is read in one look, at most; of more, only the end is shown."""
MAX_DEATHS: Final = 1_000
"""Death certificates that are read to find the pool of an ended worker."""
TEMPLATE_SUFFIX: Final = ".template"
"""The end of the name under which a pool's template writes: see `runtimes.templates`."""
MAX_NAMES: Final = 20
"""Names that an error lists."""


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A line of a worker's output, and whose it is. `at`: its own time, or that of the last line before with one."""

    pool: str
    worker: str
    text: str
    at: float | None = None
    has_time: bool = False


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Lines, oldest first; `skipped` has the workers of which output before them was left out, with the number of
    lines, or -1 where that is not known."""

    lines: Sequence[WorkerLine] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


class FleetOutput:
    """The output of the workers of one state directory."""

    def __init__(self, files: StateDir) -> None:
        self._files = files
        self._output = WorkerOutput(files.path)
        self._pools: dict[str, str] = {}

    def workers(self) -> dict[str, str]:
        """Return the pool of each worker that has output, live or ended, the least recently written first."""
        found = self._output.workers()
        unknown = [worker for worker in found if worker not in self._pools]
        if unknown:
            self._pools |= self._pools_of(unknown)
        return {worker: self._pools[worker] for worker in found}

    def chosen(self, name: str | None) -> dict[str, str]:
        """Return the workers of a pool, or the worker of a name or of the beginning of one; None: all.

        Raises `NoOutputError`, with the names that there are.
        """
        workers = self.workers()
        if name is None:
            return workers
        of_pool = {worker: pool for worker, pool in workers.items() if pool == name}
        if of_pool:
            return of_pool
        if name in workers:
            return {name: workers[name]}
        self._check_kind(name)
        begun = {worker: pool for worker, pool in workers.items() if worker.startswith(name)}
        if len(begun) != 1:
            raise self._unknown(name, begun, workers)
        return begun

    def last(
        self, workers: Mapping[str, str], *, lines: int, since: float | None = None
    ) -> tuple[OutputBatch, dict[str, OutputPosition]]:
        """Return these workers' last lines, newest last, and the positions behind them.

        `since`: none from before this second since the epoch.
        """
        pieces = {worker: self._output.last(worker, lines=lines) for worker in workers}
        streams = [self._timed(worker, workers[worker], piece.lines) for worker, piece in pieces.items()]
        merged = [
            line for line in merged_by_time(streams) if since is None or (line.at is not None and line.at >= since)
        ]
        positions = {worker: piece.position for worker, piece in pieces.items()}
        return OutputBatch(merged[-lines:] if lines else ()), positions

    def after(
        self, workers: Mapping[str, str], positions: dict[str, OutputPosition], *, max_bytes: int = MAX_NEW_BYTES
    ) -> OutputBatch:
        """Return the lines behind the positions, and move these; a worker without one is read from its beginning."""
        streams: list[list[WorkerLine]] = []
        skipped: dict[str, int] = {}
        for worker, pool in workers.items():
            piece = self._output.after(worker, positions.get(worker, OutputPosition()), max_bytes=max_bytes)
            positions[worker] = piece.position
            if piece.lines:
                streams.append(self._timed(worker, pool, piece.lines))
                time.sleep(0)  # other threads get their turn: one of them may be a supervisor's
            if piece.skipped:
                skipped[worker] = piece.skipped
        return OutputBatch(list(merged_by_time(streams)), skipped)

    def _timed(self, worker: str, pool: str, lines: Sequence[OutputLine]) -> list[WorkerLine]:
        """Give each line a time: its own, or that of the line before; before the first one, that of the first.

        Where no line has one, it is the time at which the worker last wrote.
        """
        first = next((line.at for line in lines if line.at is not None), None)
        at = self._output.written_at(worker) if first is None else first
        timed = []
        for line in lines:
            at = at if line.at is None else line.at
            timed.append(WorkerLine(pool, worker, line.text, at, line.at is not None))
        return timed

    def _pools_of(self, workers: Iterable[str]) -> dict[str, str]:
        snapshot = self._files.read_snapshot() or {}
        known = {str(one.get("worker")): str(one.get("pool")) for one in workers_in(snapshot)}
        deaths = self._files.read_deaths(limit=MAX_DEATHS)
        known |= {str(one.get("worker")): str(one.get("pool")) for one in deaths if one.get("pool")}
        return {worker: known.get(worker) or pool_in(worker) for worker in workers}

    def _check_kind(self, name: str) -> None:
        """Raise `NoOutputError` for a pool whose output is elsewhere."""
        pools = (self._files.read_snapshot() or {}).get("pools")
        pool = pools.get(name) if isinstance(pools, dict) else None
        settings = pool.get("settings") if isinstance(pool, dict) else None
        kind = settings.get("runtime") if isinstance(settings, dict) else None
        if kind == "swarm":
            listed = f"docker service ls --filter label={POOL_LABEL}={name}"
            raise NoOutputError(
                f"pool {name}: the swarm keeps its workers' output, on any node",
                fix=f"`{listed}` lists its services; then `docker service logs --follow --tail 100 SERVICE`",
            )
        if kind == "kubernetes":
            listed = f"kubectl logs --selector {POOL_LABEL}={name}"
            raise NoOutputError(
                f"pool {name}: its cluster keeps its workers' output",
                fix=f"run `towline logs {name}` where its kubeconfig is, or `{listed}`",
            )
        if kind == "external":
            raise NoOutputError(
                f"pool {name}: its workers are started elsewhere, and their output is there",
                fix="look where its platform keeps it",
            )
        if settings is not None:
            fix = "`towline workers` shows its workers"
            if kind == "docker":
                listed = f"docker ps --all --filter label={POOL_LABEL}={name}"
                fix += f"; output of an engine over ssh:// stays there: `{listed}`, then `docker logs CONTAINER`"
            raise NoOutputError(f"pool {name}: no worker of it has written anything yet", fix=fix)

    def _unknown(self, name: str, begun: Mapping[str, str], workers: Mapping[str, str]) -> NoOutputError:
        if begun:
            return NoOutputError(f"{len(begun)} workers' names begin with '{name}': {_listed(begun)}", fix="give more")
        if not workers:
            return NoOutputError(
                f"no worker has written anything in {self._files.path}", fix="is `towline up` running?"
            )
        pools = _listed(dict.fromkeys(workers.values()))
        newest = _listed([*workers][::-1])
        return NoOutputError(f"there is no pool or worker '{name}'; pools: {pools}; workers: {newest}", fix="name one")


class OutputFollower:
    """Follows the output of workers that are chosen anew at each look, as workers come and go."""

    def __init__(
        self,
        output: FleetOutput,
        choose: Callable[[], Mapping[str, str]],
        *,
        positions: Mapping[str, OutputPosition] | None = None,
        max_bytes: int = MAX_NEW_BYTES,
    ) -> None:
        """Begin at these positions, or the present ends; workers that come later are read from their beginning."""
        self._output = output
        self._choose = choose
        self._max_bytes = max_bytes
        self._positions = dict(output.last(choose(), lines=0)[1] if positions is None else positions)

    def new(self) -> OutputBatch:
        """Return what is new since the last look."""
        workers = self._choose()
        for gone in self._positions.keys() - workers.keys():
            del self._positions[gone]
        return self._output.after(workers, self._positions, max_bytes=self._max_bytes)


def merged_by_time(streams: Sequence[Sequence[WorkerLine]]) -> Iterable[WorkerLine]:
    """Merge several workers' lines by time; each worker's own keep their order."""
    ordered: list[list[tuple[float, WorkerLine]]] = []
    for stream in streams:
        latest = float("-inf")
        rising = []
        for line in stream:
            latest = max(latest, line.at or 0.0)
            rising.append((latest, line))
        ordered.append(rising)
    return (line for _, line in heapq.merge(*ordered, key=lambda one: one[0]))


def pool_in(worker: str) -> str:
    """Return the pool in a worker's name, as `supervisor.fresh_identity` and `solo_worker_name` make it.

    A pool's template writes as POOL.template.
    """
    if worker.endswith(TEMPLATE_SUFFIX):
        return worker.removesuffix(TEMPLATE_SUFFIX)
    return worker.partition(".")[0].rpartition("-")[0] or worker


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:MAX_NAMES]) + (", ..." if len(every) > MAX_NAMES else "")
