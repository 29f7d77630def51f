"""Say how many workers failed lately, and how the last of them ended. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from queue_core.process.wording import counted, shown_setting

RECENT_SECONDS: Final = 600.0
"""How long a worker's failure is shown beside the figures."""
MAX_DEATHS_COUNTED: Final = 100


def describe_deaths(deaths: Sequence[Mapping[str, object]], *, now_seconds: float) -> str:
    """Return a sentence on the workers that failed lately; "" for none. `deaths`: of failures, newest first."""
    since = now_seconds - RECENT_SECONDS
    recent = [one for one in deaths if isinstance(at := one.get("at"), int | float) and at > since]
    if not recent:
        return ""
    many = "at least " if len(recent) >= MAX_DEATHS_COUNTED else ""
    within = f"{many}{counted(len(recent), 'worker')} died within {shown_setting(RECENT_SECONDS)}"
    return f"{within}; last {recent[0].get('worker')}: {recent[0].get('detail') or recent[0].get('cause')}"
