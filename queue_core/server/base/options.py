"""Options of a server: addresses, tokens and limits. Values only; the configuration file builds them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from queue_core.errors import InvalidSettingError
from queue_core.events import Lifecycle
from queue_core.process.loopback import is_loopback
from queue_core.task import QueueSpec
from queue_core.verbs.roles import Role

DEFAULT_PORT = 7878
"""The TCP port of a server, unless its options name another."""
MAX_BODY_BYTES = 64 << 20
"""Default size of a request's body, at most, in bytes."""
MAX_WAITING = 10_000
"""Default number of lease calls that wait at once."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A bearer token, its role, and its owner's email as the acls of queues name people (None: no owner).

    `queues`: patterns of the queues that it is for; None: all.
    """

    role: Role
    secret: str
    email: str | None = None
    queues: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"AccessToken({self.role.name}{f', {self.email}' if self.email else ''})"


@dataclass(frozen=True, slots=True)
class GrpcTls:
    """The certificate of a gRPC listener: PEM of the chain and of the key."""

    certificates: bytes
    key: bytes

    def __repr__(self) -> str:
        return "GrpcTls()"


@dataclass(frozen=True, slots=True)
class HttpTls:
    """The PEM files of a listener's certificate with its chain, and of its key."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ProxyLogin:
    """A proxy that has logged people in to the console.

    Args:
        header: names the person; of peers that are not trusted it is ignored.
        trust: addresses and networks of the proxy, and `unix`.
        role, roles: what people may do, and the role of those named.
    """

    header: str
    trust: tuple[str, ...]
    role: Role = Role.VIEWER
    roles: Mapping[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The address of Cloud Tasks over gRPC; port 0 takes a free one. Without `tls` it serves this machine only."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: GrpcTls | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of a server.

    Args:
        host: a name or address to listen on; port 0 takes a free one.
        socket_path: listen on this Unix socket instead (mode 0600).
        tokens: the accepted tokens; none: every caller may do everything, which is allowed on this machine only.
        allowed_hosts: further names in `Host` (and `Origin`) by which this server is known, as behind a proxy.
        max_waiting: waiting lease calls at once; further ones are refused with 503.
        max_body_bytes: size of a request; a larger one is refused with 413.
        recent_events: lifecycle events kept for `/v1/events`.
        lifecycle: how finely they are recorded.
        stop_seconds: seconds that a stop waits for requests under way.
        grpc: a second listener, for Cloud Tasks over gRPC; None: there is none.
        tls: the certificate of the listener; None: it speaks plaintext.
        proxy: the proxy that logs people in to the console; None: nobody is logged in so.
        console_writes: whether pages of the console may change anything.
        console_payloads: whether they show payloads to viewers; console_redact: what they mask in payloads.
        serves: digests of the store, by which a client with a settings file knows that it is not its own.
        queues, storage_limit_bytes: those of the settings, which are created again in a store that was emptied.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    socket_path: Path | None = None
    tokens: tuple[AccessToken, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_waiting: int = MAX_WAITING
    max_body_bytes: int = MAX_BODY_BYTES
    recent_events: int = 1000
    lifecycle: Lifecycle = "task"
    stop_seconds: float = 0.7
    grpc: GrpcOptions | None = None
    queues: tuple[QueueSpec, ...] = ()
    storage_limit_bytes: int | None = None
    console_writes: bool = False
    console_payloads: bool = False
    console_redact: tuple[str, ...] = ()
    tls: HttpTls | None = None
    proxy: ProxyLogin | None = None
    serves: str = ""

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach it."""
        return self.socket_path is not None or is_loopback(self.host)


def check_options(options: ServeOptions) -> None:
    """Raise `InvalidSettingError` for a server that is open to the network without a token, or has an invalid port."""
    if not 0 <= options.port <= 65_535:
        raise InvalidSettingError(f"port must be in [0, 65535]: {options.port}")
    if not options.is_local and not options.tokens:
        raise InvalidSettingError(
            f"listening on {options.host} opens the queue to the network, and no token is set: "
            "give the server tokens, or listen on 127.0.0.1 or a Unix socket"
        )
    if options.proxy is not None and not options.tokens:
        raise InvalidSettingError("a proxy logs people in, and no token is set: give the server tokens")
    if options.grpc is not None:
        _check_grpc(options.grpc, options.tokens)


def _has_tls(grpc: GrpcOptions | None) -> bool:
    return grpc is not None and grpc.tls is not None


def with_credentials(options: ServeOptions, other: ServeOptions) -> ServeOptions:
    """Return options with the tokens and certificates of `other`, as far as a running server can take them up."""
    tokens = other.tokens if bool(options.tokens) == bool(other.tokens) else options.tokens
    tls = other.tls if (options.tls is None) == (other.tls is None) else options.tls
    grpc = options.grpc
    if grpc is not None and other.grpc is not None and _has_tls(grpc) == _has_tls(other.grpc):
        grpc = replace(grpc, tls=other.grpc.tls)
    return replace(options, tokens=tokens, tls=tls, grpc=grpc)


def _check_grpc(grpc: GrpcOptions, tokens: tuple[AccessToken, ...]) -> None:
    if not 0 <= grpc.port <= 65_535:
        raise InvalidSettingError(f"the port for gRPC must be in [0, 65535]: {grpc.port}")
    if not is_loopback(grpc.host) and (grpc.tls is None or not tokens):
        lacks = "a certificate" if grpc.tls is None else "a token"
        raise InvalidSettingError(
            f"gRPC on {grpc.host} opens the queue to the network, and {lacks} is missing: "
            "give the server a certificate with its key and tokens, or listen on 127.0.0.1"
        )


def options_of(listen: str, *, tokens: tuple[AccessToken, ...] = ()) -> ServeOptions:
    """Return the options for `host:port` or `unix:/path`, as the settings file writes it."""
    if listen.startswith("unix:"):
        return ServeOptions(socket_path=Path(listen.removeprefix("unix:").removeprefix("//")), tokens=tokens)
    host, _, port = listen.rpartition(":")
    return ServeOptions(host.strip("[]"), int(port), tokens=tokens)
