"""Schedules: their next and last ticks; run one now, pause it."""

from collections.abc import Mapping
from typing import Final

from queue_core.console.call import PageCall
from queue_core.console.pages.page import Act, ConsolePage, act_of
from queue_core.unit.schedule_verbs import PauseSchedule, ResumeSchedule, RunSchedule


async def schedules(call: PageCall) -> Mapping[str, object]:
    """Return all schedules."""
    found = await call.get("/v1/schedules")
    return {"schedules": found["schedules"]}


_OF_SCHEDULE: Final = "/schedules/{schedule:path}"
PAGES: Final = (
    ConsolePage("/schedules", "Schedules", "schedules", "schedules.html", schedules, needs="/v1/schedules"),
)
ACTIONS: Final[dict[str, Act]] = {
    f"{_OF_SCHEDULE}/run": act_of(RunSchedule),
    f"{_OF_SCHEDULE}/pause": act_of(PauseSchedule),
    f"{_OF_SCHEDULE}/resume": act_of(ResumeSchedule),
}
