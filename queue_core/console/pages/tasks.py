"""One task: its payload, headers, and what it went through."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from queue_core.console.api import ApiProblemError, ApiReply, quoted
from queue_core.console.call import PageCall, whole_task
from queue_core.console.pages.page import Act, ConsolePage
from queue_core.console.payload import shown_payload
from queue_core.console.timeline import timeline
from queue_core.http_api.values import Json

SHOWN_BYTES: Final = 65_536
"""Bytes of a payload on a page, at most."""


async def task(call: PageCall) -> Mapping[str, object]:
    """Return a task, live, dead or ended, with its timeline."""
    queue, name = call.path["queue"], call.path["task"]
    path = f"/v1/queues/{quoted(queue)}"
    found, ended = await asyncio.gather(
        call.post(f"{path}/peek", {"names": [name], "limit": 1, "payload_bytes": SHOWN_BYTES + 1}),
        call.post(f"{path}/history", {"names": [name], "limit": 100}),
    )
    tasks, leases = cast("list[Json]", found["tasks"]), cast("list[Json]", ended["leases"])
    if not tasks and not leases:
        gone = f"Queue {queue} has no task {name}, and its history of ended leases has none either."
        raise ApiProblemError(ApiReply(404, {"detail": gone}))
    present = whole_task(tasks[0]) if tasks else None
    steps = timeline(present, leases)
    payload = None if present is None else shown_payload(str(present["payload"]), most_bytes=SHOWN_BYTES)
    return {"queue": queue, "name": name, "task": present, "steps": steps, "payload": payload, "ended": leases}


async def redrive(call: PageCall, _form: Mapping[str, str]) -> str:
    """Make a dead task ready again."""
    queue, name = call.path["queue"], call.path["task"]
    await call.post(f"/v1/queues/{quoted(queue)}/redrive", {"names": [name]})
    return f"Task {name} is ready again."


async def delete(call: PageCall, _form: Mapping[str, str]) -> str:
    """Delete a task."""
    queue, name = call.path["queue"], call.path["task"]
    await call.post(f"/v1/queues/{quoted(queue)}/delete-by-name", {"names": [name]})
    return f"Task {name} is deleted."


_OF_TASK: Final = "/queues/{queue}/tasks/{task}"
PAGES: Final = (ConsolePage(_OF_TASK, "Task", "queues", "task.html", task),)
ACTIONS: Final[dict[str, Act]] = {f"{_OF_TASK}/redrive": redrive, f"{_OF_TASK}/delete": delete}
