"""Wings: protocols of others over the queues of a server. Each registers what it serves; none is imported (ADR 130)."""

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, Final, Protocol

from starlette.routing import BaseRoute

from queue_core.server.base.options import GrpcOptions
from queue_core.server.fast_path import FastEndpoint

WINGS: Final = ("queue_core.celery.mailbox_calls:MailboxWing", "queue_core.google.wing:GoogleWing")
"""The classes of the wings, loaded with the first server: no module of the core imports one."""


class GrpcService(Protocol):
    """A gRPC server that is bound, and serves from its `start` to its `stop`."""

    @property
    def address(self) -> str:
        """`host:port` of its listener."""

    def start(self) -> None:
        """Begin to serve; called in the server's loop."""

    async def stop(self) -> None:
        """End the calls under way, then the listener."""

    def renew(self, options: GrpcOptions) -> None:
        """Take up the certificate of these options; any thread may call this."""


class Wing:
    """Protocols of others over the queues of one server, made from its `ServerState` and used in its loop."""

    endpoints: ClassVar[tuple[Any, ...]] = ()
    """The `Endpoint`s of `/v1` that it serves."""
    fast: Mapping[str, FastEndpoint] = {}
    """Its endpoints on the fast path, each by the one path that is POSTed to."""

    def routes(self) -> Sequence[BaseRoute]:
        """Return its other paths."""
        return ()

    def grpc_service(self) -> GrpcService | None:
        """Return the gRPC server that the options ask of it, bound. Raises `ListenError`, `ImportError`."""
        return None

    def stop(self) -> None:
        """Answer what waits, so that a graceful stop is quick."""

    def close(self) -> None:
        """End the threads."""


def wing_classes() -> list[Any]:
    """Load and return the classes of all wings: each takes a `ServerState`."""
    return [resolve_name(name) for name in WINGS]
