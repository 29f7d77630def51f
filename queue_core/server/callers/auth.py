"""Bearer tokens with roles and scopes, and a guard against web pages that make a browser call this machine."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from queue_core.errors import PermissionDeniedError, UnauthenticatedError
from queue_core.process.loopback import is_loopback
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.base.problems import Problem, given_twice, refusal
from queue_core.unit.every_verb import VERBS
from queue_core.verbs.matching import CHANGES, permission_of
from queue_core.verbs.roles import ADD, ADMINISTER, INSPECT, OPERATE, READ, WORK, Role

Headers = Sequence[tuple[bytes, bytes]]

REQUIRED_ROLES: Mapping[str, Role] = MappingProxyType(
    {
        "add": ADD,
        "lease": WORK,
        "exchange": WORK,
        "renew": WORK,
        "release": WORK,
        "delete": WORK,
        "mailboxes": WORK,
        "wait": READ,
        "events": INSPECT,
        "register-worker": WORK,
        "backup": ADMINISTER,
        "vacuum": ADMINISTER,
        "operate": OPERATE,
        "kill": ADMINISTER,
        **{permission_of(name): action.role for name, action in CHANGES.items()},
        **{verb.permission: verb.role for verb in VERBS},
    }
)
"""The roles that allow a verb; one of them is enough. `operate` and `kill` are of a supervisor:
scale, drain, reload; and to end a worker."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as its token names it. Where the server has no tokens, every caller is an admin without a name.

    `queues`: patterns of the queues that its token is for; None: all. See `access`.
    """

    role: Role
    email: str | None = None
    queues: tuple[str, ...] | None = None
    mark: bytes = field(default=b"", repr=False, compare=False)
    """Tells callers apart whose role, email and queues are equal: the digest of the token, the same on each server."""
    is_admin: bool = field(init=False, repr=False, compare=False)
    """Whether its role is an administrator's. Kept, as each call asks and a flag is slow to test."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_admin", bool(self.role & Role.ADMIN))


MAX_RECENT = 100
"""Headers whose callers are remembered, so that a call on a connection that goes on does not hash its token again."""
MAX_GRANTED = 1_000
"""People whose tokens are kept that were admitted otherwise, at most."""

ANONYMOUS_ADMIN = Principal(Role.ADMIN)


OF_ALL_QUEUES: Final = frozenset(["backup", "vacuum"] + [verb.permission for verb in VERBS if verb.access is None])
"""Verbs that concern the whole store: a token for some queues is refused."""


def described(caller: Principal) -> str:
    """Return a caller as a log names it: its email, or its role."""
    if caller is ANONYMOUS_ADMIN:
        return "a caller without a token"
    return caller.email or f"a caller of role {str(caller.role.name).lower()}"


@dataclass(slots=True)
class Ticket:
    """The caller of a head that comes again on its connection, for as long as these tokens are in force (ADR 6)."""

    tokens: object = None
    caller: Principal = ANONYMOUS_ADMIN


