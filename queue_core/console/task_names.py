"""The tasks that a text means: by their name, or by the id that Celery gave them, also ended ones (ADR 118)."""

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from queue_core.console.api import ApiProblemError, quoted
from queue_core.console.call import PageCall
from queue_core.limits import MAX_TASK_NAME_CHARACTERS
from queue_core.task import CELERY_ID_FORM
from queue_core.verbs.wire import Json

MAX_QUEUES: Final = 50
"""Queues that one look asks, at most."""
_MAX_NAMES: Final = 20
"""Tasks of one queue that a text means, at most: retries of Celery's have one id."""


async def tasks_meant(call: PageCall, queues: Sequence[str], text: str) -> list[tuple[str, str]]:
    """Return the queue and name of each task that a text means, those that are to be done first."""
    if not text or len(text) > MAX_TASK_NAME_CHARACTERS:
        return []
    asked = list(queues[:MAX_QUEUES])
    found = await asyncio.gather(*(_names_in(call, queue, text) for queue in asked))
    return [(queue, name) for queue, names in zip(asked, found, strict=True) for name in names]


async def named_by_celery(call: PageCall, queue: str, text: str) -> list[str]:
    """Return the names of the live tasks with this id of Celery's; none for those who may not search payloads."""
    if not call.keeps_payloads or not CELERY_ID_FORM.fullmatch(text):
        return []
    body: Json = {"contains": f'"id":"{text}"', "limit": _MAX_NAMES}
    return await _listed(call, f"/v1/queues/{quoted(queue)}/search", body, "tasks")


async def _names_in(call: PageCall, queue: str, text: str) -> list[str]:
    path = f"/v1/queues/{quoted(queue)}"
    there, by_id, ended = await asyncio.gather(
        _listed(call, f"{path}/peek", {"names": [text], "limit": 1}, "tasks"),
        named_by_celery(call, queue, text),
        _listed(call, f"{path}/history", {"names": [text], "limit": _MAX_NAMES}, "leases"),
    )
    return list(dict.fromkeys([*there, *by_id, *ended]))


async def _listed(call: PageCall, path: str, body: Json, field: str) -> list[str]:
    """Return the names in an answer; none where the queue is gone meanwhile, or no task can have such a name."""
    try:
        found = await call.post(path, body)
    except ApiProblemError:
        return []
    return [str(one["name"]) for one in cast("list[Json]", found[field])]
