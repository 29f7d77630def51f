"""Towline as a broker of Celery and of all that uses kombu: importing this registers the transport.

No program has to: an entry point has kombu import it with its serializers, so a broker's URL is enough. It is imported
by every program that uses kombu, whatever its broker, so it imports nothing but what kombu has loaded by then. Only a
program that uses a `kombu.Connection`, and nothing else of kombu, imports it itself. See `docs/how-to/celery.md`.
"""

from kombu.transport import TRANSPORT_ALIASES

_TRANSPORT = "queue_core.celery.transport.transport:TowlineTransport"

SCHEMES = (
    "towline",
    "towline+http",
    "towline+https",
    "towline+unix",
    "towline+memory",
    "towline+sqlite",
    "towline+postgresql",
    "towline+postgres",
    "towline+redis",
    "towline+rediss",
    "towline+redis+unix",
    "towline+redis+cluster",
    "towline+rediss+cluster",
    "towline+redis+sentinel",
    "towline+rediss+sentinel",
)
"""The schemes of broker URLs. Those with a `+` are looked up whole when a list of brokers moves on to its next."""

for _scheme in SCHEMES:
    TRANSPORT_ALIASES.setdefault(_scheme, _TRANSPORT)

SERIALIZER = (None, None, "application/x-towline")
"""What kombu asks an entry point of its serializers for: one that neither writes nor reads."""

__all__ = ["SCHEMES", "SERIALIZER"]
