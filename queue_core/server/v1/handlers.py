"""Handlers of the regular endpoints: each takes a call that was admitted and validated, and returns the response."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from types import NoneType
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from queue_core import limits
from queue_core.client.local_calls import lease_lost
from queue_core.errors import InvalidCountError, InvalidRequestError, StoreError
from queue_core.events import QueueEvent
from queue_core.log import get_logger
from queue_core.server import schemas
from queue_core.server.base import events
from queue_core.server.base.event_stream import event_json
from queue_core.server.base.problems import refusal
from queue_core.server.callers.access import is_in_scope, sees_facts
from queue_core.server.callers.auth import ANONYMOUS_ADMIN, Principal, described
from queue_core.server.callers.open_calls import a_long_wait
from queue_core.server.commit.group_commit import MANY_TASKS_BYTES
from queue_core.server.fast_path import client_call, idempotent_operation
from queue_core.server.leases import reports
from queue_core.server.metrics import read_all_stats
from queue_core.server.state import ServerState
from queue_core.stats import FinishedLease, LeasingWorker, QueueStats, WorkerActivity
from queue_core.task import QueueSpec, TagFilter
from queue_core.unit import present_workers as present
from queue_core.unit import registration_verbs
from queue_core.unit.once import once
from queue_core.unit.pieces import CallProgress, RunPiece, failed_after, piece_after
from queue_core.unit.queue_verbs import Peek
from queue_core.unit.store_verbs import DeleteQueue, Observe, ObserveMany, ReleaseWorker, RetireWorker
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Observation, answers, meaning_of
from queue_core.verbs.registration import MAX_REGISTRATION_SECONDS, WORKERS
from queue_core.verbs.roles import Role

log = get_logger()

B = TypeVar("B", bound=schemas.RequestBody)
T = TypeVar("T")

NOBODY = Principal(Role(0), queues=())
_STRONGEST_FIRST = (Role.ADMIN, Role.OPERATOR, Role.WORKER, Role.PRODUCER, Role.VIEWER)
MAX_LISTED_WORKERS = 10_000
"""Workers in one answer."""


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """The arguments of a handler: the names in the path, the query in order, and the body as its model."""

    name: str
    path: dict[str, str]
    query: Sequence[tuple[str, str]]
    body: schemas.RequestBody
    key: bytes | None = None
    data: bytes = b""
    """Its body as it was sent, where it has a key."""
    caller: Principal | None = None

    @property
    def queue(self) -> str:
        """The queue in the path."""
        return self.path["queue"]

    @property
    def principal(self) -> Principal:
        """The caller; of endpoints without a permission it is nobody with rights."""
        return self.caller if self.caller is not None else NOBODY

    @property
    def client_call(self) -> ClientCall | None:
        """The client's call that this is, if it may be sent again. Raises `InvalidRequestError`."""
        if self.key is None:
            return None
        about = f"{self.name} {self.path} {self.query}"
        return client_call(self.key, meaning_of(about, self.data, by=self.principal.mark))

    @property
    def who(self) -> str:
        """The caller for a log: its email, or its role."""
        return "nobody" if self.caller is None else described(self.caller)

    def read(self, model: type[B]) -> B:
        """Return the body as the endpoint's own model."""
        assert isinstance(self.body, model)
        return self.body

    def one(self, name: str) -> str | None:
        """Return a parameter of the query, the last of its name."""
        found = [value for key, value in self.query if key == name]
        return found[-1] if found else None

    def number(self, name: str, default: int, *, least: int = 0, most: int = limits.MAX_INTEGER) -> int:
        """Return a whole number in the query. Raises `InvalidCountError`."""
        text = self.one(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
            raise InvalidCountError(f"{name} must be a whole number in [{least}, {most}]: {text[:40]!r}")
        return int(text)

    def tags(self) -> TagFilter:
        """Return the filter of `?tag=a&tag=b&kind=oldest`. Raises `InvalidRequestError`."""
        kind = self.one("kind")
        if kind not in (None, "any", "tags", "untagged", "oldest"):
            raise InvalidRequestError(f"kind must be any, tags, untagged or oldest: {kind[:40]!r}")
        return schemas.tag_filter(kind, tuple(value for key, value in self.query if key == "tag"))


def log_change(call: EndpointCall, action: str, **facts: object) -> None:
    """Log who changed what: every write of operators and administrators is an event."""
    log.info(events.QUEUE_CHANGED, action=action, **call.path, **facts, by=call.who)


# -- calls that take effect once (ADR 28, ADR 46) -------------------------------------------------------------------


async def change(
    core: ServerState,
    call: EndpointCall,
    result: type[T],
    verb: Callable[[UnitOfWork], T],
    *,
    size_bytes: int = 0,
) -> T:
    """Run a verb that changes something; with an `Idempotency-Key`, so that it takes effect once.

    Args:
        result: the type of the verb's result, which is stored as JSON.
        size_bytes: see `Committer.submit`.
    """
    adapter: TypeAdapter[T] = _adapter(cast("Any", result))

    def run(work: UnitOfWork, client_call: ClientCall | None) -> T:
        return once(work, client_call, verb, encode=adapter.dump_json, decode=adapter.validate_json)

    return await core.committer.run(idempotent_operation(call.client_call, run), size_bytes=size_bytes)


async def in_pieces(core: ServerState, call: ClientCall | None, run: RunPiece) -> int:
    """Run a call of several transactions to its end; return how many tasks it changed, by whichever server.

    Raises the store's error, which says what was done before it failed.
    """
    done = CallProgress()
    while not done.is_over:
        try:
            done = await core.committer.run(piece_after(done, call, run), size_bytes=MANY_TASKS_BYTES)
        except StoreError as error:
            raise failed_after(done, error) from error
    return done.total


@cache
def _adapter(result: Any) -> TypeAdapter[Any]:
    return TypeAdapter(result)


# -- workers and producers ------------------------------------------------------------------------------------------


async def release(core: ServerState, call: EndpointCall) -> answers.ReleasedLeases:
    params = call.read(reports.ReleaseRequest)
    tokens = core.seals.opened(params.tokens, call.principal)
    releases = [replace(one, token=token) for one, token in zip(params.values(), tokens.plain, strict=True)]

    def run(work: UnitOfWork, client_call: ClientCall | None) -> list[FinishedLease | None]:
        return work.release(call.queue, releases, call=client_call)

    outcomes = await core.committer.run(idempotent_operation(call.client_call, run))
    lost = [token for token, outcome in zip(params.tokens, outcomes, strict=True) if outcome is None]
    if lost:
        raise lease_lost("release", lost)
    return {"released": [outcome for outcome in outcomes if outcome is not None]}


# -- administrators -------------------------------------------------------------------------------------------------


async def list_queues(core: ServerState, call: EndpointCall) -> answers.QueueListReply:
    return {"queues": core.access.visible(call.principal, await core.read(lambda work: work.transaction.queues()))}


async def show_queue(core: ServerState, call: EndpointCall) -> QueueSpec:
    return await core.read(lambda work: work.transaction.queue(call.queue))


async def set_queue(core: ServerState, call: EndpointCall) -> answers.Created:
    spec = call.read(schemas.QueueBody).value(call.queue)
    if call.principal.is_admin:
        created = await change(core, call, bool, lambda work: work.put_queue(spec))
    else:
        created = await change(core, call, bool, lambda work: work.declare_queue(spec))
        if not created:
            return {"created": False}
    core.access.forget(call.queue)
    core.body_limit.learn_one(spec)
    log_change(call, "create" if created else "set")
    return {"created": created}


def forget_queue(core: ServerState, _call: EndpointCall, verb: DeleteQueue, _count: int) -> None:
    """Let waiting calls learn that their queue is gone."""
    core.access.forget(verb.queue)
    core.waiting.retry_queue(verb.queue)


# -- reading --------------------------------------------------------------------------------------------------------


class EveryStats(TypedDict):
    """The counts of all queues at one instant."""

    queues: list[QueueStats]
    as_of: int


async def all_stats(core: ServerState, call: EndpointCall) -> EveryStats:
    now, found = await core.read(lambda work: read_all_stats(work, core.access, call.principal))
    return {"queues": list(found), "as_of": now}


class Caller(TypedDict):
    """The caller, as its token names it."""

    role: Annotated[str, Field(description="The role that allows most, of those of the token.")]
    email: Annotated[str | None, Field(description="The owner of the token; null: it names none.")]
    queues: Annotated[list[str] | None, Field(description="Patterns of the queues that it is for; null: all.")]
    by_email: Annotated[bool, Field(description="Whether its email decides what it may see: a queue has an acl.")]


async def me(core: ServerState, call: EndpointCall) -> Caller:
    caller = call.caller or ANONYMOUS_ADMIN
    by_email = False
    if not caller.is_admin:
        specs = await core.read(lambda work: work.transaction.queues())
        by_email = any(spec.user_emails or spec.writer_emails for spec in specs)
    strongest = next(role for role in _STRONGEST_FIRST if role & caller.role)
    return {
        "role": str(strongest.name).lower(),
        "email": caller.email,
        "queues": _listed(caller.queues),
        "by_email": by_email,
    }


def _listed(patterns: Sequence[str] | None) -> list[str] | None:
    return None if patterns is None else list(patterns)


def read_peek(call: EndpointCall) -> Peek:
    given = call.read(schemas.PeekRequest)
    return Peek(call.queue, given.filter(), given.wanted(), given.names, given.after, given.limit, given.payload_bytes)


def read_observe(call: EndpointCall) -> Observe:
    given = call.read(schemas.ObserveRequest)
    return Observe(call.queue, given.filter(), given.after, given.workers, given.ahead_seconds)


def with_lease_calls(core: ServerState, verb: Observe, found: Observation) -> Observation:
    """Return an observation with the lease calls that this server knows."""
    return replace(found, heard=_present_workers(core, verb.queue, verb.workers))


async def observe_many(core: ServerState, call: EndpointCall) -> schemas.ObservationsOut:
    queries = [one.value() for one in call.read(schemas.ObserveManyRequest).looks]
    names = {query.queue for query in queries}

    def read(work: UnitOfWork) -> list[Observation | None]:
        core.access.check_each(work, call.principal, names, "list")
        return ObserveMany(queries).run(work)

    found = await core.read(read)
    observations = [
        one if one is None else replace(one, heard=_present_workers(core, query.queue, query.workers))
        for one, query in zip(found, queries, strict=True)
    ]
    return {"observations": observations}


def _present_workers(core: ServerState, queue: str, workers: Sequence[str]) -> tuple[WorkerActivity, ...]:
    now = core.service.clock.monotonic()
    return tuple(one.describe(now=now) for one in core.waiting.presence.find(queue, workers))


async def recent_events(core: ServerState, call: EndpointCall) -> schemas.EventsOut:
    limit = call.number("limit", 100, least=1, most=core.options.recent_events)
    after = call.number("after", max(0, core.ring.total - limit))
    recent = core.ring.recent(after=after, limit=limit)
    shown = await visible_events(core, call.principal, recent.events)
    return {
        "events": [{"id": number, **event_json(event)} for number, event in shown],
        "cursor": recent.cursor,
        "missed": recent.missed,
    }


async def visible_events(
    core: ServerState, caller: Principal, recent: Sequence[tuple[int, QueueEvent]]
) -> Sequence[tuple[int, QueueEvent]]:
    """Return those of the events whose queues' tasks the caller may see; those of a deleted queue are hidden."""
    if core.access.sees_all(caller) or not recent:
        return recent
    if caller.is_admin:
        return [one for one in recent if is_in_scope(caller, one[1].queue)]
    specs = await core.read(lambda work: work.transaction.queues())
    visible = {spec.name for spec in core.access.visible(caller, specs, "list")}
    is_whole = caller.queues is None
    return [one for one in recent if one[1].queue in visible or (is_whole and not one[1].queue)]


# -- supervisors ----------------------------------------------------------------------------------------------------


def wake_retired(core: ServerState, _call: EndpointCall, verb: RetireWorker, retired: object) -> None:
    """End the waiting calls of a worker that was fenced."""
    if retired or verb.busy == "finish":
        core.waiting.retry_worker(verb.worker)


def wake_released(core: ServerState, _call: EndpointCall, verb: ReleaseWorker, _finished: object) -> None:
    """End the waiting calls of a worker that is dead."""
    core.waiting.retry_worker(verb.worker)


async def worker_activity(core: ServerState, call: EndpointCall) -> schemas.WorkerActivities:
    limit = call.number("limit", MAX_LISTED_WORKERS, least=1, most=MAX_LISTED_WORKERS)
    prefix, now = call.one("prefix") or "", core.service.clock.monotonic()
    found = islice(core.waiting.presence.with_prefix(call.queue, prefix), limit)
    return {"workers": [one.describe(now=now) for one in found]}


class PresentWorkers(TypedDict):
    """Workers that lease from the queues, by name; at most 1,000."""

    workers: list[LeasingWorker]


async def present_workers(core: ServerState, call: EndpointCall) -> PresentWorkers:
    now = core.service.clock.monotonic()
    heard = [(one.queue, one.describe(now=now)) for one in core.waiting.presence.recent(now=now)]

    def read(work: UnitOfWork) -> list[LeasingWorker]:
        found = present.present_workers(work, heard)
        if core.access.sees_all(call.principal):
            return found
        visible = {spec.name for spec in core.access.visible(call.principal, work.transaction.queues(), "look")}
        return [one for one in found if visible.issuperset(one.queues)]

    return {"workers": await core.read(read)}


class RegisterRequest(schemas.RequestBody):
    """Facts of a program under a name of its own, and how long they hold unless they are renewed."""

    name: str = Field(min_length=1, max_length=limits.MAX_WORKER_CHARACTERS)
    facts: dict[str, str] = Field({}, max_length=100)
    seconds: float = Field(ge=0, le=MAX_REGISTRATION_SECONDS, description="0 ends the registration.")


async def register(core: ServerState, call: EndpointCall) -> answers.Done:
    return await _register(core, call, call.path["kind"])


async def _register(core: ServerState, call: EndpointCall, kind: str) -> answers.Done:
    params = call.read(RegisterRequest)

    def register_here(work: UnitOfWork) -> None:
        registration_verbs.register(work, kind, params.name, params.facts, seconds=params.seconds)

    await change(core, call, NoneType, register_here)
    return {}


async def register_worker(core: ServerState, call: EndpointCall) -> answers.Done:
    return await _register(core, call, WORKERS)


async def registrations(core: ServerState, call: EndpointCall) -> answers.RegistrationList:
    kind = call.path["kind"]
    found = await core.read(lambda work: registration_verbs.registrations(work, kind))
    return {"registrations": [one for one in found if sees_facts(call.principal, one.facts)]}


async def backup(core: ServerState, call: EndpointCall) -> schemas.BackedUp:  # noqa: ARG001 - a handler
    made = await core.back_up()
    return {"file": str(made.file), "size_bytes": made.size_bytes, "tasks": made.tasks}


async def vacuum(core: ServerState, call: EndpointCall) -> schemas.Vacuumed:  # noqa: ARG001 - a handler
    before, after = await core.vacuum()
    return {"size_bytes_before": before, "size_bytes": after}


async def wait(core: ServerState, call: EndpointCall) -> schemas.ReadyQueue:
    params = call.read(schemas.WaitRequest)
    limits.check_wait_seconds(params.wait_seconds)
    wanted = [(one.queue, one.filter()) for one in params.queues]
    names = {one.queue for one in params.queues}
    await core.read(lambda work: core.access.check_each(work, call.principal, names, "look"))
    with a_long_wait(core.long_waits, call.principal):
        return {"queue": await wait_ready(core, wanted, seconds=params.wait_seconds)}


async def wait_ready(core: ServerState, wanted: Sequence[tuple[str, TagFilter]], *, seconds: float) -> str | None:
    """Return the first queue of `wanted` that has a ready task, as soon as one has, or None after `seconds`."""

    def first_ready(work: UnitOfWork) -> str | None:
        return next((queue for queue, tags in wanted if work.stats(queue, tags).ready), None)

    clock = core.service.clock
    ends_at = clock.monotonic() + seconds
    while True:
        watch = core.watch(wanted)
        try:
            if (queue := await core.read(first_ready)) is not None:
                return queue
            left = ends_at - clock.monotonic()
            if left <= 0 or core.waiting.is_stopping:
                return None
            await watch.wait(left)
        finally:
            watch.close()


# -- health ---------------------------------------------------------------------------------------------------------


async def live(core: ServerState, call: EndpointCall) -> schemas.Health:  # noqa: ARG001 - a handler
    return core.health()


async def ready(core: ServerState, call: EndpointCall) -> schemas.Health:  # noqa: ARG001 - a handler
    try:
        await core.readiness.check()
    except StoreError as error:
        raise refusal(503, "not-ready", str(error)) from error
    held = core.snapshots.held
    return core.health() if held is None else {**core.health(), "status": "degraded", "reasons": [held.sentence]}
