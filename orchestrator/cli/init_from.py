"""A towline.yaml's text from the queues of a queue.yaml or queue.xml, with what could not be carried over. Pure."""

import json
import re
from typing import Final

from queue_core.queue_file import QueueFileEntries
from queue_core.task import QueueSpec
from queue_core.units import format_bytes

_PLAIN: Final = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z][A-Za-z0-9-]*", re.IGNORECASE)
_POOL: Final = """\
#   {key}:
#     queue: {key}
#     command: [python, worker.py]  # or app: tasks:app, with handlers of this project's own
#     slo: 30s                    # the longest a task may wait for its lease: what the pool is sized by
#     workers: {{min: 0, max: 8}}
"""


def settings_text(entries: QueueFileEntries, *, head: str, source: str) -> str:
    """The whole file: `head` (store and server), the queues, a pool for each behind `#`, and what is left out.

    Args:
        source: name of the file that the queues come from.
    """
    queues = "".join(_queue(spec) for spec in entries.queues)
    pools = "".join(_POOL.format(key=_key(spec.name)) for spec in entries.queues)
    limit_bytes = entries.total_storage_limit_bytes
    limit = "" if limit_bytes is None else f"total_storage_limit: {format_bytes(limit_bytes)}\n"
    text = f"{head}{limit}\n# Pull queues of {_line(source)}.\n" + (f"queues:\n{queues}" if queues else "queues: {}\n")
    if pools:
        text += (
            f"\n# Pools of workers, one for each queue: give it its program, and take the # away.\n# pools:\n{pools}"
        )
    left = _left_out(entries)
    return (
        text + (f"\n# Not carried over from {_line(source)}:\n" if left else "") + "".join(f"# - {it}\n" for it in left)
    )


def _queue(spec: QueueSpec) -> str:
    lines = []
    if spec.max_leases is not None:
        lines.append(f"max_leases: {spec.max_leases}".ljust(28) + "# task_retry_limit")
    lines.append("on_exhausted: delete".ljust(28) + "# as App Engine does at the limit; dead keeps the task instead")
    if spec.user_emails or spec.writer_emails:
        lines.append("acl:".ljust(28) + "# who may use the REST APIs: see email under server.tokens")
    if spec.user_emails:
        lines.append(f"  users: {_list(spec.user_emails)}")
    if spec.writer_emails:
        lines.append(f"  writers: {_list(spec.writer_emails)}")
    return f"  {_key(spec.name)}:\n" + "".join(f"    {line}\n" for line in lines)


def _left_out(entries: QueueFileEntries) -> list[str]:
    left = []
    if entries.push_queues:
        left.append(f"push queues, as nothing here calls handlers: {', '.join(entries.push_queues)}")
    if not entries.resume_paused_queues:
        left.append("resume_paused_queues: False: a queue that is paused stays so until `towline resume`")
    return left


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _list(texts: tuple[str, ...]) -> str:
    """A list in YAML: JSON's quotes are YAML's."""
    return json.dumps(texts, ensure_ascii=False)


def _line(text: str) -> str:
    """Text that fits into one comment line."""
    return "".join(character if character.isprintable() else "?" for character in text)
