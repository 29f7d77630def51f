"""C10: the server is killed and comes back while tasks run: each ends once, and none is renewed for ever."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from tests.celery.claims import Claim, Conditions, Figure
from tests.celery.sites import Site, a_site
from tests.support.eventually import eventually

TASKS = 4
TASK_SECONDS = 15.0
OUTAGE_SECONDS = 8.0
LEASE_SECONDS = 30.0
SETTINGS = {"kept": "", "cancelled": "1"}
"""Of `worker_cancel_long_running_tasks_on_connection_loss`."""
NOT_CANCELLED_BEFORE = {"threads": "5.7"}
"""Pools in which nothing can be cancelled: before these versions Celery's worker ends of the attempt, at any broker."""


def claims() -> list[Claim]:
    """Return this section's claims."""
    title = f"server killed and back in {OUTAGE_SECONDS:.0f} s under {TASKS} late-acknowledged tasks"
    return [Claim("C10", title, measure, of_versions=True)]


def measure(conditions: Conditions) -> Figure:
    """Have an outage with each pool and both settings."""
    notes, short = [], []
    for pool in conditions.pools:
        settings = {**SETTINGS}
        if conditions.version < NOT_CANCELLED_BEFORE.get(pool, ""):
            del settings["cancelled"]
        with ExitStack() as stack:
            sites = {
                name: stack.enter_context(
                    a_site(
                        conditions.stores[0],
                        conditions.folder,
                        version=conditions.version,
                        LAB_CANCELS=cancels,
                        LAB_LEASE_SECONDS=str(LEASE_SECONDS),
                    )
                )
                for name, cancels in settings.items()
            }
            count = 1 if pool == "solo" else TASKS
            found = have_outage(list(sites.values()), pool, count, TASK_SECONDS, OUTAGE_SECONDS)
        for name, (begun, ended, left) in zip(sites, found, strict=True):
            notes.append(f"{pool}, {name}: begun {begun}, ended {ended}, left {left}")
            if (sorted({*ended}), left) != ([1], 0):
                short.append(f"{pool} {name}")
    text = f"short: {', '.join(short)}" if short else "each ended once, nothing left"
    return Figure(text, "each ends once, nothing left", not short, tuple(notes))


Outcome = tuple[list[int], list[int], int]
"""How often each task has begun and ended, and how many the broker has left."""


def have_outage(sites: Sequence[Site], pool: str, count: int, seconds: float, outage_seconds: float) -> list[Outcome]:
    """Kill the servers under running tasks, start them again, and wait for the ends."""
    names = [f"task-{number}" for number in range(count)]
    for site in sites:
        site.start("one", "-c", str(count), pool=pool)
        for name in names:
            site.send("nap", name, seconds)
    for site in sites:
        for name in names:
            site.begun(name)
        assert site.server is not None
        site.server.kill()
    time.sleep(outage_seconds)
    outcomes = []
    for site in sites:
        assert site.server is not None
        site.server.start()
    for site in sites:
        for name in names:
            site.ended(name, seconds=seconds + 60)
        left = _left_in_the_end(site, LEASE_SECONDS + 30)
        outcomes.append(
            ([len(site.runs(name)) for name in names], [len(site.runs(name, "end")) for name in names], left)
        )
    return outcomes


def _left_in_the_end(site: Site, seconds: float) -> int:
    try:
        eventually(lambda: site.left() == 0, seconds=seconds)
    except AssertionError:
        return site.left()
    return 0
