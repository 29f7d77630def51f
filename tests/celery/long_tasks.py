"""C8: a task much longer than its lease, one prefetched behind it and one with an eta run once each."""

from contextlib import AbstractContextManager, ExitStack

from tests.celery.claims import Claim, Conditions, Figure
from tests.celery.sites import Site, a_site

TASK_SECONDS = 240.0
LEASE_SECONDS = 10.0
TASKS = ("long", "behind", "due")


def claims() -> list[Claim]:
    """Return this section's claims."""
    return [Claim("C8", "a 240 s task on a 10 s lease, one prefetched, one with an eta", measure, of_versions=True)]


def measure(conditions: Conditions) -> Figure:
    """Run the three with each pool, and on Redis with prefork, all at the same time."""
    with ExitStack() as stack:
        sites = {
            pool: (pool, stack.enter_context(a_long_site(conditions.stores[0], conditions, LEASE_SECONDS)))
            for pool in conditions.pools
        }
        sites["plain redis"] = ("prefork", stack.enter_context(a_long_site("plain redis", conditions, LEASE_SECONDS)))
        for pool, site in sites.values():
            site.start("one", pool=pool)
            begin(site, TASK_SECONDS)
        runs = {name: runs_of(site, TASK_SECONDS) for name, (_, site) in sites.items()}
    compared = runs.pop("plain redis")
    is_met = all(counts == [1, 1, 1] for counts in runs.values())
    text = "; ".join(f"{name} {counts}" for name, counts in runs.items())
    return Figure(f"runs {text}; plain redis {compared}", "one run each", is_met)


def a_long_site(store: str, conditions: Conditions, lease_seconds: float) -> AbstractContextManager[Site]:
    """Return a site whose workers hold tasks with an eta, and prefetch."""
    options = {"LAB_LEASE_SECONDS": str(lease_seconds), "LAB_ETA": "worker", "LAB_PREFETCH": "4"}
    return a_site(store, conditions.folder, version=conditions.version, **options)


def begin(site: Site, seconds: float) -> None:
    """Send the three tasks: one that takes `seconds`, one that waits behind it, and one that is due in half of them."""
    site.send("nap", "long", seconds)
    site.begun("long")
    site.send("nap", "behind", 0.1)
    site.send("nap", "due", 0.1, countdown=seconds / 2)


def runs_of(site: Site, seconds: float) -> list[int]:
    """Wait for the three, and until the broker has nothing left; return how often each has begun."""
    for name in TASKS:
        site.ended(name, seconds=seconds + 60)
    site.wait_quiet(seconds=4 * seconds)
    return [len(site.runs(name)) for name in TASKS]
