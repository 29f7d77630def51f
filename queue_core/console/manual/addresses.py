"""Pages of the manual that explain a page of the console, or a guard that holds a pool back."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FIRST_PAGE: Final = ""
"""The manual's first page, for what has no page of its own."""

PAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "deaths.html": "how-to/deaths.html",
        "events.html": "reference/events.html",
        "fleet.html": "how-to/watching.html",
        "hosts.html": "how-to/daemon.html",
        "login.html": "how-to/console.html#who-may-do-what",
        "moves.html": "how-to/moving.html",
        "pool.html": "explanation/scaling.html",
        "queue_dead.html": "how-to/handlers.html#failures",
        "queue_leases.html": "explanation/tasks.html",
        "queue_matching.html": "how-to/console.html",
        "queue_settings.html": "reference/settings.html#queuesname",
        "queue_tags.html": "how-to/limits.html",
        "queue_tasks.html": "explanation/tasks.html",
        "queues.html": "reference/protocol.html",
        "schedules.html": "how-to/schedules.html",
        "settings.html": "reference/settings.html",
        "stack.html": "how-to/deaths.html#workers-that-hang",
        "task.html": "explanation/tasks.html",
        "what_if.html": "how-to/simulation.html",
        "worker.html": "how-to/deaths.html",
        "workers.html": "how-to/watching.html#states-of-a-worker",
    }
)
"""Pages of the manual by the template of the console's page."""

GUARDS: Final = "explanation/scaling.html#guards"
OF_GUARD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "budget": "explanation/scaling.html#the-budget",
        "contention": "explanation/scaling.html#contention",
        "crash_loop": "how-to/runbook.html#towlinepoolcrashloop",
        "failing_work": "how-to/runbook.html#towlinepoolfailingwork",
        "host_headroom": "explanation/scaling.html#the-host",
        "max": "how-to/runbook.html#towlinepoolatmax",
        "max_pending": "how-to/kubernetes.html",
        "misconfigured": "how-to/runbook.html#towlineworkersmisconfigured",
        "paused": "explanation/scaling.html#overrides",
        "quota": "how-to/kubernetes.html",
        "runtime_unavailable": "how-to/runbook.html#towlinepoolruntimeunavailable",
        "stale_sample": "how-to/runbook.html#towlinesamplestale",
    }
)
"""Pages that tell what to do about a guard; `GUARDS` lists all of them."""


def manual_page(template: str) -> str:
    """Return the manual's page, below `/docs/`, for a page of the console."""
    return PAGES.get(template, FIRST_PAGE)


def manual_of_guard(guard: object) -> str:
    """Return the manual's page, below `/docs/`, for a guard."""
    return OF_GUARD.get(str(guard), GUARDS)
