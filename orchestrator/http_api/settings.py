"""The settings in force over HTTP, each with its origin; what may be secret is masked."""

from collections.abc import Callable, Sequence

from pydantic import Field

from orchestrator.base.json_fields import list_in
from orchestrator.config.shown import shown_setting
from orchestrator.http_api.answers import FleetAnswer
from orchestrator.state.directory import StateDir
from queue_core.attempts.secret_forms import masked_logins
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads

EffectiveSettings = Callable[[], Sequence[tuple[str, object, str]]]
"""Returns path, value and origin of every setting (see `settings_file.effective`)."""

FileProblems = Callable[[], Sequence[str]]
"""Returns the mistakes in the settings file as it is now."""


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
        ShownSetting(setting=path, value=shown_setting(path, value), origin=origin)
        for path, value, origin in settings()
    ]
    mistakes = [masked_logins(one) for one in problems()]
    return ShownSettings(settings=shown, not_in_force=waiting, mistakes=mistakes)
