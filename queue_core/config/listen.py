"""Listen addresses of a settings file: host:port or unix:/path for HTTP, and `server.grpc:` for gRPC."""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated, Final, Literal, TypeGuard

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from queue_core.config.messages import SettingProblem

DEFAULT_LISTEN: Final = "127.0.0.1:7878"
MAX_SOCKET_PATH_BYTES: Final = 100
"""Longest path of a Unix socket; Linux allows 107 bytes."""
_HOST: Final = re.compile(r"[^\s/@\[\]]+|\[[0-9a-fA-F:.]+\]")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def checked_listen(value: object) -> str:
    """Return an address to listen on as the settings have it. Raises `ValueError`."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: write host:port, such as {DEFAULT_LISTEN}, or unix:/path")  # noqa: TRY004
    if value.startswith("unix:"):
        path = value.removeprefix("unix:").removeprefix("//")
        if not path:
            raise ValueError(f"{value}: write the path of the socket, such as unix:/run/towline.sock")
        if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
            message = f"a socket's path must be at most {MAX_SOCKET_PATH_BYTES} bytes: choose a shorter folder"
            raise ValueError(f"{value}: {message}")
        return f"unix:{path}"
    scheme, has_scheme, rest = value.partition("://")
    if has_scheme:
        host, has_port, port = rest.rstrip("/").rpartition(":")
        fix = f"{host or port}:{port if has_port and host else 7878}"
        raise ValueError(f"{value}: an address to listen on has no {scheme}:// before it: write {fix}")
    host, _, port = value.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ValueError(f"{value}: write host:port with a port in [0, 65535], such as {DEFAULT_LISTEN}, or unix:/path")
    return value


Listen = Annotated[str, BeforeValidator(checked_listen)]
"""host:port or unix:/path."""


def is_private(listen: str) -> bool:
    """Return whether only this host can reach a listener at this address."""
    return listen.startswith("unix:") or listen.rpartition(":")[0].strip("[]") in _LOOPBACK


DEFAULT_GRPC: Final = "127.0.0.1:7879"
_ADDRESS: Final = re.compile(r"(?P<host>[^:/\s]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def _is_address(value: object) -> TypeGuard[str]:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    return match is not None and int(match["port"]) <= 65_535


def _address(value: object) -> object:
    if not _is_address(value):
        raise ValueError(f"{value!r}: write host:port with a port in [0, 65535], such as {DEFAULT_GRPC}")
    return value


def _grpc(value: object) -> object:
    """Accept an address alone in place of the settings."""
    return {"listen": value} if isinstance(value, str) else value


class GrpcSettings(BaseModel):
    """A gRPC listener: plaintext for this host only, with a certificate for others too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Annotated[str, BeforeValidator(_address)] = Field(description="host:port; port 0 takes a free one.")
    certificate: str | None = Field(
        default=None, min_length=1, description="A PEM file: the certificate, then its chain."
    )
    key: str | None = Field(default=None, min_length=1, description="A PEM file: the certificate's key.")

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.listen.rpartition(":")[2])


class TlsSettings(BaseModel):
    """The certificate of a listener, for TLS."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cert: str = Field(min_length=1, description="A PEM file: the certificate, then its chain.")
    key: str = Field(min_length=1, description="A PEM file: the certificate's key.")


PersonRole = Literal["viewer", "operator", "admin"]


def _trusted(value: str) -> str:
    if value == UNIX:
        return value
    try:
        ip_network(value)
    except ValueError:
        raise ValueError(f"{value!r}: write an address, a network such as 10.0.0.0/8, or unix") from None
    return value


UNIX: Final = "unix"
"""A peer that connects to a Unix socket."""


class ProxyLoginSettings(BaseModel):
    """A proxy in front of the console that logs people in and names them in a header."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header: str = Field(
        pattern=r"^[A-Za-z0-9-]{1,100}$",
        examples=["X-Forwarded-User"],
        description="The header with the person's name. The proxy must remove it from what browsers send.",
    )
    trust: tuple[Annotated[str, AfterValidator(_trusted)], ...] = Field(
        min_length=1, description="Addresses and networks of the proxy, and unix; the header of others is ignored."
    )
    role: PersonRole = Field(default="viewer", description="The rights of each of them in the console.")
    roles: dict[str, PersonRole] = Field(default_factory=dict, description="The role of a person, by name.")


Grpc = Annotated[GrpcSettings, BeforeValidator(_grpc)]


def allow_address_text(schema: JsonDict) -> None:
    """Allow an address as text in the JSON Schema."""
    given = schema.pop("anyOf")
    assert isinstance(given, list)
    schema["anyOf"] = [{"type": "string", "examples": [DEFAULT_GRPC]}, *given]


def proxy_relations(server: Mapping[str, object]) -> list[SettingProblem]:
    """Return problems between a proxy that logs people in and the server's tokens."""
    if server.get("auth") is None or server.get("tokens"):
        return []
    why = "without tokens the API is open to all whom the proxy lets through"
    return [SettingProblem(("server", "auth"), f"{why}: add tokens: [{{role: admin, token_env: TOWLINE_ADMIN}}]")]


def grpc_relations(server: Mapping[str, object]) -> list[SettingProblem]:
    """Return problems between the settings of gRPC and the server's tokens."""
    grpc = _grpc(server.get("grpc"))
    if not isinstance(grpc, Mapping):
        return []
    here = ("server", "grpc")
    pair = [name for name in ("certificate", "key") if grpc.get(name) is not None]
    if len(pair) == 1:
        return [SettingProblem((*here, pair[0]), "give certificate and key together")]
    listen = grpc.get("listen")
    if not _is_address(listen) or is_private(listen):
        return []
    if not pair:
        why = "others could read what goes over the network: give certificate and key"
        return [SettingProblem(here, f"{listen}: {why}, or listen on {DEFAULT_GRPC}")]
    if not server.get("tokens"):
        why = "other machines could reach it without a token: add tokens: [{role: admin, token_env: TOWLINE_ADMIN}]"
        return [SettingProblem(here, f"{listen}: {why}")]
    return []
