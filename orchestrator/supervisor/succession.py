"""Keep for the next leader what the leading supervisor knows: learned numbers, orders, its workers, decisions.

It is a copy: a supervisor goes on with the files of its own state directory, unless another one has led since. So one
without a disk, in a container or a Pod, begins with what is known (ADR 141). What another program wrote is read
leniently.
"""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.config.overrides import overrides_from_json, overrides_to_json
from orchestrator.fleet.workers import RememberedWorker
from orchestrator.runtime import WorkerHandle
from orchestrator.source import WorkSource
from orchestrator.state.decisions import instant_in
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.log_once import LogOnce
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.snapshot import WallTime, handle_in, memories_in, snapshot_of, wall_time_in, workers_in
from queue_core.log import get_logger

log = get_logger()

CHANGED_SECONDS: Final = 10.0
"""How soon a change of the workers, the orders or the decisions is kept, at most."""
LEARNED_SECONDS: Final = 60.0
"""The same for learned numbers alone, which change all the time; nothing is written while nothing changes."""
AGAIN_SECONDS: Final = 600.0
"""An unchanged text is written again after this time: a leader that was too late may have written another."""
MAX_BYTES: Final = 384 * 1024
"""Size of the text, at most; what has no room is left out: the oldest decisions first, then details of workers."""
MAX_DECISIONS: Final = 200
"""Decisions that are kept, at most."""

_VERSION: Final = 1
_WORKER_FACTS: Final = (
    "worker",
    "pool",
    "ref",
    "spec_digest",
    "spawned_at",
    "forked",
    "state",
    "replaced_by",
    "ends_at",
    "leaves_for",
)
_AT_ONCE: Final = Monotonic(float("-inf"))


class FleetIdentity:
    """The id of a store's fleet, by which whoever leads finds its containers; "" until ours has led."""

    def __init__(self) -> None:
        self.id = ""


@dataclass(frozen=True, slots=True)
class Legacy:
    """The knowledge that a leader kept.

    Args:
        by: its holder's name.
        orders_at: when its orders changed last, in seconds since the epoch.
        orders: operators' overrides, as JSON.
        names: of all its workers; `handles` and `memories` are of as many as have room.
        decisions: the newest ones, newest first.
    """

    fleet: str
    by: str
    learned: Mapping[str, object] = field(default_factory=dict)
    usage: Mapping[str, object] = field(default_factory=dict)
    orders: Mapping[str, object] = field(default_factory=dict)
    orders_at: float = 0.0
    names: frozenset[str] = frozenset()
    handles: Sequence[WorkerHandle] = ()
    memories: Mapping[str, RememberedWorker] = field(default_factory=dict)
    decisions: Sequence[dict[str, object]] = ()


def legacy_in(text: str | None, *, boot: str, wall: WallTime) -> Legacy | None:
    """Return what a kept text says; None without one, and for one of another version."""
    try:
        kept = json.loads(text or "null")
    except ValueError:
        return None
    match kept:
        case {"version": int() as version, "fleet": str() as fleet, "by": str() as by} if version == _VERSION and fleet:
            times = wall_time_in(kept, boot=boot) or wall
            orders_at = kept.get("orders_at")
            handles = [handle for one in workers_in(kept) if (handle := handle_in(one, wall=times)) is not None]
            return Legacy(
                fleet,
                by,
                _mapping(kept.get("learned")),
                _mapping(kept.get("usage")),
                _mapping(kept.get("orders")),
                float(orders_at) if isinstance(orders_at, int | float) else 0.0,
                frozenset(map(str, _list(kept.get("names")))),
                handles,
                memories_in(kept, wall=times),
                [one for one in _list(kept.get("decisions")) if isinstance(one, dict)],
            )
    return None


