"""The tags that a pool's workers lease, by its application and by their lease calls (ADR 26). Pure."""

from collections.abc import Iterable
from typing import Final

from orchestrator.base.values import ServedTags
from orchestrator.config.pools import PoolSpec

MAX_TAGS: Final = 1_000
"""Tags of several reports; of more than these all count as leased."""


def merged_tags(reports: Iterable[ServedTags | None]) -> ServedTags | None:
    """Return what is leased by any of the reporters; None where none of them knows."""
    known = [served for served in reports if served is not None]
    if not known:
        return None
    found = dict.fromkeys(tag for served in known for tag in served)
    return () if () in known or len(found) > MAX_TAGS else tuple(found)


def narrowed(spec: PoolSpec, served: ServedTags | None) -> PoolSpec:
    """Return a pool's settings with those of its tags that its workers lease.

    They stay as they are where nothing is known of its workers, where these lease none of its tags, and where they
    lease tags and tasks without one, which no settings say.
    """
    if not served:
        return spec
    if spec.untagged or spec.tags:
        own: ServedTags = (None,) if spec.untagged else spec.tags or ()
        tags: ServedTags = tuple(tag for tag in own if tag in served)
    else:
        own, tags = (), served
    if not tags or tags == own or (None in tags and len(tags) > 1):
        return spec
    return spec.model_copy(update={"tags": None if None in tags else tags, "untagged": None in tags})
