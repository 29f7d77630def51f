"""The settings in force, with their origin, and what is wrong with the file that they are from."""

from collections.abc import Mapping
from typing import Final, cast

from queue_core.console.call import PageCall
from queue_core.console.pages.page import ConsolePage
from queue_core.verbs.wire import Json

PATH: Final = "/v1/supervisor/settings"


async def settings(call: PageCall) -> Mapping[str, object]:
    """Return the settings, those that are not as by default first, or all that have a text in their name."""
    found = await call.get(PATH)
    wanted, shows_all = call.one("q").strip().lower(), bool(call.one("all"))
    every = cast("list[Json]", found["settings"])
    shown = [
        one
        for one in every
        if wanted in str(one["setting"]).lower() and (shows_all or wanted or one["origin"] != "default")
    ]
    return {
        "settings": shown,
        "total": len(every),
        "q": wanted,
        "shows_all": shows_all,
        "not_in_force": found["not_in_force"],
        "mistakes": found["mistakes"],
    }


PAGES: Final = (ConsolePage("/settings", "Settings", "settings", "settings.html", settings, needs=PATH, is_live=False),)
