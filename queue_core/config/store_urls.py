"""URLs of stores and servers as text: their schemes, and hiding or inserting a password. Pure; no driver."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from queue_core.attempts.secret_forms import MASK, masked_text

SHARED_SCHEMES: Final = (
    "postgresql",
    "postgres",
    "redis",
    "rediss",
    "redis+unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)
"""Schemes of stores that several hosts share."""
SCHEMES: Final = ("sqlite", "memory", *SHARED_SCHEMES)

_SECRET_OPTION: Final = re.compile(
    r"((?:^|[?&;\s])[\w.%-]{0,40}(?:pass(?:word|wd|phrase)?|pwd|secret|token|(?<!ssl)key|(?<!require_)auth|sig|signature|credentials?)"
    r"\s*=\s*)(?:'(?:\\.|[^'\\])*'?|[^&;\s]*)",
    re.IGNORECASE,
)
_NO_PORT: Final = re.compile(r"^([^/?#\[\]]{0,200}:)(?!\d|port\b|memory:|$)[^/?#,]+")
"""What should be a port, in a URL without a login: a password whose `@host` is missing."""
_ENCODED_COLON: Final = re.compile("%3a", re.IGNORECASE)
_TOKEN_SCHEMES: Final = ("http", "https", "towline", "towline+http", "towline+https")
"""Schemes in whose URLs a user without a password is a token."""


def sqlite_flaw(url: str) -> str:
    """Return what is wrong with an `sqlite:` URL and how to write it, or "" for one that names a file."""
    rest = url.removeprefix("sqlite:///")
    if rest == url or rest in ("", "/") or "\x00" in rest:
        return "write sqlite:///towline.db (relative), sqlite:////absolute/path.db, or memory:"
    if rest.lstrip("/") == ":memory:":
        return "a store in memory is written memory:"
    if "?" in rest or "#" in rest:
        return "it has no options: leave them out; in a file's name ? is written %3F, and # is written %23"
    if rest.startswith(("~", "/~")):
        return "~ is a folder for a shell only: write the full path, as in sqlite:////home/me/towline.db"
    return ""


def scheme_of(url: str) -> str:
    """Return the part before the first colon."""
    return url.partition(":")[0]


def with_absolute_sockets(url: str, folder: Path) -> str:
    """Return the URL of a server, or several by commas, with sockets as `unix:///path`; relative ones from `folder`.

    `unix:/path` and `unix:path` are how `server.listen` is written. Processes in other folders get the result.
    """
    return ",".join([_absolute_socket(one.strip(), folder) for one in url.split(",")])


def _absolute_socket(url: str, folder: Path) -> str:
    path = url.removeprefix("unix:")
    return url if path in (url, "") or path.startswith("//") else f"unix://{folder / path}"


def is_shared(url: str) -> bool:
    """Return whether several hosts may share the store of this URL."""
    return scheme_of(url) in SHARED_SCHEMES


def masked(url: str) -> str:
    """Return the URL without secrets: `postgresql://user:***@host/db`. Hides too much rather than too little.

    The keywords of PostgreSQL, `host=db password='...'`, and what is no URL at all, are shown without secrets too.
    """
    head, separator, rest = url.partition("://")
    if not separator:
        head, rest = "", url
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if at and (colon or head in _TOKEN_SCHEMES or _ENCODED_COLON.search(login)):
        user = masked_text(user) if colon else ""
        shown = f"{user}{colon}{MASK}@{_without_options(place)}"
    else:
        shown = _without_options(_NO_PORT.sub(rf"\1{MASK}", rest, count=1) if separator else rest)
    return f"{head}{separator}{shown}"


def _without_options(text: str) -> str:
    return masked_text(_SECRET_OPTION.sub(rf"\1{MASK}", text))


def has_password(url: str) -> bool:
    """Return whether the URL has a secret."""
    return masked(url) != url


def with_password(url: str, password: str) -> str:
    """Return the URL with a password, quoted as needed."""
    head, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, _, hosts = authority.rpartition("@")
    return f"{head}{separator}{user}:{quote(password, safe='')}@{hosts}{slash}{path}"
