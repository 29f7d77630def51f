"""A registration as a value, and the bounds of what may be registered. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from queue_core.clock import Instant
from queue_core.errors import InvalidRequestError
from queue_core.limits import check_text, is_number, shown_value

WORKERS: Final = "workers"
"""The kind of the registrations of workers that no supervisor started."""
MAX_REGISTRATIONS: Final = 1_000
"""Registrations of one kind, at most: a store keeps them as one record."""
MAX_FACTS_BYTES: Final = 2_048
"""Size of one registration's facts as JSON, at most."""
MAX_REGISTRATION_SECONDS: Final = 86_400.0
"""How long a registration lasts without being renewed, at most."""
_KIND: Final = re.compile(r"[a-z][a-z-]{0,39}")


@dataclass(frozen=True, slots=True)
class Registration:
    """The facts of a program under a name of its own; they hold until an instant unless they are renewed."""

    name: str
    facts: Mapping[str, str]
    until: Instant


def check_kind(kind: str) -> None:
    """Raise `InvalidRequestError` for a kind that is none."""
    if _KIND.fullmatch(kind) is None:
        raise InvalidRequestError(f"a kind of registrations is 1 to 40 letters a-z and hyphens: {kind[:60]!a}")


def check_registration(kind: str, name: str, facts: Mapping[str, str], *, seconds: float) -> None:
    """Raise `InvalidRequestError` for a registration beyond the bounds; 0 seconds end one."""
    check_kind(kind)
    check_text("name", name)
    if not is_number(seconds) or not 0 <= seconds <= MAX_REGISTRATION_SECONDS:
        raise InvalidRequestError(
            f"seconds of a registration must be a number in [0, {MAX_REGISTRATION_SECONDS:.0f}] s: "
            f"{shown_value(seconds)}"
        )
    size = len(json.dumps(dict(facts)).encode())
    if size > MAX_FACTS_BYTES:
        raise InvalidRequestError(f"facts of a registration are at most {MAX_FACTS_BYTES:,} bytes as JSON: {size:,}")


def encode(known: Mapping[str, Registration]) -> bytes:
    """Return registrations as a store keeps them."""
    plain = {one.name: [one.until, dict(one.facts)] for one in known.values()}
    return json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()


def decode(kept: bytes | None, *, now: Instant) -> dict[str, Registration]:
    """Return the registrations of a record that hold at `now`, by name."""
    if kept is None:
        return {}
    plain: dict[str, tuple[int, dict[str, str]]] = json.loads(kept)
    return {name: Registration(name, facts, Instant(until)) for name, (until, facts) in plain.items() if until > now}
