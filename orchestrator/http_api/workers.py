"""Workers over HTTP: what each does and holds now, and the end of its output, which can be followed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field

from orchestrator.base.clock import MonotonicClock
from orchestrator.base.errors import NoOutputError
from orchestrator.base.json_fields import mapping_of, mappings_of
from orchestrator.fleet.certificates import AmbiguousWorkerError, UnknownDeathError, chosen_death
from orchestrator.http_api.answers import MAX_SHOWN_NAME, FleetAnswer, FleetQuery, Json, not_now
from orchestrator.http_api.fleet_now import FleetNow, FreshFleet
from orchestrator.http_api.logs import ShownLine, cursor_of, positions_in
from orchestrator.runtimes.running_stack import StackRequests, own_lines, worker_in
from orchestrator.runtimes.worker_output import OutputPosition
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.output import MAX_LINES, FleetOutput, OutputBatch
from queue_core.cli.event_lines import is_library_file
from queue_core.config.messages import did_you_mean
from queue_core.process.terminal import clean
from queue_core.server.base.problems import Problem, refusal
from queue_core.server.extensions import EventStream, ExtensionRoute, NoQuery, RouteCall, StreamEvent, reads
from queue_core.server.schemas import EmptyBody

MAX_TAIL_BYTES: Final = 64 * 1024
"""Text of one answer and of one event, at most; of more, the newest lines."""
FOLLOW_SECONDS: Final = 1.0
"""Pause between two looks for new lines."""
MAX_DEATHS: Final = 1_000


FleetReading = Callable[[str | None], FreshFleet | None]


class WorkersQuery(FleetQuery):
    """A choice of workers."""

    pool: Annotated[str | None, Field(max_length=300, description="Only this pool's.")] = None


class TailQuery(FleetQuery):
    """How much of a worker's output."""

    tail: Annotated[int, Field(ge=0, le=MAX_LINES, description="Lines from the end, at most; 100.")] = 100
    follow: Annotated[
        bool, Field(description="Continue for ever, as server-sent events; `Last-Event-ID` resumes a stream.")
    ] = False


class FleetWorkers(FleetAnswer):
    """The workers, oldest first."""

    alive: bool = Field(description="Whether their supervisor lives.")
    age_seconds: float = Field(description="Seconds since the supervisor published them.")
    trouble: str = Field(description="Why states and counts are the published ones; empty: they are current.")
    workers: list[Json] = Field(
        description="State, pid or container, memory, CPU time, tasks done; `tasks` has those that it holds now."
    )
    unsupervised: list[Json] = Field(
        [], description="Workers that no supervisor started, such as those of `towline work`: `/v1/present-workers`."
    )


class OneWorker(FleetAnswer):
    """One worker."""

    alive: bool = Field(description="Whether its supervisor lives.")
    age_seconds: float = Field(description="Seconds since the supervisor published it.")
    trouble: str = Field(description="Why its state and counts are the published ones; empty: they are current.")
    worker: Json = Field(description="As in the list of workers.")
    settings: Json | None = Field(description="The settings of its pool in force.")


class WorkerTail(FleetAnswer):
    """The end of a worker's output, with control characters escaped, as `\\x1b`: `/v1/logs` has it as it is."""

    worker: str
    pool: str
    lines: list[ShownLine]
    is_cut: bool = Field(description="Whether lines were left out, as they are more than 64 KiB.")
    cursor: str = Field(description="Give it as `Last-Event-ID` to a stream, or as `after` to `/v1/logs`.")


class WorkerStack(FleetAnswer):
    """The stacks of a worker's threads: files, lines and functions, never values. At most 200 lines."""

    worker: str
    lines: list[str] = Field(description="Most recent call first; the thread that took the signal comes first.")
    own: list[str] = Field(description="Those of the user's program: the others are of libraries.")
    why: str = Field(description="Why there are none, as a sentence; empty: there are.")


def worker_routes(files: StateDir, fleet: FleetNow, clock: MonotonicClock) -> tuple[ExtensionRoute, ...]:
    """Return the routes of the workers of this state directory."""
    stacks = StackRequests(files, clock)
    return (
        reads(
            "/v1/workers",
            "list_workers",
            "List the workers, each with its state, its memory and its tasks.",
            "stats",
            lambda call: all_workers(fleet, call.query),
            FleetWorkers,
            WorkersQuery,
        ),
        reads(
            "/v1/workers/{worker}/log",
            "worker_log",
            "The end of a worker's output, and what it writes from now on.",
            "events",
            lambda call: tail(files, call),
            WorkerTail,
            TailQuery,
        ),
        reads(
            "/v1/workers/{worker}/stack",
            "worker_stack",
            "Where a worker's threads are now; it also writes that into its output.",
            "events",
            lambda call: running_stack(files, stacks, call.path["worker"]),
            WorkerStack,
            NoQuery,
        ),
        reads(
            "/v1/workers/{worker}",
            "show_worker",
            "Return one worker, with its state, its memory and its tasks.",
            "stats",
            lambda call: one_worker(files, fleet, call.path["worker"]),
            OneWorker,
            NoQuery,
        ),
    )


def all_workers(fleet: FleetNow, query: WorkersQuery) -> FleetWorkers:
    """Return the workers of a pool, or all. Raises `Problem` before there is a fleet."""
    found = _published(fleet.read(query.pool))
    workers = [one for one in mappings_of(found.snapshot.get("workers")) if query.pool in (None, one.get("pool"))]
    others = [] if query.pool is not None else mappings_of(found.snapshot.get("unsupervised"))
    return FleetWorkers(
        alive=found.is_alive,
        age_seconds=found.age_seconds,
        trouble=found.trouble,
        workers=workers,
        unsupervised=others,
    )


