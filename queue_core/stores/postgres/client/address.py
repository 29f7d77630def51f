"""Parse the URL of a PostgreSQL store. Pure: it connects to nothing and shows no secret."""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError

SCHEMA = "towline"
FORM = "postgresql://user@host:5432/database"
CONNECT_SECONDS = 3
"""The timeout of a connect, for each host."""
SILENCE_MILLISECONDS = 5000
"""How long sent data may stay unacknowledged (TCP) before the connection counts as lost."""

_OWN_OPTIONS = ("schema", "listen")
_DEFAULTS = {
    "fallback_application_name": "towline",
    "client_encoding": "UTF8",
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives_idle": "3",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": str(SILENCE_MILLISECONDS),
}
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_UNKNOWN_OPTION = re.compile(r'invalid URI query parameter: "(\w+)"')


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The address of a store.

    Args:
        shown: the URL without secrets, for errors, logs and `Store.url`.
        conninfo: the connection string for libpq, with the password if the URL has one.
        listen: the same for the connection that listens; "": `conninfo` is used.
        schema: the schema of the store's tables.
    """

    shown: str
    conninfo: str = field(repr=False)
    listen: str = field(repr=False)
    schema: str


def parse_address(url: str) -> PostgresAddress:
    """Parse a `postgresql://` URL with the store's own options: `schema`, and `listen`, the URL of a direct connection.

    Of several hosts the one that takes writes is used, unless the URL has `target_session_attrs`. Other settings come
    from libpq's environment and files (`PGPASSWORD`, `PGSSLMODE`, `~/.pgpass`, `PGSERVICEFILE`).
    Raises `InvalidSettingError`.
    """
    base, query = _split(url)
    pairs = parse_qsl(query, keep_blank_values=True)
    own = {name: value for name, value in pairs if name in _OWN_OPTIONS}
    schema = own.get("schema", SCHEMA)
    if not _NAME.fullmatch(schema):
        raise InvalidSettingError(f"schema must be a plain lower-case name of at most 63 characters: {schema!r}")
    rest = "&".join(part for part in query.split("&") if unquote(part.partition("=")[0]) not in _OWN_OPTIONS)
    settings = _settings(f"{base}?{rest}" if rest else base)
    listen = own.get("listen", "")
    return PostgresAddress(
        masked(_shown(settings, schema)), _conninfo(settings), _conninfo(_settings(listen)) if listen else "", schema
    )


def _split(url: str) -> tuple[str, str]:
    """Split a URL at its question mark; a password may have one too."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres"):
        raise InvalidSettingError(f"not the URL of a PostgreSQL store: give {FORM}")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    start = len(scheme) + len(separator) + len(user) + len(at)
    mark = url.find("?", start)
    return (url, "") if mark < 0 else (url[:mark], url[mark + 1 :])


def _settings(url: str) -> dict[str, str]:
    _split(url)
    try:
        return {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except ProgrammingError as error:
        unknown = _UNKNOWN_OPTION.search(str(error))
        why = f"it has an unknown option {unknown[1]}" if unknown else "its parts must be percent-encoded"
        # The library's own message quotes the password.
        raise InvalidSettingError(f"not the URL of a PostgreSQL store: {why}; give {FORM}?option=value") from None


def _conninfo(settings: dict[str, str]) -> str:
    several = {"target_session_attrs": "read-write"} if "," in settings.get("host", "") else {}
    return make_conninfo("", **{**_DEFAULTS, **several, **settings})


def _shown(settings: dict[str, str], schema: str) -> str:
    user = f"{quote(settings['user'], safe='')}@" if "user" in settings else ""
    database = settings.get("dbname", "")
    options = {} if schema == SCHEMA else {"schema": schema}
    hosts = settings.get("host", "").split(",")
    if any(host.startswith("/") for host in hosts):
        options = {"host": settings["host"], **({"port": settings["port"]} if "port" in settings else {}), **options}
        return f"postgresql://{user}/{database}{_query(options)}"
    ports = settings.get("port", "").split(",")
    if len(ports) != len(hosts):
        ports = [ports[0]] * len(hosts)
    places = [f"{_bracketed(host)}{':' if port else ''}{port}" for host, port in zip(hosts, ports, strict=True)]
    return f"postgresql://{user}{','.join(places)}/{database}{_query(options)}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _query(options: dict[str, str]) -> str:
    return f"?{urlencode(options, safe='/,')}" if options else ""
