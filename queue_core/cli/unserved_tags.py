"""Find at a terminal whether anybody works on the tag of tasks: by the settings file, by what supervisors registered,
and by the lease calls that a server knows."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from queue_core.cli.failure import CommandError
from queue_core.cli.output import print_info
from queue_core.cli.settings_file import read_text
from queue_core.cli.target import TargetOptions
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queues
from queue_core.config.pool_tags import PoolTags, describe_unserved, is_served, pool_tags_in
from queue_core.config.yaml_document import DocumentError, read_document
from queue_core.errors import QueueError
from queue_core.verbs import served_tags
from queue_core.verbs.served_tags import (
    is_leased_by,
    is_recent,
    narrowed_tags,
    registered_tags,
    tags_served_by,
)
from queue_core.worker.functions.target import DEFAULT_FILE


def describe_if_unserved(queues: Queues, queue: str, tag: str | None, *, tasks: int, where: TargetOptions) -> str:
    """Return a sentence if nobody works on so many tasks of a tag, as far as that is known; else ""."""
    pools = known_pools(queues, queue, where)
    if is_served(tag, pools) or _is_leased(queues, queue, tag):
        return ""
    return describe_unserved(tag, tasks, pools)


def warn_of_unserved(queues: Queues, queue: str, tag: str | None, *, tasks: int, where: TargetOptions) -> None:
    """Print a warning if so many tasks of this tag wait for nobody, as far as that is known."""
    if not tasks:
        return
    sentence = describe_if_unserved(queues, queue, tag, tasks=tasks, where=where)
    if not sentence:
        return
    waits = f"{'it waits' if tasks == 1 else 'they wait'} until one does"
    known = next((one for pool in known_pools(queues, queue, where) for one in pool.tags.tags), None)
    if tag is None and known is not None:
        waits += f", and --tag {known} would give {'it a tag' if tasks == 1 else 'them one'}"
    print_info(
        f"warning: {sentence} {waits.capitalize()}" if sentence.endswith("?") else f"warning: {sentence}; {waits}"
    )


def known_pools(queues: Queues, queue: str, where: TargetOptions) -> list[PoolTags]:
    """Return the pools of a queue: of the settings file, if the queue is of it, and of running supervisors."""
    found = {pool.pool: pool for pool in _pools_of_file(where) if pool.queue == queue}
    with suppress(QueueError):  # the token may not list them
        for name, tags in registered_tags(queues.registrations(served_tags.KIND), queue).items():
            settings = found[name].tags if name in found else tags
            found[name] = PoolTags(name, queue, narrowed_tags(settings, tags_served_by(tags)))
    return list(found.values())


def _pools_of_file(where: TargetOptions) -> list[PoolTags]:
    """Return the pools of the settings file; none where the tasks are at another server or store than the file's."""
    if where["url"] or where["store"] or os.environ.get("TOWLINE_URL") or os.environ.get("TOWLINE_STORE"):
        return []
    path = where["file"] or Path(DEFAULT_FILE)
    try:
        document = read_document(read_text(path), name=str(path), repeats="kept")
    except (CommandError, DocumentError, OSError):
        return []  # the queue was found without a file, or with another one than is there now
    return pool_tags_in(document.data) if isinstance(document.data, Mapping) else []


def _is_leased(queues: Queues, queue: str, tag: str | None) -> bool:
    """Return whether a worker that the server knows leases tasks of the tag, such as one beside the pools."""
    if not isinstance(queues, HttpQueues):
        return False
    try:
        present = queues.worker_activity(queue)
    except QueueError:  # the token may not list them
        return False
    return is_leased_by([one.tags for one in present if is_recent(one.silent_seconds)], tag)
