"""A queue's settings that a store only keeps, as one JSON text, so that the next of them changes no schema."""

import json
from typing import Final, Literal, TypedDict, cast

from queue_core.task import QueueSpec


class ExtraSettings(TypedDict, total=False):
    """Arguments of a `QueueSpec`."""

    lease_calls_per_second: int | None
    user_emails: tuple[str, ...]
    writer_emails: tuple[str, ...]
    mode: Literal["pull", "push"]


_DEFAULTS: Final = QueueSpec("")
_LISTS: Final = frozenset({"user_emails", "writer_emails"})


def kept_text(spec: QueueSpec) -> str:
    """What of a queue's settings is only kept; what is at its default is left out."""
    values = {name: getattr(spec, name) for name in ExtraSettings.__annotations__}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}
    return json.dumps(changed, ensure_ascii=False)


def kept_settings(text: str) -> ExtraSettings:
    """What `kept_text` wrote, in this program or another: what only a newer one knows is passed over."""
    known = {name: value for name, value in json.loads(text).items() if name in ExtraSettings.__annotations__}
    return cast("ExtraSettings", known | {name: tuple(known[name]) for name in _LISTS & known.keys()})
