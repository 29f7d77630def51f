"""The fleet as its supervisor last published it, over HTTP: for `towline top` on other hosts and in other folders."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.base.clock import MonotonicClock
from orchestrator.base.json_fields import mappings_of
from orchestrator.fleet.certificates import is_failure
from orchestrator.http_api.fleet_now import FleetNow
from orchestrator.state.directory import StateDir
from queue_core.server.base.problems import refusal
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads

PATH: Final = "/v1/fleet"
MAX_DECISIONS: Final = 20
MAX_DEATHS: Final = 50
MAX_ENDED: Final = 500
"""Ended workers among which those that failed are looked for."""
_OF_A_DEATH: Final = ("at", "worker", "pool", "cause", "detail", "lived_seconds")


class PublishedFleet(BaseModel):
    """A supervisor's last snapshot, and the newest entries of its journals, newest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alive: bool = Field(description="Whether the supervisor lives.")
    drained: bool = Field(description="Whether its host is drained.")
    age_seconds: float = Field(description="Seconds since the snapshot was published.")
    snapshot: dict[str, object] = Field(description="Pools by name, and workers; times are seconds since the epoch.")
    decisions: list[dict[str, object]] = Field(description="The newest decisions.")
    deaths: list[dict[str, object]] = Field(description="The newest workers that failed, with their cause.")
    templates: dict[str, dict[str, object]] = Field(description="The state of each pool's template.")


def published_fleet(files: StateDir, *, now_seconds: float) -> PublishedFleet | None:
    """Return the fleet of a state directory; None when no supervisor ever ran there.

    `now_seconds`: this host's wall clock. What ended workers wrote is left out: see `logs`.
    """
    snapshot = files.read_snapshot()
    if snapshot is None:
        return None
    shown_at = snapshot.get("shown_at")
    failed = [death for death in files.read_deaths(limit=MAX_ENDED) if is_failure(death)]
    return PublishedFleet(
        alive=files.is_supervised(),
        drained=files.is_drained(),
        age_seconds=max(0.0, now_seconds - shown_at) if isinstance(shown_at, int | float) else 0.0,
        snapshot=snapshot,
        decisions=files.read_decisions(limit=MAX_DECISIONS),
        deaths=[{name: death[name] for name in _OF_A_DEATH if name in death} for death in failed[:MAX_DEATHS]],
        templates={pool: record.to_json() for pool, record in files.read_templates().items()},
    )


def fleet_route(files: StateDir, fleet: FleetNow, clock: MonotonicClock) -> ExtensionRoute:
    """Return the route of the fleet of this state directory, whose files are read in a thread."""

    def read() -> PublishedFleet:
        found = published_fleet(files, now_seconds=clock.wall_seconds())
        if found is None:
            raise refusal(503, "supervisor-not-ready", "the supervisor has published nothing yet: try again")
        now = fleet.read()
        others = [] if now is None else mappings_of(now.snapshot.get("unsupervised"))
        return found.model_copy(update={"snapshot": {**found.snapshot, "unsupervised": others}})

    summary = "Return the fleet as its supervisor last published it."
    return reads(PATH, "fleet", summary, "stats", lambda _call: read(), PublishedFleet, NoQuery)
