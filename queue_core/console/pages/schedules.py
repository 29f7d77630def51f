"""Schedules: their next and last ticks; run one now, pause it."""

from collections.abc import Mapping
from typing import Final

from queue_core.console.api import quoted
from queue_core.console.call import PageCall
from queue_core.console.pages.page import Act, ConsolePage


async def schedules(call: PageCall) -> Mapping[str, object]:
    """Return all schedules."""
    found = await call.get("/v1/schedules")
    return {"schedules": found["schedules"]}


async def _call_verb(call: PageCall, verb: str) -> None:
    await call.post(f"/v1/schedules/{quoted(call.path['schedule'])}/{verb}")


async def run(call: PageCall, _form: Mapping[str, str]) -> str:
    """Add a task of a schedule now."""
    await _call_verb(call, "run")
    return f"Added a task for schedule {call.path['schedule']}."


async def pause(call: PageCall, _form: Mapping[str, str]) -> str:
    """Add no more ticks."""
    await _call_verb(call, "pause")
    return f"Schedule {call.path['schedule']} paused."


async def resume(call: PageCall, _form: Mapping[str, str]) -> str:
    """Add ticks again."""
    await _call_verb(call, "resume")
    return f"Schedule {call.path['schedule']} resumed."


_OF_SCHEDULE: Final = "/schedules/{schedule:path}"
PAGES: Final = (
    ConsolePage("/schedules", "Schedules", "schedules", "schedules.html", schedules, needs="/v1/schedules"),
)
ACTIONS: Final[dict[str, Act]] = {
    f"{_OF_SCHEDULE}/run": run,
    f"{_OF_SCHEDULE}/pause": pause,
    f"{_OF_SCHEDULE}/resume": resume,
}
