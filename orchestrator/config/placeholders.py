"""`{worker}` and `{pool}` in a pool's `command` and `env`: names that each worker gets its own of. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from queue_core.config.messages import did_you_mean

PLACEHOLDERS: Final = ("worker", "pool")
# `${worker}` is a shell's, `{{worker}}` a template's.
_PLACEHOLDER: Final = re.compile(r"(?<![{$])\{(worker|pool)\}(?!\})")
_ALIKE: Final = re.compile(r"(?<![{$])\{\s*([A-Za-z_]{3,20})\s*\}(?!\})")


def filled(text: str, *, worker: str, pool: str, quote: Callable[[str], str] = str) -> str:
    """Return the text with its placeholders replaced; every other brace stays as it is.

    `quote` is applied to what lies between the placeholders.
    """
    names = {"worker": worker, "pool": pool}
    parts = _PLACEHOLDER.split(text)  # what lies between them is at even places
    return "".join(names[part] if place % 2 else quote(part) for place, part in enumerate(parts))


def names_worker(text: str) -> bool:
    """Return whether the text has the placeholder of the worker's name."""
    return "worker" in _PLACEHOLDER.findall(text)


def near_misses(command: Sequence[str] | None, env: Mapping[str, str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the place of each text in braces that is nearly a placeholder, and what is likely meant."""
    places: list[tuple[tuple[str | int, ...], str]] = [
        *((("command", index), text) for index, text in enumerate(command or ())),
        *((("env", name), text) for name, text in env.items()),
    ]
    for place, text in places:
        for found in _ALIKE.finditer(text):
            if _PLACEHOLDER.fullmatch(found[0]):
                continue
            meant = did_you_mean(found[1].lower(), PLACEHOLDERS)
            if meant:
                yield place, f"{found[0]} is no placeholder and stays as it is{meant}"
