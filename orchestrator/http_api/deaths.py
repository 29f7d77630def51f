"""How workers ended, over HTTP: a list, and one worker's certificate as `towline why-died` tells it."""

from typing import Annotated, Final

from pydantic import Field

from orchestrator.base.json_fields import mapping_of, mappings_of
from orchestrator.fleet.certificates import (
    AmbiguousWorkerError,
    UnknownDeathError,
    chosen_death,
    is_failure,
    worker_names,
)
from orchestrator.http_api.answers import MAX_SHOWN_NAME, FleetAnswer, FleetQuery, Json
from orchestrator.state.decisions import instant_in
from orchestrator.state.directory import StateDir
from queue_core.process.terminal import clean
from queue_core.server.base.problems import refusal
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads

MAX_DEATHS: Final = 1_000
MAX_READ: Final = 50_000
_OF_A_DEATH: Final[tuple[str, ...]] = (
    "at",
    "worker",
    "pool",
    "cause",
    "detail",
    "lived_seconds",
    "failed_start",
    "held_total",
    "memory_peak_bytes",
)


class DeathsQuery(FleetQuery):
    """A choice of ended workers."""

    pool: Annotated[str | None, Field(max_length=300, description="Only this pool's.")] = None
    before: Annotated[
        float | None, Field(description="Only those before this second since the epoch: the answer's `before`.")
    ] = None
    failures: Annotated[
        bool,
        Field(description="Only workers that failed, were killed, or ended with tasks in their hands."),
    ] = False
    limit: Annotated[int, Field(ge=1, le=MAX_DEATHS, description="How many at most; 50.")] = 50


class Deaths(FleetAnswer):
    """A page of ended workers, newest first."""

    deaths: list[Json] = Field(description="Each with its time, cause and how many tasks it held; no line of it.")
    before: float | None = Field(description="Give it as `before` for the next page; null: this is the last one.")


class Certificate(FleetAnswer):
    """All that is known of a worker's end."""

    death: Json = Field(description="Its cause, memory, last lines, stack, and the tasks that it held.")
    settings: Json | None = Field(description="The settings of its pool, as far as they are known.")


def death_routes(files: StateDir) -> tuple[ExtensionRoute, ...]:
    """Return the routes of the ended workers of this state directory."""
    return (
        reads(
            "/v1/deaths",
            "list_deaths",
            "How workers ended, newest first.",
            "stats",
            lambda call: deaths(files, call.query),
            Deaths,
            DeathsQuery,
        ),
        reads(
            "/v1/deaths/{worker}",
            "death_certificate",
            "One worker's end: its cause, what it held, its last lines. The beginning of its name is enough.",
            "events",
            lambda call: certificate(files, call.path["worker"]),
            Certificate,
            NoQuery,
        ),
    )


def deaths(files: StateDir, query: DeathsQuery) -> Deaths:
    """Return a page of ended workers, without what they wrote: see `certificate`."""
    # The newest are asked for most often, and all that are kept take long to read.
    is_newest = query.pool is None and query.before is None and not query.failures
    found = [
        one
        for one in files.read_deaths(limit=query.limit + 1 if is_newest else MAX_READ)
        if query.pool in (None, one.get("pool"))
        and (query.before is None or instant_in(one) < query.before)
        and (is_failure(one) or not query.failures)
    ]
    page = [_listed(one) for one in found[: query.limit]]
    return Deaths(deaths=page, before=instant_in(page[-1]) if len(found) > len(page) else None)


def certificate(files: StateDir, worker: str) -> Certificate:
    """Return a worker's certificate. Raises `Problem` for a worker that has not died, or is not known."""
    snapshot = files.read_snapshot() or {}
    try:
        death = chosen_death(worker, files.read_deaths(limit=MAX_READ))
    except AmbiguousWorkerError as error:
        raise refusal(404, "unknown-worker", f"{error}; give more of the name") from None
    except UnknownDeathError as error:
        if worker in worker_names(snapshot):
            detail = f"{clean(worker[:MAX_SHOWN_NAME])} has not died; GET /v1/workers shows what it does"
            raise refusal(404, "worker-is-alive", detail) from None
        raise refusal(404, "unknown-worker", f"{error}; GET /v1/deaths lists the latest") from None
    pool = mapping_of(mapping_of(snapshot.get("pools")).get(str(death.get("pool"))))
    return Certificate(death=dict(death), settings=mapping_of(pool.get("settings")) or None)


def _listed(death: Json) -> Json:
    """Return a death without what its worker wrote, and without the names of tasks."""
    fates: list[Json] = [{"fate": one.get("fate")} for one in mappings_of(death.get("held"))]
    return {name: death[name] for name in _OF_A_DEATH if name in death} | {"held": fates}
