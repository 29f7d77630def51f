"""Who may call what: bearer tokens with roles, and a guard against pages that make a browser call this machine."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from types import MappingProxyType
from urllib.parse import urlsplit

from queue_core.errors import PermissionDeniedError, UnauthenticatedError
from queue_core.server.options import Role, ServeOptions, is_loopback
from queue_core.server.problems import refusal

Headers = Sequence[tuple[bytes, bytes]]

ADD = Role.PRODUCER | Role.WORKER | Role.ADMIN
"""Workers add too: the next stage of a pipeline."""
WORK = Role.WORKER | Role.ADMIN
ADMINISTER = Role.ADMIN
READ = Role.VIEWER | Role.PRODUCER | Role.WORKER | Role.ADMIN
"""Counts, which tell nothing of the payloads."""
INSPECT = Role.VIEWER | Role.WORKER | Role.ADMIN
"""Tasks with their payloads, and the event log."""

NEEDED: Mapping[str, Role] = MappingProxyType(
    {
        "add": ADD,
        "lease": WORK,
        "exchange": WORK,
        "renew": WORK,
        "release": WORK,
        "delete": WORK,
        "wait": READ,
        "observe": INSPECT,
        "peek": INSPECT,
        "events": INSPECT,
        "stats": READ,
        "queues": READ,
        "delete-by-name": ADMINISTER,
        "purge": ADMINISTER,
        "pause": ADMINISTER,
        "resume": ADMINISTER,
        "redrive": ADMINISTER,
        "set-queue": ADMINISTER,
        "workers": ADMINISTER,
        "lead": ADMINISTER,
    }
)
"""Any one of these roles allows the verb."""


class Gate:
    """Lets requests in by their headers, or raises what they are refused with."""

    def __init__(self, options: ServeOptions) -> None:
        self._tokens = tuple((sha256(token.secret.encode()).digest(), token.role) for token in options.tokens)
        self._guards_names = options.socket_path is None and is_loopback(options.host)
        self._hosts = frozenset(name.lower() for name in options.allowed_hosts)
        self._known: dict[bytes, None] = {}

    def check(self, headers: Headers, verb: str) -> None:
        """Raise `Problem` for a foreign `Host` or `Origin`, `PermissionDeniedError` for a token that does not do."""
        host = authorization = origin = None
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"authorization":
                authorization = value
            elif name == b"origin":
                origin = value
        if self._guards_names and host not in self._known:
            self._check_host(host)
        if origin is not None:
            self._check_origin(origin, host)
        if self._tokens:
            self._check_token(authorization, verb)

    def _check_host(self, host: bytes | None) -> None:
        """A page that made its own name resolve to 127.0.0.1 still sends that name (DNS rebinding)."""
        name = _hostname(host or b"")
        if name is None or not (is_loopback(name) or name in self._hosts):
            raise refusal(
                421,
                "foreign-host",
                f"this server listens on the loopback and is not called {name or 'that'}: "
                "use 127.0.0.1 or localhost, or add the name to its allowed hosts",
            )
        if host is not None and len(self._known) < 100:
            self._known[host] = None

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        text = origin.decode("latin-1")
        try:
            parts = urlsplit(text)
            ours = parts.netloc.lower() == (host or b"").decode("latin-1").lower() or parts.hostname in self._hosts
        except ValueError:
            ours = False
        if not ours:
            raise refusal(403, "foreign-origin", f"requests from pages of {text[:100]} are not taken")

    def _check_token(self, authorization: bytes | None, verb: str) -> None:
        role = self._role(authorization)
        if role is None:
            raise UnauthenticatedError("this server wants `Authorization: Bearer TOKEN`, with a token that it knows")
        needed = NEEDED[verb]
        if not role & needed:
            roles = ", ".join(str(one.name).lower() for one in Role if one & needed)
            raise PermissionDeniedError(
                f"{verb} needs a token of one of these roles: {roles}; this one is of role {str(role.name).lower()}"
            )

    def _role(self, authorization: bytes | None) -> Role | None:
        if authorization is None or authorization[:7].lower() != b"bearer ":
            return None
        digest = sha256(authorization[7:].strip()).digest()
        found = None
        for known, role in self._tokens:
            if compare_digest(known, digest):
                found = role
        return found


def _hostname(host: bytes) -> str | None:
    try:
        return urlsplit("//" + host.decode("ascii")).hostname
    except (ValueError, UnicodeDecodeError):
        return None
