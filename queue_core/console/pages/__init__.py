"""The pages, a module each: which calls a page makes, and what of their replies its template gets."""

from queue_core.console.pages import (
    events,
    fleet,
    hosts,
    moves,
    pools,
    queues,
    schedules,
    settings,
    tasks,
    what_if,
    workers,
)
from queue_core.console.pages.page import Act, ConsolePage, Give

PAGES: tuple[ConsolePage, ...] = (
    *fleet.PAGES,
    *queues.PAGES,
    *tasks.PAGES,
    *pools.PAGES,
    *what_if.PAGES,
    *settings.PAGES,
    *moves.PAGES,
    *workers.PAGES,
    *schedules.PAGES,
    *events.PAGES,
    *hosts.PAGES,
)
ACTIONS: dict[str, Act] = {
    **fleet.ACTIONS,
    **queues.ACTIONS,
    **tasks.ACTIONS,
    **pools.ACTIONS,
    **workers.ACTIONS,
    **schedules.ACTIONS,
}
FILES: dict[str, Give] = tasks.FILES
MENU: tuple[tuple[str, str, str, str], ...] = (
    ("fleet", "Fleet", "", ""),
    ("queues", "Queues", "queues", ""),
    ("workers", "Workers", "workers", "/v1/workers"),
    ("hosts", "Hosts", "hosts", "/v1/supervisors"),
    ("deaths", "Deaths", "deaths", "/v1/deaths"),
    ("schedules", "Schedules", "schedules", "/v1/schedules"),
    ("events", "Events", "events", "/v1/events"),
    ("moves", "Migrations", "moves", moves.NEEDS),
    ("settings", "Settings", "settings", "/v1/supervisor/settings"),
)
"""The menu: the section, its name, its address, and the path of the API that it needs."""

__all__ = ["ACTIONS", "FILES", "MENU", "PAGES", "Act", "ConsolePage", "Give"]
