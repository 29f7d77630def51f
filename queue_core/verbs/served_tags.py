"""The tags that workers lease, as reports of a lease call, an application or a pool have them.

A report is a tuple: empty for every task, None in it for tasks without a tag. Pure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.verbs.registration import MAX_FACTS_BYTES, Registration

ServedTags: TypeAlias = tuple[str | None, ...]
"""Tags that are leased; () for all tasks, None in it for those without a tag."""

KIND: Final = "pool-tags"
"""The registrations of pools: which tags of which queues their workers lease."""
LASTING_SECONDS: Final = 86_400.0
"""How long a pool's registration holds after its supervisor was last heard of."""
RECENT_SECONDS: Final = 60.0
"""A worker that has called within so many seconds is there."""
MAX_TAGS: Final = 1_000
"""Tags of one report; of more than these it says that all are leased."""


def tags_served_by(selection: TagFilter) -> ServedTags:
    """Return the report of a lease call's selection."""
    return (None,) if selection == UNTAGGED else selection.tags


def selection_of(served: ServedTags) -> TagFilter | None:
    """Return the selection that a report stands for; None where no selection is the same as it."""
    if not served:
        return ANY
    if None not in served:
        return TagFilter.of(*[tag for tag in served if tag is not None])
    return UNTAGGED if len(served) == 1 else None


def serves(served: ServedTags, tag: str | None) -> bool:
    """Return whether tasks of a tag are leased."""
    return not served or tag in served


def is_recent(silent_seconds: float) -> bool:
    """Return whether a worker that is silent for so long may still be asking for tasks."""
    return silent_seconds < RECENT_SECONDS


def is_leased_by(reports: Iterable[ServedTags | None], tag: str | None) -> bool:
    """Return whether one of the reporters leases tasks of a tag; a worker of which nothing is known does not."""
    return any(served is not None and serves(served, tag) for served in reports)


def merged_tags(reports: Iterable[ServedTags]) -> ServedTags | None:
    """Return what is leased by any of the reporters; None where there is none."""
    found: dict[str | None, None] = {}
    is_known = False
    for served in reports:
        is_known = True
        if not served:
            return ()
        found.update(dict.fromkeys(served))
        if len(found) > MAX_TAGS:
            return ()
    return tuple(found) if is_known else None


def narrowed_tags(settings: TagFilter, served: ServedTags | None) -> TagFilter:
    """Return the tasks that a pool works on: those of its settings that its workers lease.

    Where nothing is known of its workers, and where they lease nothing of its settings, that is what the settings say.
    """
    if not served:
        return settings
    if settings.kind == "any":
        return selection_of(served) or settings
    common = [tag for tag in tags_served_by(settings) if tag in served]
    return (selection_of(tuple(common)) if common else None) or settings


def facts_of(queues: Sequence[str], tags: TagFilter) -> Mapping[str, str] | None:
    """Return what a pool registers; None for more than a registration may say."""
    facts = {"queues": json.dumps(list(queues)), "tags": json.dumps(tags_served_by(tags))}
    return facts if len(json.dumps(facts).encode()) <= MAX_FACTS_BYTES else None


def registered_tags(registered: Iterable[Registration], queue: str) -> dict[str, TagFilter]:
    """Return the tags that each pool of a queue works on, by the registrations of `KIND`."""
    return pools_of_facts({one.name: one.facts for one in registered}, queue)


def pools_of_facts(registered: Mapping[str, Mapping[str, str]], queue: str) -> dict[str, TagFilter]:
    """Return the tags that each pool of a queue works on, by what was registered under the pools' names."""
    found = {}
    for name, facts in registered.items():
        try:
            of_queues, tags = json.loads(facts["queues"]), json.loads(facts["tags"])
        except (KeyError, ValueError):
            continue  # another program wrote it
        if isinstance(of_queues, list) and isinstance(tags, list) and queue in of_queues:
            found[name] = selection_of(tuple(None if tag is None else str(tag) for tag in tags)) or ANY
    return found
