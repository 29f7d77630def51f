"""Operators' orders over HTTP: a pool's size, its pauses, a host's drain, a reload.

An order is written into the supervisor's state directory, as the commands on its host do; its turns heed it within a
second. Each is an event of the supervisor's log, with the caller.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from orchestrator.base import events
from orchestrator.base.clock import MonotonicClock
from orchestrator.base.json_fields import list_in, mappings_of
from orchestrator.config.model import MAX_WORKERS
from orchestrator.config.overrides import (
    MAX_FINISH_SECONDS,
    MAX_SCALE_SECONDS,
    NO_OVERRIDES,
    NOT_DRAINED,
    HostOverride,
    Moment,
    Overrides,
    describe_overrides,
    with_finish,
    with_pause,
    with_size,
)
from orchestrator.config.pools import PoolSpec, bounds_of
from orchestrator.http_api.answers import MAX_SHOWN_NAME, FleetAnswer, FleetQuery, Json, not_now, unknown_pool
from orchestrator.http_api.registry import ListedSupervisor, SupervisorRegistry
from orchestrator.runtimes.procfs import boot
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.view import Heartbeat
from queue_core.log import get_logger
from queue_core.process.loopback import is_loopback
from queue_core.process.terminal import clean
from queue_core.server.base.problems import Problem, refusal
from queue_core.server.callers.auth import Principal, described
from queue_core.server.extensions import CallRoute, ExtensionRoute, NoQuery, RouteCall, reads
from queue_core.server.schemas import EmptyBody, RequestBody

THIS_HOST: Final = "this"
"""A name that every supervisor's host has for itself."""
MAX_WAIT_SECONDS: Final = 5.0
"""How long the answer to a reload is waited for, at most; after that it is asked for again."""
PENDING_SECONDS: Final = 15.0
"""For so long a request to reload that has no answer yet is shared by those who ask for another."""
POLL_SECONDS: Final = 0.05

B = TypeVar("B", bound=RequestBody)
T = TypeVar("T")

log = get_logger()


class ScaleBody(RequestBody):
    """A size by hand, for a while."""

    workers: int | None = Field(ge=0, le=MAX_WORKERS, description="Workers; null: as the settings say, at once.")
    seconds: float = Field(3_600.0, gt=0, le=MAX_SCALE_SECONDS, description="How long it lasts.")
    force: bool = Field(default=False, description="Allow more workers than the pool's max.")


class PausePoolBody(RequestBody):
    """The changes of a pool's size that are paused."""

    changes: Literal["both", "up", "down"] = "both"


class FinishBody(RequestBody):
    """An instant by which waiting work must be done."""

    at: float | None = Field(description="In seconds since the epoch, in the future; null: by no time.")
    utc_offset_seconds: int = Field(0, ge=-86_400, le=86_400, description="Of the clock that it was said by.")


class ReloadBody(RequestBody):
    """How long to wait for the answer."""

    wait_seconds: float = Field(2.0, ge=0, le=MAX_WAIT_SECONDS, description="How long to wait for the answer.")


class ReloadQuery(FleetQuery):
    """A request to reload."""

    request: Annotated[str, Field(max_length=100, description="The `request` of the answer to POST.")]


class PoolOverrides(FleetAnswer):
    """A pool's orders in force after a change."""

    pool: str
    alive: bool = Field(description="Whether its supervisor lives; otherwise the next one applies it.")
    orders: Json = Field(description="`scale`, `paused` and `finish_by`, as far as they are set.")
    sentences: list[str] = Field(description="The same in words.")


class HostState(FleetAnswer):
    """A host and its drain."""

    host: str
    drained: bool = Field(description="Whether no worker is started on it.")
    drained_at: float | None = Field(description="Since when, in seconds since the epoch.")
    alive: bool = Field(description="Whether its supervisor lives.")
    phase: str = Field(description="Of the supervisor, as it published it; `draining` once it heeds a drain.")
    workers: int = Field(description="Workers that are left.")


