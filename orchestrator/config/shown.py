"""Settings as anybody may see them who may see the fleet: what is or may be secret is masked. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from queue_core.attempts.secret_forms import MASK, is_secret_name, masked_command, masked_text
from queue_core.config.store_urls import masked

_ENVIRONMENT: Final = re.compile(r"^pools\.[^.]+\.env\.")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def shown_setting(path: str, setting: object) -> object:
    """Return the value of a setting without what may be secret.

    That is: variables of workers, settings whose names say so, passwords in URLs, and in lists, such as commands, what
    follows an option with such a name.
    """
    if isinstance(setting, Mapping):
        return {str(name): shown_setting(f"{path}.{name}", one) for name, one in setting.items()}
    if isinstance(setting, list | tuple):
        if all(isinstance(one, str) for one in setting) and not _is_secret(path):
            return masked_command(setting)
        return [shown_setting(path, one) for one in setting]
    if setting is None or isinstance(setting, bool | int | float):
        return setting
    if _is_secret(path):
        return MASK
    return masked(str(setting)) if _URL.match(str(setting)) else masked_text(str(setting))


def _is_secret(path: str) -> bool:
    return _ENVIRONMENT.match(path) is not None or is_secret_name(path.rpartition(".")[2])