class Authorizer:
    """Admits requests by their headers, or raises the error that they are refused with."""

    def __init__(self, options: ServeOptions) -> None:
        self.tokens: tuple[AccessToken, ...] = ()
        self.in_force: tuple[tuple[bytes, Principal], ...] = ()
        """The callers by the digest of their tokens; another object from a renewal on."""
        self.renew(options.tokens)
        self._checks_host = options.socket_path is None and is_loopback(options.host)
        self._hosts = frozenset(name.lower() for name in options.allowed_hosts)
        self._accepted_hosts: dict[bytes, None] = {}
        self._recent: dict[bytes, Principal] = {}
        self._recent_of: tuple[tuple[bytes, Principal], ...] = self.in_force
        self._granted: OrderedDict[Principal, tuple[bytes, str]] = OrderedDict()

    def renew(self, tokens: Sequence[AccessToken]) -> None:
        """Accept these tokens in place of the present ones. Any thread may call this: others read one name, once.

        The caller of a token that stays is the same object, by which what they keep open is counted.
        """
        known = dict(self.in_force)
        renewed = []
        for token in tokens:
            digest = sha256(token.secret.encode()).digest()
            caller = Principal(token.role, token.email, token.queues, digest)
            before = known.get(digest)
            renewed.append((digest, before if before == caller and before is not None else caller))
        self.tokens, self.in_force = tuple(tokens), tuple(renewed)

    def secrets(self) -> list[str]:
        """Return the tokens, as people show them."""
        return [token.secret for token in self.tokens]

    def is_current(self, caller: Principal) -> bool:
        """Return whether a caller who was admitted would be so now: their token may have been removed since."""
        if not self.in_force or caller in self._granted:
            return True
        return any(caller is known for _, known in self.in_force)

    def check(self, headers: Headers, verb: str) -> None:
        """Raise `Problem` for a foreign `Host` or `Origin`, `PermissionDeniedError` for a token without the role."""
        check_role(self.caller(headers), verb)

    def caller(self, headers: Headers) -> Principal:
        """Return the caller, for endpoints that check more than the role (`check_access`).

        Raises `Problem` for a foreign `Host` or `Origin`, `UnauthenticatedError` for no token or an unknown one.
        """
        authorization = self.check_host_and_origin(headers)
        return self._bearer(authorization) if self.in_force else ANONYMOUS_ADMIN

    def known_caller(self, headers: Headers) -> Principal | None:
        """Return the caller; None for a stranger, or a request that is refused."""
        try:
            return self.caller(headers)
        except (Problem, UnauthenticatedError):
            return None

    @property
    def has_tokens(self) -> bool:
        """Return whether callers are told apart; otherwise each may do everything."""
        return bool(self.in_force)

    def admitted(self, headers: Headers) -> Principal:
        """Return the caller of a request that `check` admitted. Raises `UnauthenticatedError`."""
        if not self.in_force:
            return ANONYMOUS_ADMIN
        for name, value in headers:  # noqa: B007 - the header's
            if name == b"authorization":
                break
        else:
            value = b""
        if self._recent_of is not self.in_force:
            self._recent, self._recent_of = {}, self.in_force
        found = self._recent.get(value)
        if found is None:
            found = self._bearer(value)
            if len(self._recent) < MAX_RECENT and found not in self._granted:
                self._recent[value] = found
        return found

    def stays(self, caller: Principal) -> bool:
        """Return whether a caller is one until the tokens are renewed; somebody whom `grant` admitted may go before."""
        return caller not in self._granted

    def grant(self, caller: Principal) -> str:
        """Return a token of this process for somebody who was admitted otherwise; the same for the same person."""
        if caller not in self._granted:
            secret = secrets.token_urlsafe()
            self._granted[caller] = (sha256(secret.encode()).digest(), secret)
            while len(self._granted) > MAX_GRANTED:
                self._granted.popitem(last=False)
        self._granted.move_to_end(caller)
        return self._granted[caller][1]

    def granted_role(self, secret: str) -> Role | None:
        """Return the role of somebody whom `grant` gave this token; None: it is another's."""
        return next((caller.role for caller, (_, known) in self._granted.items() if known == secret), None)

    def accepts(self, authorization: bytes | None) -> bool:
        """Return whether an `Authorization` header has a known token."""
        try:
            return not self.in_force or self._bearer(authorization) is not None
        except UnauthenticatedError:
            return False

    def check_host_and_origin(self, headers: Headers) -> bytes | None:
        """Raise `Problem` for a foreign `Host` or `Origin`; returns the `Authorization`, unchecked."""
        host = authorization = origin = None
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"authorization":
                if authorization is not None:
                    raise given_twice("Authorization")
                authorization = value
            elif name == b"origin":
                origin = value
        if self._checks_host and host not in self._accepted_hosts:
            self._check_host(host)
        if origin is not None:
            self._check_origin(origin, host)
        return authorization

    def _check_host(self, host: bytes | None) -> None:
        """Refuse unknown names: a page that made its own name resolve to 127.0.0.1 still sends it (DNS rebinding)."""
        name = _hostname(host or b"")
        if name is None or not (is_loopback(name) or name in self._hosts):
            raise refusal(
                421,
                "foreign-host",
                f"this server listens on the loopback and is not called {name or 'that'}: "
                "use 127.0.0.1 or localhost, or add the name to its allowed hosts",
            )
        if host is not None and len(self._accepted_hosts) < 100:
            self._accepted_hosts[host] = None

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        text = origin.decode("latin-1")
        try:
            parts = urlsplit(text)
            is_ours = parts.netloc.lower() == (host or b"").decode("latin-1").lower() or parts.hostname in self._hosts
        except ValueError:
            is_ours = False
        if not is_ours:
            raise refusal(403, "foreign-origin", f"requests from pages of {text[:100]} are refused")

    def _bearer(self, authorization: bytes | None) -> Principal:
        found = None
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            digest = sha256(authorization[7:].strip()).digest()
            for known, caller in self.in_force:
                if compare_digest(known, digest):
                    found = caller
            if found is None:
                for caller, (known, _) in self._granted.items():
                    if compare_digest(known, digest):
                        found = caller
        if found is None:
            raise UnauthenticatedError("this server needs `Authorization: Bearer TOKEN` with a token that it knows")
        return found


def check_role(caller: Principal, verb: str) -> None:
    """Raise `PermissionDeniedError` unless the caller's role allows the verb."""
    needed = REQUIRED_ROLES[verb]
    if not caller.role & needed:
        roles = ", ".join(str(one.name).lower() for one in Role if one & needed)
        raise PermissionDeniedError(
            f"{verb} needs a token of one of these roles: {roles}; this one is of role {str(caller.role.name).lower()}"
        )
    if caller.queues is not None and verb in OF_ALL_QUEUES:
        raise PermissionDeniedError(f"{verb} needs a token for all queues; this one is for {', '.join(caller.queues)}")


def _hostname(host: bytes) -> str | None:
    try:
        return urlsplit("//" + host.decode("ascii")).hostname
    except (ValueError, UnicodeDecodeError):
        return None