def legacy_text(kept: Mapping[str, object]) -> str:
    """Return the text of what is kept, with as many decisions and workers as have room."""
    fitting = dict(kept)
    while len((text := json.dumps(fitting, separators=(",", ":"), default=str)).encode()) > MAX_BYTES:
        largest = next((name for name in ("decisions", "workers", "learned", "names") if fitting.get(name)), None)
        if largest is None:
            break
        part = fitting[largest]
        fitting[largest] = part[: len(part) // 2] if isinstance(part, list) else {}
    return text


class Succession:
    """Keeps what this supervisor knows while it leads, and takes over what another leader kept. Of one thread."""

    def __init__(
        self,
        source: WorkSource,
        files: StateDir,
        *,
        holder: str,
        clock: MonotonicClock,
        boot: str,
        fleet: FleetIdentity | None = None,
    ) -> None:
        self._source = source
        self._files = files
        self._holder = holder
        self._clock = clock
        self._boot = boot
        self._fleet = fleet or FleetIdentity()
        self._changed_at = self._learned_at = self._written_at = _AT_ONCE
        self._known: tuple[object, ...] = ()
        self._written: Mapping[str, object] = {}
        self._errors = LogOnce()

    def of_another(self) -> Legacy | None:
        """Return what another supervisor kept as the last one; None if that was ours, or nobody.

        Raises `SourceUnavailableError`.
        """
        found = legacy_in(self._source.kept(), boot=self._boot, wall=self._wall())
        if found is not None:
            self._fleet.id = found.fleet
        return None if found is None or found.by == self._holder else found

    def take_over(self) -> Legacy | None:
        """Take what another leader kept since we led into our files; None: our own files are the newest.

        Learned numbers are the caller's to take. Raises `SourceUnavailableError`.
        """
        found = self.of_another()
        if not self._fleet.id:
            self._fleet.id = secrets.token_hex(8)
        self._changed_at = self._learned_at = self._written_at = _AT_ONCE
        if found is None:
            return None
        try:
            self._files.check_own()
            self._files.write_usage(found.usage)
            if found.orders_at >= self._files.overrides_changed_at():
                self._files.replace_overrides(overrides_from_json(found.orders))
        except (OSError, ValueError) as error:
            log.warning(events.STATE_DISCARDED, error=str(error))
        known = [instant_in(one) for one in self._files.read_decisions(limit=1)]
        for decision in reversed(found.decisions):
            if not known or instant_in(decision) > known[0]:
                self._files.decisions.append(decision)
        return found

    def keep_if_due(self, pools: Collection[Pool]) -> None:
        """Keep what is known, if it has changed and the last time is long enough ago."""
        now = self._clock.monotonic()
        if now < self._changed_at:
            return
        self._changed_at = Monotonic(now + CHANGED_SECONDS)
        leaving = [(w.worker, w.is_leaving, w.replaced_by) for pool in pools for w in pool.fleet.workers.values()]
        newest = [instant_in(one) for one in self._files.read_decisions(limit=1)]
        known = (leaving, self._files.overrides_changed_at(), newest)
        if known == self._known and now < self._learned_at:
            return
        self._known = known
        self.keep(pools)

    def keep(self, pools: Collection[Pool]) -> None:
        """Keep what is known now, unless that was kept before. An error is logged: the fleet does not depend on it."""
        now = self._clock.monotonic()
        self._learned_at = Monotonic(now + LEARNED_SECONDS)
        content = self._content(pools)
        if content == self._written and now < self._written_at + AGAIN_SECONDS:
            return
        wall_seconds = round(self._clock.wall_seconds(), 3)
        text = legacy_text({**content, "shown_at": wall_seconds, "shown_at_monotonic": now, "boot": self._boot})
        try:
            self._source.keep(text)
        except SourceUnavailableError as error:
            if self._errors.is_new(error):
                log.warning(events.STATE_NOT_WRITTEN, path="the store", error=str(error))
            return
        if self._errors.recovers():
            log.info(events.STATE_RECOVERED, path="the store")
        self._written, self._written_at = content, now

    def _content(self, pools: Collection[Pool]) -> dict[str, object]:
        workers = _facts_of(workers_in(snapshot_of(pools, wall=self._wall())))
        try:
            orders = overrides_to_json(self._files.read_overrides())
        except (OSError, ValueError):
            orders = overrides_to_json({})
        return {
            "version": _VERSION,
            "fleet": self._fleet.id,
            "by": self._holder,
            "learned": {pool.name: pool.state.to_json() for pool in pools if pool.spec},
            "usage": self._files.read_usage(),
            "orders": orders,
            "orders_at": self._files.overrides_changed_at(),
            "names": sorted(str(one["worker"]) for one in workers),
            "workers": workers,
            "decisions": self._files.read_decisions(limit=MAX_DECISIONS),
        }

    def _wall(self) -> WallTime:
        return WallTime(wall_seconds=self._clock.wall_seconds(), monotonic=self._clock.monotonic())


def _facts_of(workers: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    return [{name: one[name] for name in _WORKER_FACTS if one.get(name)} for one in workers]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
