"""A snapshot of a fleet as typed figures, for tables and views: one row a pool, one row a worker. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from orchestrator.base.json_fields import (
    Json,
    count_in,
    known_count_in,
    list_in,
    mapping_of,
    mappings_of,
    number_in,
    text_in,
)
from orchestrator.base.values import value
from queue_core.process.wording import shown_seconds

DRAINED: Final = "this host is drained: no worker is started until `towline undrain`"
UNSUPERVISED: Final = "unsupervised"
"""Stands in place of a pool where no supervisor started the worker."""
_SHOWN_STATES: Final = {"draining": "finishing"}
_LEAVING: Final = frozenset({"draining", "killed"})


@value
class RunningTask:
    """A task that a worker holds, and for how long."""

    task: str
    held_seconds: float


@value
class PoolFigures:
    """A pool: `workers` counts towards its size, `target` is the size decided on.

    `min_workers` and `max_workers` are the bounds of the settings file, without overrides and schedule.
    `done` counts the tasks deleted since its queue was made; None where the queue was not asked. `p99_over_slo` is None
    without leases in the last hour. `limited_by` has the guards that hold its size back, `notes` the overrides
    in force, `states` the same as sentences, with the way out of them; `concern` says what is wrong with it, or "".
    `ages`: how waits are known (`samples.Ages`).
    """

    pool: str
    queue: str
    workers: int
    busy: int
    target: int | None
    min_workers: int | None
    max_workers: int | None
    ready: int
    delayed: int
    in_flight: int
    dead: int
    oldest_seconds: float
    slo_seconds: float
    paused: bool
    done: int | None = None
    p99_over_slo: float | None = None
    rule: str = ""
    limited_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    concern_kinds: tuple[str, ...] = ()
    concern: str = ""
    states: tuple[str, ...] = ()
    ages: str = "exact"

    @property
    def oldest(self) -> str:
        """The wait of the oldest ready task as people read it: `~` for an estimate, `+` after a lower bound."""
        shown = shown_seconds(self.oldest_seconds)
        return {"about": f"~{shown}", "at least": f"{shown}+"}.get(self.ages, shown)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences that every command which shows the pool has to print with it."""
        return (*([self.concern] if self.concern else []), *self.states)


@value
class UnservedFigures:
    """A tag of waiting tasks that no pool works on, by its sentence."""

    queue: str
    sentence: str


@value
class WorkerFigures:
    """A worker: its `state` in a word for people, for how long, the tasks that it holds, and how many it has ended.

    `leasing`: a call of it waits for a task; `idle`: none does, or no server knows; `finishing`: it was asked to end.
    """

    worker: str
    pool: str
    pid: int | None
    state: str
    state_seconds: float
    tasks: tuple[RunningTask, ...]
    holding: int
    finished: int
    memory_bytes: int
    age_seconds: float
    notes: tuple[str, ...] = ()


@value
class FleetFigures:
    """A supervisor's phase and URL, its pools in the order of the settings, and its workers, oldest first.

    `unserved` has the tags of waiting tasks that none of the pools works on, `unsupervised` the workers that no
    supervisor started.
    """

    phase: str
    url: str
    pools: tuple[PoolFigures, ...] = ()
    workers: tuple[WorkerFigures, ...] = field(default=())
    unserved: tuple[UnservedFigures, ...] = ()
    unsupervised: tuple[WorkerFigures, ...] = ()

    @property
    def all_workers(self) -> tuple[WorkerFigures, ...]:
        """Return the workers, and then those that no supervisor started."""
        return self.workers + self.unsupervised

    def sentences(self, pool: str | None = None, *, notes: Literal["all", "none"] = "none") -> list[str]:
        """Return what a person has to know beside the figures, of all pools or of one: each with its queue or pool.

        notes: whether the pools' notes are among them, where no column has them.
        """
        shown = [one for one in self.pools if pool in (None, one.pool)]
        queues = {one.queue for one in shown}
        found = [f"{one.queue}: {one.sentence}" for one in self.unserved if one.queue in queues]
        for one in shown:
            others = [note for note in one.notes if note not in one.states] if notes == "all" else []
            found += [f"{one.pool}: {sentence}" for sentence in (*one.sentences, *others)]
        return found


def describe_pause(queue: str) -> str:
    """Describe a queue that is paused, with the way out of it."""
    return f"the queue {queue} is paused, so no task of it is leased: `towline resume {queue}`"


def figures_of(snapshot: Mapping[str, object], *, now_seconds: float) -> FleetFigures:
    """Return the figures of a snapshot; times in it are seconds since the epoch, as `now_seconds` is.

    A snapshot of an earlier release, or one that is incomplete, has zeros and empty texts for what it does not say.
    """
    workers = mappings_of(snapshot.get("workers"))
    busy = Counter(str(worker.get("pool")) for worker in workers if worker.get("state") == "busy")
    return FleetFigures(
        text_in(snapshot, "phase"),
        text_in(snapshot, "url"),
        tuple([_pool(name, mapping_of(pool), busy[name]) for name, pool in mapping_of(snapshot.get("pools")).items()]),
        tuple([_worker(worker, now_seconds) for worker in workers]),
        tuple(
            [
                UnservedFigures(text_in(one, "queue"), text_in(one, "sentence"))
                for one in mappings_of(snapshot.get("unserved"))
            ]
        ),
        tuple([_unsupervised(one, now_seconds) for one in mappings_of(snapshot.get("unsupervised"))]),
    )