def one_worker(files: StateDir, fleet: FleetNow, name: str) -> OneWorker:
    """Return one worker. Raises `Problem` for one that is not there, with what is known of it."""
    found, worker = _found(files, fleet.read, name)
    pool = mapping_of(mapping_of(found.snapshot.get("pools")).get(str(worker.get("pool"))))
    return OneWorker(
        alive=found.is_alive,
        age_seconds=found.age_seconds,
        trouble=found.trouble,
        worker=worker,
        settings=mapping_of(pool.get("settings")) or None,
    )


def running_stack(files: StateDir, stacks: StackRequests, name: str) -> WorkerStack:
    """Ask a worker where its threads are. Raises `Problem` for one that is not there."""
    snapshot = files.shared_snapshot() or {}
    known = worker_in(snapshot, name)
    if known is None:
        raise _not_there(files, name, {str(one.get("worker")): one for one in mappings_of(snapshot.get("workers"))})
    found = stacks.stack_of(*known)
    lines = [clean(line) for line in found.lines]
    return WorkerStack(worker=found.worker, lines=lines, own=own_lines(lines, is_library_file), why=found.why)


def worker_named(files: StateDir, fleet: FleetNow, name: str) -> Json:
    """Return what one worker does and holds now. Raises `Problem` for one that is not there."""
    return _found(files, fleet.read_now, name)[1]


def _found(files: StateDir, read: FleetReading, name: str) -> tuple[FreshFleet, Json]:
    known = mappings_of((files.shared_snapshot() or {}).get("workers"))
    pools = [one.get("pool") for one in known if one.get("worker") == name]
    found = _published(read(str(pools[0]) if pools else None))
    workers = {str(one.get("worker")): one for one in mappings_of(found.snapshot.get("workers"))}
    if name not in workers:
        raise _not_there(files, name, workers)
    return found, workers[name]


def tail(files: StateDir, call: RouteCall[TailQuery, EmptyBody]) -> WorkerTail | EventStream:
    """Return the end of a worker's output, or the stream of what it writes. Raises `Problem` for an unknown one."""
    output, name = FleetOutput(files), call.path["worker"]
    workers = output.workers()
    if name not in workers:
        raise _without_output(output, name)
    chosen = {name: workers[name]}
    if call.query.follow and call.last_event_id:
        return _stream(output, chosen, positions_in(call.last_event_id), ())
    batch, positions = output.last(chosen, lines=call.query.tail)
    lines, is_cut = shown_lines(batch)
    if call.query.follow:
        return _stream(output, chosen, positions, lines)
    return WorkerTail(worker=name, pool=workers[name], lines=lines, is_cut=is_cut, cursor=cursor_of(positions))


def shown_lines(batch: OutputBatch) -> tuple[list[ShownLine], bool]:
    """Return the newest lines that an answer has room for, harmless on any screen; and whether some were left out."""
    kept: list[ShownLine] = []
    room, is_cut = MAX_TAIL_BYTES, bool(batch.skipped)
    for line in reversed(batch.lines):
        text = clean(line.text)
        size = len(text.encode("utf-8", "replace"))
        if size > room:
            if not kept:  # a line that alone is too long is shown from its beginning
                text = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
                kept.append(
                    ShownLine(pool=line.pool, worker=line.worker, line=text, at=line.at, has_time=line.has_time)
                )
            return kept[::-1], True
        room -= size
        kept.append(ShownLine(pool=line.pool, worker=line.worker, line=text, at=line.at, has_time=line.has_time))
    return kept[::-1], is_cut


def _stream(
    output: FleetOutput,
    chosen: Mapping[str, str],
    positions: Mapping[str, OutputPosition],
    first: Sequence[ShownLine],
) -> EventStream:
    known, waiting = dict(positions), list(first)

    def new() -> list[StreamEvent]:
        lines, is_cut = list(waiting), False
        waiting.clear()
        if not lines:
            found, is_cut = shown_lines(output.after(chosen, known, max_bytes=MAX_TAIL_BYTES))
            lines = found
        if not lines and not is_cut:
            return []
        told: Json = {"lines": [line.model_dump() for line in lines], "is_cut": is_cut}
        return [StreamEvent(cursor_of(known), told, "lines")]

    return EventStream(new, FOLLOW_SECONDS)


def _published(found: FreshFleet | None) -> FreshFleet:
    if found is None:
        raise not_now("the supervisor has published nothing yet: try again")
    return found


def _not_there(files: StateDir, name: str, workers: Mapping[str, Json]) -> Problem:
    shown = clean(name[:MAX_SHOWN_NAME])
    try:
        died = str(chosen_death(name, files.read_deaths(limit=MAX_DEATHS)).get("worker"))
    except (UnknownDeathError, AmbiguousWorkerError):
        return refusal(404, "unknown-worker", f"there is no worker '{shown}'{did_you_mean(shown, [*workers])}")
    return refusal(404, "worker-has-died", f"{died} has ended: GET /v1/deaths/{died} tells how")


def _without_output(output: FleetOutput, name: str) -> Problem:
    shown = clean(name[:MAX_SHOWN_NAME])
    try:
        output.chosen(name)
    except NoOutputError as error:
        return refusal(404, "unknown-worker", f"{error}; {error.fix}")
    return refusal(404, "unknown-worker", f"'{shown}' is no worker's whole name; GET /v1/workers lists them")
