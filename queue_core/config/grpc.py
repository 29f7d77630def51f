"""The `server.grpc:` of a settings file: where Cloud Tasks is offered over gRPC, and what it proves itself with."""

import re
from collections.abc import Mapping
from typing import Annotated, Final, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from queue_core.config.messages import SettingProblem

DEFAULT_GRPC: Final = "127.0.0.1:7879"
_ADDRESS: Final = re.compile(r"(?P<host>[^:/\s]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_LOOPBACK: Final = frozenset({"127.0.0.1", "[::1]", "localhost"})


def _is_address(value: object) -> TypeGuard[str]:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    return match is not None and int(match["port"]) <= 65_535


def _address(value: object) -> object:
    if not _is_address(value):
        raise ValueError(f"{value!r}: write host:port with a port in [0, 65535], such as {DEFAULT_GRPC}")
    return value


def _grpc(value: object) -> object:
    """An address alone is all of the settings."""
    return {"listen": value} if isinstance(value, str) else value


class GrpcSettings(BaseModel):
    """A listener for gRPC: in plain text for this machine only, with a certificate for others too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Annotated[str, BeforeValidator(_address)] = Field(description="host:port; port 0 takes a free one.")
    certificate: str | None = Field(
        default=None, min_length=1, description="A PEM file: the certificate, then those it rests on."
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


Grpc = Annotated[GrpcSettings, BeforeValidator(_grpc)]


def allow_address_text(schema: JsonDict) -> None:
    """For the JSON Schema: a text will do."""
    given = schema.pop("anyOf")
    assert isinstance(given, list)
    schema["anyOf"] = [{"type": "string", "examples": [DEFAULT_GRPC]}, *given]


def grpc_relations(server: Mapping[str, object]) -> list[SettingProblem]:
    """What its members ask of each other and of the server's tokens."""
    grpc = _grpc(server.get("grpc"))
    if not isinstance(grpc, Mapping):
        return []
    here = ("server", "grpc")
    pair = [name for name in ("certificate", "key") if grpc.get(name) is not None]
    if len(pair) == 1:
        return [SettingProblem((*here, pair[0]), "give certificate and key together")]
    listen = grpc.get("listen")
    if not _is_address(listen) or listen.rpartition(":")[0] in _LOOPBACK:
        return []
    if not pair:
        why = "others could read what goes over the network: give certificate and key"
        return [SettingProblem(here, f"{listen}: {why}, or listen on {DEFAULT_GRPC}")]
    if not server.get("tokens"):
        why = "other machines could reach it without a token: add tokens: [{role: admin, token_env: TOWLINE_ADMIN}]"
        return [SettingProblem(here, f"{listen}: {why}")]
    return []
