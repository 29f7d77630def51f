"""Redis URLs, parsed: servers, login, and the operator's assurances. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError

SERVER_PORT = 6379
SENTINEL_PORT = 26379
MAX_DATABASE = 1_000_000

FORMS = (
    "redis://[user:password@]host[:port][/database], rediss:// for TLS, redis+unix:///path/to.sock, "
    "redis+cluster://host[:port],host[:port] or redis+sentinel://host[:port],host[:port]/name[/database]"
)

_KINDS: Mapping[str, Literal["server", "socket", "cluster", "sentinel"]] = {
    "redis": "server",
    "rediss": "server",
    "redis+unix": "socket",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
}
_NO_SHARDS = (
    "a queue is stored whole on one node, so it can't be split by ?spread: leave the option out, and give each busy "
    "queue a node of its own, or use postgresql:"
)  # ADR 122
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One server: a host and port, or with port 0 the path of its socket."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL.

    Args:
        addresses: the server, some nodes of the cluster, or the sentinels.
        service: the sentinels' name of the primary.
        tls_files: those given of `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`.
        assumes_durable: the operator asserts that a server which hides its settings is durable.
        shown: the URL without secrets, for logs and errors.
    """

    kind: Literal["server", "socket", "cluster", "sentinel"]
    addresses: tuple[RedisAddress, ...]
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    tls_files: tuple[tuple[str, str], ...] = ()
    service: str = ""
    assumes_durable: bool = False
    shown: str = ""


def parse_url(url: str) -> RedisUrl:
    """Parse a URL. Raises `InvalidSettingError`, which shows the valid forms and never a password."""
    scheme, separator, _ = url.partition("://")
    kind = _KINDS.get(scheme)
    shown = masked(without_login(url))
    if kind is None or not separator:
        _refuse(shown, "unknown scheme")
    try:
        parts = urlsplit(url)
    except ValueError:
        _refuse(shown, "malformed")
    if parts.fragment:
        _refuse(shown, "'#' must be written %23")
    login, _, hosts = parts.netloc.rpartition("@")
    username, colon, password = login.partition(":")
    options = _options(parts.query, shown, is_tls=scheme.startswith("rediss"), is_socket=kind == "socket")
    service, database = _path(kind, parts.path, options, shown)
    return RedisUrl(
        kind,
        (RedisAddress(unquote(parts.path), 0),) if kind == "socket" else _addresses(kind, hosts, shown),
        database,
        unquote(username) or None,
        unquote(password) if colon else None,
        scheme.startswith("rediss"),
        tuple((name, options[name]) for name in _TLS_FILES if name in options),
        service,
        options.get("assume_durable") == "true",
        shown,
    )


def without_login(url: str) -> str:
    """Return the URL without user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url.rpartition("@")[2]


def _options(query: str, shown: str, *, is_tls: bool, is_socket: bool) -> dict[str, str]:
    known = {"assume_durable"} | (set(_TLS_FILES) if is_tls else set()) | ({"database"} if is_socket else set())
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        _refuse(shown, "its ?options are malformed")
    options: dict[str, str] = {}
    for name, value in pairs:
        if name == "spread":
            _refuse(shown, _NO_SHARDS)
        if name not in known:
            _refuse(shown, f"unknown option {name!r}; there are {', '.join(sorted(known))}")
        if name in options or not value:
            _refuse(shown, f"option {name!r} must be given once, with a value")
        options[name] = value
    if options.get("assume_durable", "true") != "true":
        _refuse(shown, "assume_durable must be 'true' or left out")
    return options


def _path(kind: str, path: str, options: Mapping[str, str], shown: str) -> tuple[str, int]:
    """Return the sentinels' name of the primary, and the database."""
    if kind == "socket":
        if len(path) < 2:
            _refuse(shown, "a socket needs its path")
        return "", _database(options.get("database", ""), shown)
    words = [unquote(word) for word in path.strip("/").split("/")] if path.strip("/") else []
    if kind == "sentinel":
        if not 1 <= len(words) <= 2:
            _refuse(shown, "sentinels need the name of the primary")
        return words[0], _database(words[1] if len(words) == 2 else "", shown)
    if len(words) > 1:
        _refuse(shown, "more than a database after the host")
    database = _database(words[0] if words else "", shown)
    if kind == "cluster" and database:
        _refuse(shown, "a cluster has database 0 only")
    return "", database


def _database(text: str, shown: str) -> int:
    if text and not (text.isascii() and text.isdigit() and int(text) <= MAX_DATABASE):
        _refuse(shown, f"a database is a number from 0: {text!r}")
    return int(text or 0)


def _addresses(kind: str, hosts: str, shown: str) -> tuple[RedisAddress, ...]:
    listed = hosts.split(",")
    if kind == "server" and len(listed) > 1:
        _refuse(shown, "several hosts need redis+cluster:// or redis+sentinel://")
    default_port = SENTINEL_PORT if kind == "sentinel" else SERVER_PORT
    return tuple(_address(text.strip(), default_port, shown) for text in listed)


def _address(text: str, default_port: int, shown: str) -> RedisAddress:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            _refuse(shown, f"not an address: {text!r}")
        port = port[1:]
    else:
        host, _, port = text.partition(":")
    if not host:
        _refuse(shown, "no host")
    if not port:
        return RedisAddress(host, default_port)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        _refuse(shown, "a port is a number from 1 to 65535")
    return RedisAddress(host, int(port))


def _refuse(shown: str, why: str) -> NoReturn:
    raise InvalidSettingError(f"not the URL of a Redis store: {shown!r}: {why}; give {FORMS}")
