"""Warn at a terminal that no pool of the settings file works on the tag of tasks that were just added."""

import os
from collections.abc import Mapping
from pathlib import Path

from queue_core.cli.failure import CommandError
from queue_core.cli.output import print_info
from queue_core.cli.settings_file import read_text
from queue_core.cli.target import TargetOptions
from queue_core.config.pool_tags import describe_unserved, is_served, pool_tags_in
from queue_core.config.yaml_document import DocumentError, read_document
from queue_core.worker.functions.target import DEFAULT_FILE


def warn_of_unserved(queue: str, tag: str | None, *, tasks: int, where: TargetOptions) -> None:
    """Print a warning if so many tasks of this tag wait in vain, as far as the settings file tells.

    Says nothing where the tasks went to another server or store than the file's.
    """
    if not tasks or where["url"] or where["store"] or os.environ.get("TOWLINE_URL") or os.environ.get("TOWLINE_STORE"):
        return
    path = where["file"] or Path(DEFAULT_FILE)
    try:
        document = read_document(read_text(path), name=str(path), repeats="kept")
    except (CommandError, DocumentError, OSError):
        return  # the queue was found without a file, or with another one than is there now
    if not isinstance(document.data, Mapping):
        return
    pools = [pool for pool in pool_tags_in(document.data) if pool.queue == queue]
    if is_served(tag, pools):
        return
    sentence = describe_unserved(tag, tasks, pools)
    waits = f"{'it waits' if tasks == 1 else 'they wait'} until one does"
    known = next((one for pool in pools for one in pool.tags.tags), None)
    if tag is None and known is not None:
        waits += f", and --tag {known} would give {'it a tag' if tasks == 1 else 'them one'}"
    print_info(
        f"warning: {sentence} {waits.capitalize()}" if sentence.endswith("?") else f"warning: {sentence}; {waits}"
    )
