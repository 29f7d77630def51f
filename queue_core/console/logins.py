"""Logins: which tokens people may log in with, and links that log one person in, once."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from queue_core.console.api import ConsoleApi
from queue_core.console.sessions import known_token

CODE_SECONDS: Final = 300
"""How long a one-time link may be used."""
MAX_CODES: Final = 10
MAX_LOGGED_IN: Final = 1_000
"""Tokens of another server that this console remembers, at most; whoever was the longest away logs in again."""


class Logins(Protocol):
    """The tokens of a console."""

    async def is_open(self) -> bool:
        """Return whether everybody may look who can reach the listener."""

    async def accepted(self, shown: str) -> str | None:
        """Return the token that somebody has shown, if it is one."""

    def tokens(self) -> Sequence[str]:
        """Return the tokens whose sessions go on."""


class OwnTokens:
    """The tokens of this server; none: it is open."""

    def __init__(self, tokens: Callable[[], Sequence[str]]) -> None:
        """`tokens`: returns those of now, as a reload may replace them."""
        self._tokens = tokens

    async def is_open(self) -> bool:
        """See `Logins.is_open`."""
        return not self._tokens()

    async def accepted(self, shown: str) -> str | None:
        """See `Logins.accepted`."""
        return known_token(shown, self._tokens())

    def tokens(self) -> Sequence[str]:
        """See `Logins.tokens`."""
        return self._tokens()


class RemoteTokens:
    """The tokens that another server accepts: it is asked at each login, and they are kept in memory only."""

    def __init__(self, api: ConsoleApi) -> None:
        self._api = api
        self._tokens: OrderedDict[str, None] = OrderedDict()

    async def is_open(self) -> bool:
        """See `Logins.is_open`. The server is asked each time: it may have got tokens since."""
        reply = await self._api.call("GET", "/v1/me")
        return reply.status not in (401, 403)

    async def accepted(self, shown: str) -> str | None:
        """See `Logins.accepted`."""
        token = shown.strip()
        if not token or not token.isascii() or not token.isprintable() or len(token) > 4_096:
            return None
        reply = await self._api.call("GET", "/v1/me", token=token)
        if not reply.is_done:
            return None
        self._tokens[token] = None
        self._tokens.move_to_end(token)
        while len(self._tokens) > MAX_LOGGED_IN:
            self._tokens.popitem(last=False)
        return token

    def tokens(self) -> Sequence[str]:
        """See `Logins.tokens`."""
        return tuple(self._tokens)


class OneTimeLogins:
    """Codes that log somebody in with a token that they need not know: each works once, for five minutes."""

    def __init__(self) -> None:
        self._codes: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def new(self, token: str, *, now_seconds: float) -> str:
        """Return a code for a token."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = (token, now_seconds + CODE_SECONDS)
        while len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def take(self, code: str, *, now_seconds: float) -> str | None:
        """Return the token of a code and forget the code; None for one that is used, too old or wrong."""
        token, ends_at = self._codes.pop(code, ("", 0.0))
        return token if token and now_seconds < ends_at else None
