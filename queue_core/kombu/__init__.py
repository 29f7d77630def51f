"""Towline as a broker of Celery and of all that uses kombu: importing this registers the transport.

    import queue_core.kombu

    app = Celery("shop", broker="towline+http://127.0.0.1:7878")

It is the only import that a program needs. See `docs/how-to/celery.md`.
"""

from kombu.transport import TRANSPORT_ALIASES

from queue_core.config.store_urls import SHARED_SCHEMES
from queue_core.kombu.connection_info import hide_secrets

_TRANSPORT = "queue_core.kombu.transport:TowlineTransport"

SCHEMES = ("towline", *(f"towline+{one}" for one in ("http", "https", "unix", "memory", "sqlite", *SHARED_SCHEMES)))
"""The schemes of broker URLs. Those with a `+` are looked up whole when a list of brokers moves on to its next."""

for _scheme in SCHEMES:
    TRANSPORT_ALIASES.setdefault(_scheme, _TRANSPORT)
hide_secrets()

__all__ = ["SCHEMES"]
