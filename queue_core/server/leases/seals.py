"""Lease tokens as callers see them: the store's token, and a seal that only a server of the store can make (ADR 44).

A store's token is a task's id and the instant of the grant, which others can read off what `peek` shows. The seal is a
keyed hash of it, so a repeated call is answered with the same token, and nothing more is stored with a lease.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from queue_core.clock import Instant
from queue_core.errors import InvalidTokenError, StoreError, StoreUnavailableError
from queue_core.fast_values import value
from queue_core.server.callers.auth import Principal
from queue_core.task import parse_token
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork

SESSION: Final = ":lease-secret"
"""The session whose answer is the store's secret, as schedules are kept (ADR 38); no client's session has a colon."""
SECRET_BYTES: Final = 32
SEAL_BYTES: Final = 12
MAX_KNOWN_TOKENS: Final = 10_000
"""Tokens that were sealed and are remembered, at most."""
TRIES: Final = 3
"""Attempts to make a store's secret beside other servers that do so at the same time."""
_SEAL: Final = partial(blake2b, digest_size=SEAL_BYTES)
_NEVER_GRANTED: Final = "9" * 18
"""An instant that no lease was granted at, for tokens whose seal is wrong: they are not current."""


@dataclass(frozen=True, slots=True)
class LeaseSecret:
    """The secret of a store. Leases granted before `made_at` have tokens without a seal."""

    key: bytes = field(repr=False)
    made_at: Instant
    plain_of: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Tokens of the store by what they were sealed as lately, which need not be hashed again."""

    def seal(self, token: str) -> str:
        """Return a token of the store with its seal."""
        sealed = f"{token}.{_SEAL(token.encode(), key=self.key).hexdigest()}"
        if len(self.plain_of) >= MAX_KNOWN_TOKENS:
            self.plain_of.clear()
        self.plain_of[sealed] = token
        return sealed

    def opened(self, token: str, *, may_end_any: bool) -> str:
        """Return the store's token. A forged one becomes a token that is not current.

        `may_end_any`: the caller may give tokens without a seal. Raises `InvalidTokenError` for a text that is none.
        """
        plain, dot, seal = token.rpartition(".")
        if dot and "." in plain:
            if seal.isascii() and compare_digest(_SEAL(plain.encode(), key=self.key).hexdigest(), seal):
                return plain
            return _not_current(plain, token)
        _, granted_at = _parsed(token, token)
        return token if may_end_any or granted_at < self.made_at else _not_current(token, token)


def _not_current(plain: str, given: str) -> str:
    return f"{_parsed(plain, given)[0]}.{_NEVER_GRANTED}"


def _parsed(plain: str, given: str) -> tuple[int, Instant]:
    try:
        return parse_token(plain)
    except InvalidTokenError:
        raise InvalidTokenError(f"not a lease token: {given[:60]!r}; give the `token` of a lease unchanged") from None


def secret_of(work: UnitOfWork, make: Callable[[int], bytes] = secrets.token_bytes) -> LeaseSecret:
    """Return the store's secret, and make it if there is none. Raises `StoreUnavailableError` when another server makes
    it at the same time."""
    last = work.transaction.last_answer(SESSION)
    if last is not None:
        made_at, _, key = last[1].partition(b" ")
        return LeaseSecret(bytes.fromhex(key.decode()), Instant(int(made_at)))
    made = LeaseSecret(make(SECRET_BYTES), work.now)
    work.transaction.keep_answer(SESSION, 1, f"{made.made_at} {made.key.hex()}".encode(), now=work.now, kept="always")
    return made


class LeaseSeals:
    """Seals and opens the tokens of one server's callers, by its store's secret."""

    def __init__(self, service: QueueService, *, has_callers: bool = True) -> None:
        """`has_callers`: whether callers are told apart; otherwise all are administrators, and nothing is sealed."""
        self._service = service
        self.has_callers = has_callers
        self._secret: LeaseSecret | None = None

    def load(self) -> LeaseSecret:
        """Read the store's secret. Raises `StoreError`."""
        for left in reversed(range(TRIES)):
            try:
                self._secret = self._service.run(secret_of)
                break
            except StoreUnavailableError:
                if not left:
                    raise
        assert self._secret is not None, "it was read"
        return self._secret

    def try_load(self) -> None:
        """Read it if the store can be used now; otherwise the first call that needs it does."""
        try:
            self.load()
        except StoreError:
            self.forget()

    def forget(self) -> None:
        """Read the secret again with the next call: the store was emptied. Any thread may call this."""
        self._secret = None

    def seal(self, token: str) -> str:
        """Return a token of the store as its holder gets it."""
        return (self._secret or self.load()).seal(token) if self.has_callers else token

    def opened(self, tokens: Sequence[str], caller: Principal) -> "OpenedTokens":
        """Return the store's tokens for those that a caller gives. Raises `InvalidTokenError`."""
        secret = self._secret or self.load()
        known, plain = secret.plain_of, []
        for token in tokens:
            found = known.get(token)
            plain.append(secret.opened(token, may_end_any=caller.is_admin) if found is None else found)
        return OpenedTokens(plain, dict(zip(plain, tokens, strict=True)))


@value
class OpenedTokens:
    """Tokens of the store in the order given, and the caller's by the store's."""

    plain: Sequence[str]
    given: Mapping[str, str]

    def shown(self, token: str) -> str:
        """Return a token as its caller gave it."""
        return self.given.get(token, token)


NO_TOKENS: Final = OpenedTokens((), {})
