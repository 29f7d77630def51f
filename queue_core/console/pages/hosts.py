"""Hosts: all supervisors of the store, which of them leads, and the console of each."""

from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlsplit

from queue_core.console.call import PageCall
from queue_core.console.pages.page import ConsolePage
from queue_core.verbs.wire import Json

SUPERVISORS: Final = "/v1/supervisors"
SILENT_SECONDS: Final = 30.0
"""A supervisor that has not registered for so long, rather than every 20 s, is not well."""


async def hosts(call: PageCall) -> Mapping[str, object]:
    """Return the supervisors by host, the one that leads first."""
    found = cast("list[Json]", (await call.get(SUPERVISORS))["supervisors"])
    rows = sorted(found, key=lambda one: (not one["leads"], str(one["host"]), str(one["name"])))
    leader = next((one for one in rows if one["leads"]), None)
    return {"rows": [(one, console_of(one)) for one in rows], "leader": leader, "silent": SILENT_SECONDS}


def console_of(supervisor: Json) -> str:
    """Return the address of a supervisor's console; "" where it has none that a browser could open.

    The address is what that program registered: only one of the web is made a link.
    """
    url = str(supervisor["url"])
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/console/" if is_web else ""


PAGES: Final = (ConsolePage("/hosts", "Hosts", "hosts", "hosts.html", hosts, needs=SUPERVISORS),)
