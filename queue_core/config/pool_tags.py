"""Find tasks whose tag no pool of the settings works on, and say so in a sentence. Pure; knows nothing of supervisors.

A queue of which no pool is named is left alone: other programs lease from it.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.process.terminal import clean
from queue_core.process.wording import counted
from queue_core.task import ANY, UNTAGGED, TagFilter

_MAX_TAG_CHARS: Final = 60
_MAX_NAMED: Final = 5
_CLOSE: Final = 0.6  # of `difflib`: how alike a tag must be to be the one that was meant


@dataclass(frozen=True, slots=True)
class PoolTags:
    """The queue of a pool, and the tags on which the pool works."""

    pool: str
    queue: str
    tags: TagFilter


def pool_tags_in(document: Mapping[str, object]) -> list[PoolTags]:
    """Return the pools of a settings file, read leniently: what can't be understood is left out."""
    pools = document.get("pools")
    found = []
    for name, pool in (pools if isinstance(pools, Mapping) else {}).items():
        match pool:
            case {"queue": str() as queue, "untagged": True}:
                found.append(PoolTags(str(name), queue, UNTAGGED))
            case {"queue": str() as queue, "tags": [*tags]} if tags:
                found.append(PoolTags(str(name), queue, TagFilter.of(*map(str, tags))))
            case {"queue": str() as queue}:
                found.append(PoolTags(str(name), queue, ANY))
    return found


def is_served(tag: str | None, pools: Collection[PoolTags]) -> bool:
    """Return whether one of the pools of a queue works on tasks of that tag, or whether there is no pool at all."""
    return not pools or any(pool.tags.accepts(tag) for pool in pools)


def describe_unserved(tag: str | None, tasks: int, pools: Sequence[PoolTags]) -> str:
    """Describe tasks of a tag that none of the pools of their queue works on, with the tag that may be meant."""
    have = f"{counted(tasks, 'task')} {'has' if tasks == 1 else 'have'}"
    if tag is None:
        return f"{have} no tag, and no pool works on tasks without one: {_served_tags(pools)}"
    shown = shown_tag(tag)
    known = [other for pool in pools for other in pool.tags.tags]
    close = difflib.get_close_matches(tag[:_MAX_TAG_CHARS], known, n=1, cutoff=_CLOSE)
    cure = f"did you mean {shown_tag(close[0])}?" if close else _served_tags(pools)
    return f"{have} the tag {shown}, and no pool works on that tag: {cure}"


def describe_served(tag: str | None, *, by_pool: bool) -> str:
    """Describe the end of it: a pool works on them, or they are gone."""
    of_tag = "without a tag" if tag is None else f"with the tag {shown_tag(tag)}"
    return f"a pool works on tasks {of_tag} now" if by_pool else f"no task {of_tag} waits for a pool any more"


def shown_tag(tag: str) -> str:
    """Return a tag as a sentence quotes it, of a bounded length and without control characters."""
    text = clean(tag)
    return f"`{text if len(text) <= _MAX_TAG_CHARS else text[: _MAX_TAG_CHARS - 1] + '…'}`"


def _served_tags(pools: Sequence[PoolTags]) -> str:
    tags = [shown_tag(tag) for tag in dict.fromkeys(tag for pool in pools for tag in pool.tags.tags)]
    if len(tags) > _MAX_NAMED:
        tags = [*tags[:_MAX_NAMED], f"{len(tags) - _MAX_NAMED:,} more"]
    if any(pool.tags.kind == "untagged" for pool in pools):
        tags.append("tasks without a tag")
    listed = tags[0] if len(tags) == 1 else f"{', '.join(tags[:-1])} and {tags[-1]}"
    queue = pools[0].queue
    return (
        f"the pools of queue {queue} work on {listed}" if len(pools) > 1 else f"pool {pools[0].pool} works on {listed}"
    )
