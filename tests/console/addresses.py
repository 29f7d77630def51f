"""An address of every page, with the names that the stage has."""

import re
from collections.abc import Mapping
from typing import Final

from queue_core.console.api import quoted
from queue_core.console.pages import PAGES
from tests.console.stage import DEAD_TASK, DEAD_WORKER, ODD_QUEUE, ODD_WORKER, POOL, QUEUE, SCHEDULE, WORKER

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


def parameters() -> Mapping[str, str]:
    """Return a name for every parameter of a path."""
    return {"queue": QUEUE, "task": DEAD_TASK, "pool": POOL, "worker": WORKER, "schedule": SCHEDULE}


def address_of(path: str) -> str:
    """Return the address below the console of a page's or an action's path."""
    return _PARAMETER.sub(lambda found: quoted(parameters()[found[1]]), path).lstrip("/")


def addresses() -> list[str]:
    """Return the addresses of all pages, and of those that look different for other names."""
    return [*(address_of(page.path) for page in PAGES), *MORE]


MORE: Final = (
    f"queues/{QUEUE}/dead?error=ValueError",
    f"queues/{ODD_QUEUE}",
    f"queues/{ODD_QUEUE}/tags",
    f"queues/{ODD_QUEUE}/leases",
    f"queues/{ODD_QUEUE}/dead",
    f"queues/{QUEUE}/tasks/held-1",
    f"queues/{QUEUE}/matching?change=redrive&state=dead",
    f"pools/{POOL}?at=1",
    "pools/quiet",
    f"workers/{DEAD_WORKER}",
    f"workers/{quoted(ODD_WORKER)}",
)
