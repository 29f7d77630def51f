"""One task: its payload, headers, and what it went through."""

import asyncio
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Final, cast

from queue_core.console.api import ApiProblemError, ApiReply, quoted, refused
from queue_core.console.call import PageCall, whole_task
from queue_core.console.command_examples import task_examples
from queue_core.console.matching import FilterError, duration_of, matched, state_of
from queue_core.console.pages.page import Act, ConsolePage, Give
from queue_core.console.payload import hidden_payload, is_redacted, shown_payload
from queue_core.console.served_tags import unserved_sentence
from queue_core.console.task_names import named_by_celery
from queue_core.console.timeline import timeline
from queue_core.limits import MAX_PAYLOAD_BYTES
from queue_core.process.wording import shown_setting
from queue_core.task import CELERY_ID_FORM
from queue_core.verbs.matching import Action
from queue_core.verbs.wire import Json

_WAITING: Final = frozenset({"ready", "held", "delayed"})
SHOWN_BYTES: Final = 65_536
"""Bytes of a payload on a page, at most."""


async def task(call: PageCall) -> Mapping[str, object]:
    """Return a task, live, dead or ended, with its timeline: the address has its name, or the id of Celery."""
    queue, name = call.path["queue"], call.path["task"]
    tasks, leases = await _found(call, queue, name)
    if not tasks and CELERY_ID_FORM.fullmatch(name) and (named := await _named_by_celery(call, queue, name, leases)):
        name = named
        tasks, leases = await _found(call, queue, name)
    if not tasks and not leases:
        gone = f"Queue {queue} has no task {name}, and its history of ended leases has none either."
        raise ApiProblemError(ApiReply(404, {"detail": gone}))
    present = whole_task(tasks[0]) if tasks else None
    steps = timeline(present, leases)
    redact = call.payloads.redact
    shown = None
    if present is not None:
        base64 = str(present["payload"])
        if call.sees_payloads:
            shown = await asyncio.to_thread(shown_payload, base64, most_bytes=SHOWN_BYTES, redact=redact)
        else:
            shown = hidden_payload(base64, most_bytes=SHOWN_BYTES)
        headers = cast("Mapping[str, object]", present["headers"] or {})
        present["headers"] = {name: "***" if is_redacted(name, redact) else one for name, one in headers.items()}
    state = str(present["state"]) if present is not None else ""
    tag = None if present is None or present["tag"] is None else str(present["tag"])
    return {
        "queue": queue,
        "name": name,
        "task": present,
        "steps": steps,
        "payload": shown,
        "ended": leases,
        "same": task_examples(queue, name, state),
        "unserved": await unserved_sentence(call, queue, tag) if state in _WAITING else "",
    }


async def _found(call: PageCall, queue: str, name: str) -> tuple[list[Json], list[Json]]:
    """Return the task of a name, if it is in its queue, and its ended leases."""
    path = f"/v1/queues/{quoted(queue)}"
    found, ended = await asyncio.gather(
        call.post(f"{path}/peek", {"names": [name], "limit": 1, "payload_bytes": SHOWN_BYTES + 1}),
        call.post(f"{path}/history", {"names": [name], "limit": 100}),
    )
    return cast("list[Json]", found["tasks"]), cast("list[Json]", ended["leases"])


async def _named_by_celery(call: PageCall, queue: str, celery_id: str, leases: list[Json]) -> str:
    """Return the name of the task with this id of Celery's, the one that is to be done where there are several."""
    if names := await named_by_celery(call, queue, celery_id):
        return names[0]
    return str(leases[0]["name"]) if leases else ""


async def _change(call: PageCall, change: Action, more: Json) -> None:
    """Change this task, if its state still allows it. Raises `ApiProblemError`."""
    queue, name = call.path["queue"], call.path["task"]
    done = await matched(call, queue, change, {"names": [name], **more}, dry_run=False)
    if not done.changed:
        state = state_of(change).replace("_", " ")
        raise refused(f"Task {name} is no longer {state or 'there'}: nothing was changed.", status=409)


async def redrive(call: PageCall, _form: Mapping[str, str]) -> str:
    """Make a dead task ready again."""
    await _change(call, "redrive", {})
    return f"Task {call.path['task']} was redriven: it is waiting again."


async def release(call: PageCall, _form: Mapping[str, str]) -> str:
    """Give a task's lease back for its worker."""
    await _change(call, "release", {})
    return f"The lease of task {call.path['task']} was released: another worker can take it now."


async def postpone(call: PageCall, form: Mapping[str, str]) -> str:
    """Move the eta of a task that waits for it."""
    try:
        seconds = duration_of("for", form.get("for", ""))
    except FilterError as error:
        raise refused(str(error)) from None
    await _change(call, "postpone", {"eta": round((call.now_seconds + seconds) * 1e6)})
    return f"Task {call.path['task']} postponed for {shown_setting(seconds)}."


async def delete(call: PageCall, _form: Mapping[str, str]) -> str:
    """Delete a task."""
    await _change(call, "delete", {})
    return f"Task {call.path['task']} deleted."


async def payload(call: PageCall) -> tuple[str, bytes]:
    """Return a task's whole payload, and the name of a file for it."""
    queue, name = call.path["queue"], call.path["task"]
    if not call.keeps_payloads:
        raise refused(f"This console does not show whole payloads to the role {call.role}.", status=403)
    body: Json = {"names": [name], "limit": 1, "payload_bytes": MAX_PAYLOAD_BYTES}
    found = await call.post(f"/v1/queues/{quoted(queue)}/peek", body)
    tasks = cast("list[Json]", found["tasks"])
    if not tasks:
        raise refused(f"Queue {queue} has no task {name}.", status=404)
    return f"{name}.bin", a2b_base64(str(tasks[0]["payload"]))


_OF_TASK: Final = "/queues/{queue}/tasks/{task}"
PAGES: Final = (ConsolePage(_OF_TASK, "Task", "queues", "task.html", task),)
ACTIONS: Final[dict[str, Act]] = {
    f"{_OF_TASK}/redrive": redrive,
    f"{_OF_TASK}/release": release,
    f"{_OF_TASK}/postpone": postpone,
    f"{_OF_TASK}/delete": delete,
}
FILES: Final[dict[str, Give]] = {f"{_OF_TASK}/payload": payload}
