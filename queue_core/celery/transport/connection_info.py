"""Descriptions of connections to Towline without secrets: Celery answers `inspect stats` with them.

kombu's own `Connection.info` has the whole URL, with the token in it. A connection that was pickled takes its token
from the environment again, as one of a pool's worker does.
"""

from collections.abc import Mapping
from functools import wraps
from typing import Any

from kombu import Connection

from queue_core.attempts.secret_forms import MASK, is_secret_name
from queue_core.celery.transport.address import without_secrets

_MARK = "_hides_secrets_of_towline"


def hide_secrets() -> None:
    """Have `kombu.Connection.info` leave secrets out for connections to Towline; those to other brokers stay."""
    kept: Any = Connection.info
    if hasattr(kept, _MARK):
        return

    @wraps(kept)
    def info(self: Any) -> dict[str, object]:
        found: dict[str, object] = kept(self)
        return shown_info(found) if _is_ours(self.transport_cls) else found

    setattr(info, _MARK, True)
    Connection.info = info


def shown_info(info: Mapping[str, object]) -> dict[str, object]:
    """Return what kombu tells of a connection without the secrets of its URLs and options."""
    options, alternates = info.get("transport_options"), info.get("alternates")
    shown = {**info, "userid": None, "password": None, "hostname": without_secrets(str(info.get("hostname") or ""))}
    if isinstance(options, Mapping):
        shown["transport_options"] = {
            name: MASK if is_secret_name(str(name)) else one for name, one in options.items() if name != "token"
        }
    if isinstance(alternates, list):
        shown["alternates"] = [without_secrets(str(one)) for one in alternates]
    return shown


def _is_ours(transport: object) -> bool:
    named = transport if isinstance(transport, str) else getattr(transport, "driver_type", "")
    return str(named).startswith("towline")
