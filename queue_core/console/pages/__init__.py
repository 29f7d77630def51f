"""The pages, a module each: which calls a page makes, and what of their replies its template gets."""

from queue_core.console.pages import queues, tasks
from queue_core.console.pages.page import Act, Page

PAGES: tuple[Page, ...] = (*queues.PAGES, *tasks.PAGES)
ACTIONS: dict[str, Act] = {**queues.ACTIONS, **tasks.ACTIONS}
MENU: tuple[tuple[str, str, str, str], ...] = (("queues", "Queues", "queues", ""),)
"""The menu: the section, its name, its address, and the path of the API that it needs."""

__all__ = ["ACTIONS", "MENU", "PAGES", "Act", "Page"]
