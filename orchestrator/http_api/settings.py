"""The settings in force over HTTP, each with its origin; what may be secret is masked."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import Field

from orchestrator.http_api.answers import FleetAnswer
from orchestrator.json_fields import list_in
from orchestrator.state.directory import StateDir
from queue_core.config.store_urls import masked
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads

EffectiveSettings = Callable[[], Sequence[tuple[str, object, str]]]
"""Returns path, value and origin of every setting (see `settings_file.effective`)."""

FileProblems = Callable[[], Sequence[str]]
"""Returns the mistakes in the settings file as it is now."""

MASK: Final = "***"
_USER: Final = re.compile(r"//[^/@\s]+@")
_SECRET: Final = re.compile(r"(?:^|[._-])(?:password|passwd|secret|token|key|credential)s?$", re.IGNORECASE)
_ENVIRONMENT: Final = re.compile(r"^pools\.[^.]+\.env\.")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class ShownSetting(FleetAnswer):
    """One setting."""

    setting: str
    value: object = Field(description="As the file would write it; `***`: it may be secret.")
    origin: str = Field(description="File, line and column, a variable, a flag, or `default`.")


class ShownSettings(FleetAnswer):
    """All settings in force."""

    settings: list[ShownSetting]
    not_in_force: list[str] = Field(description="Settings that are changed in the file and wait for the next start.")
    mistakes: list[str] = Field(description="The mistakes in the file now, as `towline check --no-import` lists them.")


def settings_route(files: StateDir, settings: EffectiveSettings, problems: FileProblems) -> ExtensionRoute:
    """Return the route of the settings."""
    return reads(
        "/v1/supervisor/settings",
        "supervisor_settings",
        "Every setting in force, and where it comes from.",
        "events",
        lambda _call: shown_settings(files, settings, problems),
        ShownSettings,
        NoQuery,
    )


def shown_settings(files: StateDir, settings: EffectiveSettings, problems: FileProblems = tuple) -> ShownSettings:
    """Return the settings as anybody may see them who may read events."""
    waiting = [str(one) for one in list_in(files.read_snapshot() or {}, "not_in_force")]
    shown = [
        ShownSetting(setting=path, value=harmless(path, value), origin=origin) for path, value, origin in settings()
    ]
    mistakes = [_USER.sub("//***@", one) for one in problems()]
    return ShownSettings(settings=shown, not_in_force=waiting, mistakes=mistakes)


def harmless(path: str, value: object) -> object:
    """Return a value without what may be secret: passwords in URLs, variables of workers, settings named so."""
    if isinstance(value, dict):
        return {str(name): harmless(f"{path}.{name}", one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(path, one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if _ENVIRONMENT.match(path) or _SECRET.search(path):
        return MASK
    return masked(str(value)) if _URL.match(str(value)) else str(value)
