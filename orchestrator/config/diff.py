"""Compare the pools before and after a reload of their settings. Pure."""

from collections.abc import Mapping
from typing import Final, Literal

from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec

Kind = Literal["added", "removed", "changed"]

SHORT_CHARS: Final = 40
_SECRET_SETTINGS: Final = frozenset({"env", "command"})
"""Settings whose values may contain secrets: a change is reported without its values."""


@value
class PoolChange:
    """One pool that was added, removed or changed.

    `settings` name what changed, as in the file, with the old and new value if these are short; `replaces` says whether
    its workers must be replaced.
    """

    pool: str
    kind: Kind
    settings: tuple[str, ...] = ()
    replaces: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {"pool": self.pool, "kind": self.kind, "settings": list(self.settings), "replaces": self.replaces}


def changes_between(before: Mapping[str, PoolSpec], after: Mapping[str, PoolSpec]) -> list[PoolChange]:
    """Return every pool that differs, in the order of their names."""
    changes = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None:
            changes.append(PoolChange(name, "added"))
        elif new is None:
            changes.append(PoolChange(name, "removed"))
        elif old != new:
            changes.append(PoolChange(name, "changed", _settings(old, new), old.digest() != new.digest()))
    return changes


def _settings(old: PoolSpec, new: PoolSpec) -> tuple[str, ...]:
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    # A link to the settings file may now lead to another folder.
    before["app_folder"], after["app_folder"] = old.app_folder, new.app_folder
    return tuple(line for key in before for line in _compared(key, before[key], after.get(key), top=key))


def _compared(path: str, old: object, new: object, *, top: str) -> list[str]:
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping) and top not in _SECRET_SETTINGS:
        keys = list(dict.fromkeys([*old, *new]))
        return [line for key in keys for line in _compared(f"{path}.{key}", old.get(key), new.get(key), top=top)]
    if top in _SECRET_SETTINGS or not (_is_short(old) and _is_short(new)):
        return [path]
    return [f"{path}: {_shown(old)} -> {_shown(new)}"]


def _is_short(setting: object) -> bool:
    return setting is None or (isinstance(setting, bool | int | float | str) and len(str(setting)) <= SHORT_CHARS)


def _shown(setting: object) -> str:
    return "none" if setting is None else f"{setting:g}" if isinstance(setting, float) else str(setting)