def _pool(name: str, pool: Json, busy: int) -> PoolFigures:
    sample, decision, settings = (
        mapping_of(pool.get("sample")),
        mapping_of(pool.get("decision")),
        mapping_of(pool.get("settings")),
    )
    waited, concern = mapping_of(pool.get("waited")), mapping_of(pool.get("concern"))
    return PoolFigures(
        pool=name,
        queue=text_in(settings, "queue"),
        workers=count_in(pool, "current"),
        busy=busy,
        target=known_count_in(pool, "target"),
        min_workers=known_count_in(settings, "settings_min"),
        max_workers=known_count_in(settings, "settings_max"),
        ready=count_in(sample, "ready"),
        delayed=count_in(sample, "delayed"),
        in_flight=count_in(sample, "in_flight"),
        dead=count_in(sample, "dead"),
        oldest_seconds=number_in(sample, "oldest_seconds") if count_in(sample, "ready") else 0.0,
        slo_seconds=number_in(settings, "slo_seconds"),
        paused=sample.get("paused") is True,
        done=known_count_in(sample, "deleted_total"),
        p99_over_slo=number_in(waited, "p99_over_slo") if waited.get("leases") else None,
        rule=text_in(decision, "rule"),
        limited_by=_texts(decision, "limited_by"),
        notes=(*_texts(decision, "notes"), *_suspected(count_in(pool, "suspects"))),
        concern_kinds=_texts(concern, "kinds"),
        concern=text_in(concern, "why"),
        ages=text_in(sample, "ages") or "exact",
        states=_states(pool, text_in(settings, "queue"), is_paused=sample.get("paused") is True),
    )


def _states(pool: Json, queue: str, *, is_paused: bool) -> tuple[str, ...]:
    """Return the published states, with the queue's pause as it is now."""
    pause = describe_pause(queue)
    return (*([pause] if is_paused else []), *[state for state in _texts(pool, "states") if state != pause])


def _worker(worker: Json, now_seconds: float) -> WorkerFigures:
    state = text_in(worker, "state")
    notes = [word for word in ("forked", "adopted") if worker.get(word)]
    condition, node = text_in(worker, "condition"), text_in(worker, "node")
    if node:
        notes.append(f"on {node}")
    if state == "unresponsive" or (
        condition and (state in _LEAVING or state == "starting")
    ):  # it is also told while it is ended for that
        notes.append(condition or "neither holds nor requests a lease")
    if worker.get("replaced_by"):
        notes.append(f"replaced by {worker['replaced_by']}")
    return WorkerFigures(
        worker=text_in(worker, "worker"),
        pool=text_in(worker, "pool"),
        pid=known_count_in(worker, "pid"),
        state="leasing" if state == "idle" and worker.get("leasing") is True else _SHOWN_STATES.get(state, state),
        state_seconds=_seconds_since(worker, "since", now_seconds),
        tasks=tuple([_task(one) for one in mappings_of(worker.get("tasks"))]),
        holding=count_in(worker, "holding"),
        finished=count_in(worker, "finished"),
        memory_bytes=count_in(worker, "memory_bytes"),
        age_seconds=_seconds_since(worker, "spawned_at", now_seconds),
        notes=tuple(notes),
    )


def _unsupervised(worker: Json, now_seconds: float) -> WorkerFigures:
    tasks = tuple([_task(one) for one in mappings_of(worker.get("tasks"))])
    host, queues = text_in(worker, "host"), ", ".join(_texts(worker, "queues"))
    return WorkerFigures(
        worker=text_in(worker, "worker"),
        pool=text_in(worker, "pool") or UNSUPERVISED,
        pid=known_count_in(worker, "pid") or None,
        state=text_in(worker, "state"),
        state_seconds=tasks[0].held_seconds if tasks else number_in(worker, "silent_seconds"),
        tasks=tasks,
        holding=count_in(worker, "holding"),
        finished=count_in(worker, "finished"),
        memory_bytes=0,
        age_seconds=_seconds_since(worker, "since", now_seconds) if worker.get("since") else 0.0,
        notes=(*([f"on {host}"] if host else []), *([f"queue {queues}"] if queues else [])),
    )


def _task(task: Json) -> RunningTask:
    return RunningTask(text_in(task, "task"), number_in(task, "held_seconds"))


def _suspected(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return ("1 suspect waits" if count == 1 else f"{count:,} suspects wait",)


def _seconds_since(values: Json, name: str, now_seconds: float) -> float:
    return max(0.0, now_seconds - number_in(values, name)) if values.get(name) is not None else 0.0


def _texts(values: Json, name: str) -> tuple[str, ...]:
    return tuple(map(str, list_in(values, name)))
