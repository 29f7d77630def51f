"""Settings of a queue that stores keep as one JSON text, so that a new one needs no migration: those that Google's APIs
act on, how long history is kept, and limits."""

import json
from dataclasses import asdict
from typing import Any, Final, Literal, TypedDict, cast

from queue_core.admission import Rate, TagLimits
from queue_core.task import QueueSpec


class ExtraSettings(TypedDict, total=False):
    """The arguments of a `QueueSpec` that are stored as text."""

    lease_calls_per_second: int | None
    user_emails: tuple[str, ...]
    writer_emails: tuple[str, ...]
    mode: Literal["pull", "push"]
    history_keep: int
    history_seconds: float
    max_in_flight: int | None
    rate: Rate | None
    per_tag: TagLimits
    max_payload_bytes: int
    max_eta_seconds: float
    label: str


_DEFAULTS: Final = QueueSpec("")
_LISTS: Final = frozenset({"user_emails", "writer_emails"})


def extra_settings_text(spec: QueueSpec) -> str:
    """Return the extra settings of a queue as JSON, without those at their default."""
    values = {name: getattr(spec, name) for name in ExtraSettings.__annotations__}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}
    return json.dumps(changed, ensure_ascii=False, default=asdict)


def parse_extra_settings(text: str) -> ExtraSettings:
    """Parse what `extra_settings_text` wrote; settings that only a newer program knows are ignored."""
    known = {name: value for name, value in json.loads(text).items() if name in ExtraSettings.__annotations__}
    parsed = known | {name: tuple(known[name]) for name in _LISTS & known.keys()}
    if "rate" in known:
        parsed["rate"] = _rate(known["rate"])
    if "per_tag" in known:
        parsed["per_tag"] = TagLimits(**known["per_tag"] | {"rate": _rate(known["per_tag"]["rate"])})
    return cast("ExtraSettings", parsed)


def _rate(json: dict[str, Any] | None) -> Rate | None:
    return None if json is None else Rate(**json)
