"""Say on a task's page that no worker leases its tag: by what supervisors registered and by calls of workers."""

from collections.abc import Mapping
from typing import cast

from queue_core.config.pool_tags import PoolTags, describe_unserved, is_served
from queue_core.console.api import ApiProblemError, quoted
from queue_core.console.call import PageCall
from queue_core.verbs.served_tags import KIND, ServedTags, is_leased_by, is_recent, pools_of_facts
from queue_core.verbs.wire import Json

MAX_WORKERS = 1_000
"""Workers whose calls are looked at."""


async def unserved_sentence(call: PageCall, queue: str, tag: str | None) -> str:
    """Return that no worker leases tasks of a tag, as far as that is known and this viewer may know it; else ""."""
    try:
        found = await call.get(f"/v1/registrations/{KIND}")
        facts = {
            str(one["name"]): cast("Mapping[str, str]", one["facts"])
            for one in cast("list[Json]", found["registrations"])
        }
        pools = [PoolTags(name, queue, tags) for name, tags in pools_of_facts(facts, queue).items()]
        if is_served(tag, pools):
            return ""
        present = await call.get(f"/v1/queues/{quoted(queue)}/workers", query=[("limit", str(MAX_WORKERS))])
    except ApiProblemError:  # the viewer's token is for some queues only, or the server is of an earlier version
        return ""
    reports = [_tags(one) for one in cast("list[Json]", present["workers"]) if is_recent(_silent(one))]
    return "" if is_leased_by(reports, tag) else describe_unserved(tag, 1, pools)


def _silent(worker: Json) -> float:
    return float(str(worker["silent_seconds"]))


def _tags(worker: Json) -> ServedTags | None:
    found = worker.get("tags")
    return None if found is None else tuple(cast("list[str | None]", found))
