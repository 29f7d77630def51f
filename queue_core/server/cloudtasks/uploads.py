"""UploadQueueYaml: the queues of the server made what an uploaded queue.yaml says, in one step."""

from queue_core.config.yaml_document import DocumentError
from queue_core.queue_files.plan import plan_of
from queue_core.queue_files.yaml import read_queue_yaml
from queue_core.server.cloudtasks.call import CloudTasksCall
from queue_core.server.cloudtasks.failures import invalid
from queue_core.server.cloudtasks.fields import MessageReader, Values
from queue_core.server.cloudtasks.json_codec import values_of
from queue_core.server.state import ServerState
from queue_core.unit_of_work import UnitOfWork

NAME = "queue.yaml"


async def upload_queue_yaml(core: ServerState, call: CloudTasksCall) -> Values:
    """The file is definitive: queues it does not list are paused. Of push queues the names are kept."""
    try:
        text = _text(call.fields.fields("httpBody"))
        entries = await core.in_thread(lambda: read_queue_yaml(text, name=NAME))  # the longest takes a second and more
    except DocumentError as error:
        raise invalid("\n".join(error.lines)) from error

    def step(turn: UnitOfWork) -> None:
        before = turn.transaction.storage().limit_bytes
        plan = plan_of(entries, turn.transaction.queues(), storage_limit_bytes=before)
        if plan.storage is not None:
            turn.set_storage_limit(entries.total_storage_limit_bytes)
        for change in plan.changes:
            if change.spec is not None:
                turn.put_queue(change.spec)
            if change.pausing is not None:
                turn.set_paused(change.queue, "paused" if change.pausing == "pause" else "running")

    await core.committer.run(step)
    return {}


def _text(body: MessageReader) -> str:
    data = body.data("data")
    if not data.strip():
        raise invalid(f"the body must be a {NAME}; `queue:` with nothing under it means no queues, and pauses all")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"{NAME}: byte {error.start} is not UTF-8") from error


def http_body(content_type: str, body: bytes, *, data: object) -> Values:
    """What came over REST: the file itself, or JSON (as `data`) that holds it in base64."""
    if isinstance(data, dict) and "data" in data:
        return values_of("HttpBody", data, place="http_body.")
    return {"contentType": content_type, "data": body}
