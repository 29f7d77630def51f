"""A pool's decisions over HTTP, page by page, and why it has its size: now, or at any recorded time."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from orchestrator.base.clock import MonotonicClock
from orchestrator.base.json_fields import mapping_of
from orchestrator.fleet.figures import figures_of
from orchestrator.http_api.answers import FleetAnswer, FleetQuery, Json, unknown_pool
from orchestrator.state.decisions import decisions_of, instant_in, pool_record
from orchestrator.state.directory import StateDir
from queue_core.server.extensions import ExtensionRoute, reads

MAX_DECISIONS: Final = 1_000


class DecisionsQuery(FleetQuery):
    """A choice of a pool's decisions."""

    before: Annotated[
        float | None, Field(description="Only those before this second since the epoch: the answer's `before`.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_DECISIONS, description="How many at most; 50.")] = 50


class WhyQuery(FleetQuery):
    """A time of a pool, and how closely it is looked at."""

    at: Annotated[float | None, Field(description="A second since the epoch; left out: now.")] = None
    last: Annotated[int, Field(ge=0, le=MAX_DECISIONS, description="Decisions of before, at most; 5.")] = 5
    full: Annotated[bool, Field(description="With every recorded input of the newest decision.")] = False


class PoolDecisions(FleetAnswer):
    """A page of a pool's decisions, newest first."""

    pool: str
    decisions: list[Json] = Field(description="`at` is in seconds since the epoch; the rest as in `pool.decided`.")
    before: float | None = Field(description="Give it as `before` for the next page; null: this is the last one.")


class PoolWhy(FleetAnswer):
    """The reasons of a pool's size, now or at a time."""

    pool: str
    alive: bool = Field(description="Whether its supervisor lives.")
    drained: bool = Field(description="Whether its host is drained.")
    age_seconds: float = Field(description="Seconds since the supervisor published the pool.")
    now: Json | None = Field(description="The decision in force at that time; null: none is on record.")
    decisions: list[Json] = Field(description="The newest decisions up to that time, newest first.")
    sentences: list[str] = Field(description="Sentences that a person has to know beside it; current only.")
    template: Json | None = Field(description="The state of the template that forks its workers; current only.")
    settings: Json | None = Field(description="Its settings in force; current only.")
    inputs: object = Field(description="All inputs of the newest decision; null: not requested, or no longer stored.")


def decision_routes(files: StateDir, clock: MonotonicClock) -> tuple[ExtensionRoute, ...]:
    """Return the routes of the decisions in this state directory."""
    return (
        reads(
            "/v1/pools/{pool}/decisions",
            "pool_decisions",
            "A pool's decisions, newest first.",
            "stats",
            lambda call: pool_decisions(files, call.path["pool"], call.query),
            PoolDecisions,
            DecisionsQuery,
        ),
        reads(
            "/v1/pools/{pool}/why",
            "pool_why",
            "Tell why a pool has its size, now or at a time, as `towline why` does.",
            "stats",
            lambda call: pool_why(files, call.path["pool"], call.query, now_seconds=clock.wall_seconds()),
            PoolWhy,
            WhyQuery,
        ),
    )


def pool_decisions(files: StateDir, pool: str, query: DecisionsQuery) -> PoolDecisions:
    """Return a page of a pool's decisions. Raises `Problem` for an unknown pool."""
    found = decisions_of(files, pool, limit=query.limit + 1, before=query.before)
    if not found and query.before is None:
        _check_known(files, pool)
    page = found[: query.limit]
    return PoolDecisions(pool=pool, decisions=page, before=instant_in(page[-1]) if len(found) > len(page) else None)


def pool_why(files: StateDir, pool: str, query: WhyQuery, *, now_seconds: float) -> PoolWhy:
    """Return why a pool has its size. Raises `Problem` for an unknown pool."""
    snapshot = files.shared_snapshot() or {}
    record = pool_record(files, pool, at=query.at, last=query.last, full=query.full)
    if record.current is None and not record.decisions:
        _check_known(files, pool)
    is_now, is_alive, shown_at = query.at is None, files.is_supervised(), snapshot.get("shown_at")
    template = files.read_templates().get(pool) if is_now else None
    figures = figures_of(snapshot, now_seconds=now_seconds)
    settings = mapping_of(mapping_of(mapping_of(snapshot.get("pools")).get(pool)).get("settings"))
    return PoolWhy(
        pool=pool,
        alive=is_alive,
        drained=files.is_drained(),
        age_seconds=round(max(0.0, now_seconds - shown_at), 3) if isinstance(shown_at, int | float) else 0.0,
        now=record.current,
        decisions=record.decisions,
        sentences=figures.sentences(pool) if is_now and is_alive else [],
        template=template.to_json() if template is not None else None,
        settings=settings if is_now and settings else None,
        inputs=record.inputs,
    )


def known_pools(files: StateDir) -> Mapping[str, object]:
    """Return the pools that the supervisor last published."""
    return mapping_of((files.shared_snapshot() or {}).get("pools"))


def _check_known(files: StateDir, pool: str) -> None:
    if pool not in (known := known_pools(files)):
        raise unknown_pool(pool, known)