class Reloaded(FleetAnswer):
    """The answer of a supervisor to a reload."""

    request: str
    answered: bool = Field(description="Whether the supervisor has answered; if not, request `request` again.")
    reloaded: bool = Field(description="Whether the file is in force now.")
    mistakes: list[str] = Field(description="Why it is not: every mistake with its place.")
    changes: list[Json] = Field(description="The changes, by pool.")
    queues: list[str] = Field(description="Queues that were made.")
    schedules: list[str] = Field(description="Schedules that changed.")
    next_start: list[str] = Field(description="Settings that wait for the next start.")


class OperatorCalls:
    """Takes orders for the supervisor of one state directory."""

    def __init__(
        self,
        files: StateDir,
        heartbeat: Heartbeat,
        clock: MonotonicClock,
        *,
        host: str,
        registry: SupervisorRegistry | None = None,
    ) -> None:
        """`registry`: knows where the other supervisors of the store listen."""
        self._files = files
        self._heartbeat = heartbeat
        self._clock = clock
        self._host = host
        self._registry = registry

    def routes(self) -> tuple[ExtensionRoute, ...]:
        """Return the routes, all of which need the permission `operate`."""
        pool, host = "/v1/pools/{pool}", "/v1/hosts/{host}"
        return (
            _operates(
                f"{pool}/scale", "scale_pool", "Give a pool a size for a while.", self.scale, PoolOverrides, ScaleBody
            ),
            _operates(
                f"{pool}/pause", "pause_pool", "Leave a pool at its size.", self.pause, PoolOverrides, PausePoolBody
            ),
            _operates(
                f"{pool}/resume", "resume_pool", "Let a pool change its size.", self.resume, PoolOverrides, EmptyBody
            ),
            _operates(
                f"{pool}/finish-by",
                "finish_pool",
                "Size a pool to be done by a time.",
                self.finish,
                PoolOverrides,
                FinishBody,
            ),
            reads(
                f"{pool}/overrides",
                "pool_overrides",
                "A pool's size by hand, its pauses, and the time it is to be done by.",
                "stats",
                self.show_pool,
                PoolOverrides,
                NoQuery,
            ),
            _operates(f"{host}/drain", "drain_host", "Let a host's workers finish.", self.drain, HostState, EmptyBody),
            _operates(f"{host}/undrain", "undrain_host", "Start workers again.", self.undrain, HostState, EmptyBody),
            reads(
                host,
                "show_host",
                "A host: its drain, and the workers that are left.",
                "stats",
                self.show,
                HostState,
                NoQuery,
            ),
            _operates(
                "/v1/supervisor/reload",
                "reload_supervisor",
                "Read the settings file again.",
                self.reload,
                Reloaded,
                ReloadBody,
            ),
            reads(
                "/v1/supervisor/reload",
                "reload_answer",
                "The answer to a reload.",
                "stats",
                lambda call: self.answer(call.query.request),
                Reloaded,
                ReloadQuery,
            ),
        )

    def scale(self, call: RouteCall[NoQuery, ScaleBody]) -> PoolOverrides:
        """Give a pool a size for a while. Raises `Problem` for more workers than it may have."""
        pool, asked = self.pool_of(call), call.body
        _, most = bounds_of(pool)
        if asked.workers is not None and asked.workers > most and not asked.force:
            detail = (
                f"{asked.workers:,} workers are more than max {most:,} of pool {pool.name}: give at most {most:,}, "
            )
            raise refusal(422, "size-refused", f"{detail}raise pools.{pool.name}.workers.max, or force it")
        now = self.now()
        return self._changed(
            call, pool, "scale", lambda before: with_size(before, asked.workers, seconds=asked.seconds, now=now), now
        )

    def pause(self, call: RouteCall[NoQuery, PausePoolBody]) -> PoolOverrides:
        """Leave a pool at its size."""
        changes = call.body.changes
        return self._changed(call, self.pool_of(call), "pause", lambda before: with_pause(before, changes), self.now())

    def resume(self, call: RouteCall[NoQuery, EmptyBody]) -> PoolOverrides:
        """Let a pool change its size again."""
        return self._changed(call, self.pool_of(call), "resume", lambda before: with_pause(before, "no"), self.now())

    def finish(self, call: RouteCall[NoQuery, FinishBody]) -> PoolOverrides:
        """Require that waiting work is done by an instant. Raises `Problem` for one that is over."""
        pool, asked, now = self.pool_of(call), call.body, self.now()
        if asked.at is not None and asked.at <= now.wall_seconds:
            raise refusal(422, "time-refused", f"at: {asked.at:.0f} is in the past; it is {now.wall_seconds:.0f} now")
        if asked.at is not None and asked.at > now.wall_seconds + MAX_FINISH_SECONDS:
            raise refusal(422, "time-refused", f"at: more than {MAX_FINISH_SECONDS / 86_400:.0f} days ahead")

        def change(before: Overrides) -> Overrides:
            return with_finish(before, asked.at, utc_offset_seconds=asked.utc_offset_seconds, now=now)

        return self._changed(call, pool, "finish-by", change, now)

    def show_pool(self, call: RouteCall[NoQuery, EmptyBody]) -> PoolOverrides:
        """Return a pool's overrides in force."""
        return self._answer_of(self.pool_of(call), self._files.read_overrides(), self.now())

    def drain(self, call: RouteCall[NoQuery, EmptyBody]) -> HostState:
        """Let every worker of this host finish, and start none until `undrain`."""
        return self._set_drained(call, HostOverride(round(self._clock.wall_seconds(), 3)))

    def undrain(self, call: RouteCall[NoQuery, EmptyBody]) -> HostState:
        """Let workers start on this host again."""
        return self._set_drained(call, NOT_DRAINED)

    def show(self, call: RouteCall[NoQuery, EmptyBody]) -> HostState:
        """Return this host's state. Raises `Problem` for another host."""
        self._check_host(call.path["host"])
        return self._host_state()

    def reload(self, call: RouteCall[NoQuery, ReloadBody]) -> Reloaded:
        """Ask the supervisor to read its settings file again, and return its answer if it comes in time."""
        if not self._files.is_supervised():
            raise not_now("no supervisor is running to read its settings again")
        request = self._files.pending_reload(within_seconds=PENDING_SECONDS, now_seconds=self._clock.wall_seconds())
        if request is None:
            request = secrets.token_hex(8)
            self.write(lambda: self._files.request_reload(request))
            self.record(call, "reload", "the settings file is read again")
        until = self._clock.monotonic() + call.body.wait_seconds
        while not (found := self.answer(request)).answered and self._clock.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return found

    def answer(self, request: str) -> Reloaded:
        """Return the supervisor's answer to a reload, as far as there is one."""
        answer = self._files.reload_answer()
        is_answered, mistakes = answer.get("request") == request, answer.get("mistakes")
        if not is_answered:
            answer = {}
        return Reloaded(
            request=request,
            answered=is_answered,
            reloaded=is_answered and not isinstance(mistakes, list),
            mistakes=[str(one) for one in list_in(answer, "mistakes")],
            changes=mappings_of(answer.get("changes")),
            queues=[str(one) for one in list_in(answer, "queues")],
            schedules=[str(one) for one in list_in(answer, "schedules")],
            next_start=[str(one) for one in list_in(answer, "next_start")],
        )

    def _changed(
        self,
        call: RouteCall[NoQuery, B],
        pool: PoolSpec,
        action: str,
        change: Callable[[Overrides], Overrides],
        now: Moment,
    ) -> PoolOverrides:
        in_force = self.write(
            lambda: self._files.change_overrides(pool.name, lambda before: change(before.in_force(now)))
        )
        sentences = describe_overrides(in_force, now)
        self.record(call, action, "; ".join(sentences) or "as its settings say", pool=pool.name)
        return self._answer_of(pool, {pool.name: in_force}, now)

    def _answer_of(self, pool: PoolSpec, overrides: Mapping[str, Overrides], now: Moment) -> PoolOverrides:
        in_force = overrides.get(pool.name, NO_OVERRIDES).in_force(now)
        return PoolOverrides(
            pool=pool.name,
            alive=self._files.is_supervised(),
            orders=in_force.to_json(),
            sentences=describe_overrides(in_force, now),
        )

    def _set_drained(self, call: RouteCall[NoQuery, EmptyBody], override: HostOverride) -> HostState:
        self._check_host(call.path["host"])
        is_drain = override.drained_at is not None
        if not (is_drain and self._files.is_drained()):  # a second drain keeps the time of the first
            self.write(lambda: self._files.write_host_override(override))
            told = "this host is drained" if is_drain else "this host has workers again"
            self.record(call, "drain" if is_drain else "undrain", told)
        return self._host_state()

    def _host_state(self) -> HostState:
        snapshot = self._files.read_snapshot() or {}
        try:
            drained_at = self._files.read_host_override().drained_at
        except (OSError, ValueError):
            drained_at = None
        return HostState(
            host=self._host,
            drained=drained_at is not None,
            drained_at=drained_at,
            alive=self._files.is_supervised(),
            phase=str(snapshot.get("phase") or ""),
            workers=len(mappings_of(snapshot.get("workers"))),
        )

    def _check_host(self, host: str) -> None:
        if host not in {self._host, THIS_HOST}:
            shown = clean(host[:MAX_SHOWN_NAME])
            there = next((one.url for one in self._others() if host in {one.host, one.name} and one.url), "")
            fix = f"call {there}" if there else "GET /v1/supervisors lists those of its store"
            raise refusal(404, "unknown-host", f"this supervisor runs on {self._host}, not on {shown}: {fix}")

    def pool_of(self, call: RouteCall[NoQuery, B]) -> PoolSpec:
        """Return the pool in the path, with the bounds of its settings. Raises `Problem` where it can't be ordered."""
        self.check_takes_calls()
        view, name = self._heartbeat.view, call.path["pool"]
        if name not in view.pools:
            raise unknown_pool(name, view.pools)
        found = view.pools[name]
        return found.settings or found.spec

    def check_takes_calls(self) -> None:
        """Raise `Problem` while the supervisor starts, stops, or stands by for another that leads."""
        view = self._heartbeat.view
        if view.phase in {"starting", "stopping", "stopped"}:
            raise not_now(f"the supervisor is {view.phase}: it takes no orders now")
        if view.phase == "standby" and (self._registry is None or (leading := self._leading_elsewhere())):
            where = "" if self._registry is None else f": {leading}"
            raise not_now(f"this supervisor stands by, without workers: give the order to the one that leads{where}")

    def write(self, change: Callable[[], T]) -> T:
        """Write into the state directory. Raises `Problem` where that can't be."""
        try:
            return change()
        except OSError as error:
            raise _not_written(self._files, error) from error

    def _others(self) -> Sequence[ListedSupervisor]:
        return () if self._registry is None else self._registry.elsewhere()

    def _leading_elsewhere(self) -> str:
        """Return where another supervisor leads; "" where none does, as in the moment before this one leads again."""
        return next((one.url or one.host for one in self._others() if one.leads), "")

    def now(self) -> Moment:
        """Return the present time on this host."""
        return Moment(self._clock.wall_seconds(), self._clock.monotonic(), boot())

    def record(self, call: RouteCall[NoQuery, B], action: str, what: str, **more: str) -> None:
        """Log an order, with its caller."""
        by = named(call.caller, call.address)
        log.info(events.OPERATOR_ACTED, action=action, by=by, sentence=f"{what}: ordered over HTTP by {by}", **more)


def named(caller: Principal, address: str) -> str:
    """Return the caller for a log: its email or its role, and from where it called."""
    who = clean(described(caller))
    return who if not address or is_loopback(address) else f"{who} from {address}"


def _operates(
    path: str,
    name: str,
    summary: str,
    call: Callable[[RouteCall[NoQuery, B]], FleetAnswer],
    answers: type[FleetAnswer],
    takes: type[B],
) -> CallRoute[NoQuery, B]:
    return CallRoute("POST", path, name, summary, "operate", call, answers, NoQuery, takes)


def _not_written(files: StateDir, error: OSError) -> Problem:
    return refusal(507, "state-not-written", f"can't write in {files.path}: {error.strerror}; nothing was changed")
