"""Sessions: a cookie that says which token its bearer logged in with, without containing it. Pure.

A cookie is signed with the token itself. So every server that knows the token accepts it, nothing is stored but which
sessions have ended before their time, it survives a restart, and it ends with the token. It holds an id of the token, a
digest that does not reveal it, and a name of the session.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

SESSION_SECONDS: Final = 12 * 3600
"""How long a login lasts."""
PLAIN_COOKIE: Final = "towline_session"
"""The cookie's name on the loopback without TLS."""
SECURE_COOKIE: Final = "__Host-towline_session"
"""The cookie's name elsewhere: browsers take one of this name over TLS only, and for one host only."""
MAX_ENDED: Final = 1_000
"""Sessions of a token that were logged out, and that are remembered until they would have ended. With more of them the
token's older sessions all end."""
_SIGNED_FOR: Final = b"towline console 2"


def session_cookie(token: str, *, name: str, now_seconds: float) -> str:
    """Return the value of the cookie for somebody who has shown a token. `name`: this session's own, without a dot."""
    ends_at = int(now_seconds) + SESSION_SECONDS
    return f"{ends_at}.{name}.{_id_of(token)}.{_signature(token, ends_at, name)}"


def token_of_session(cookie: str, tokens: Iterable[str], *, now_seconds: float) -> str | None:
    """Return the token of a session that is not over; None for any other text. Takes equal time for all tokens."""
    ends, _, rest = cookie.partition(".")
    session, _, rest = rest.partition(".")
    name, _, signature = rest.partition(".")
    if not (ends.isascii() and ends.isdigit() and len(ends) <= 12) or not rest.isascii() or not session.isascii():
        return None
    found = None
    for token in tokens:
        is_named = hmac.compare_digest(_id_of(token), name)
        is_signed = hmac.compare_digest(_signature(token, int(ends), session), signature)
        if is_named and is_signed:
            found = token
    return found if int(ends) > now_seconds else None


def seconds_left(cookie: str, token: str, *, now_seconds: float) -> float:
    """Return how long a session with this token lasts; 0 for the cookie of no such session."""
    if token_of_session(cookie, [token], now_seconds=now_seconds) is None:
        return 0.0
    return float(cookie.partition(".")[0]) - now_seconds


def known_token(shown: str, tokens: Iterable[str]) -> str | None:
    """Return a token that was shown at the login, if it is one; compares in equal time."""
    digest, found = sha256(shown.encode("utf-8", "surrogatepass")).digest(), None
    for token in tokens:
        if hmac.compare_digest(sha256(token.encode()).digest(), digest):
            found = token
    return found


def _id_of(token: str) -> str:
    return hmac.new(token.encode(), b"towline console id", sha256).hexdigest()[:16]


def _signature(token: str, ends_at: int, session: str) -> str:
    return hmac.new(token.encode(), b"%s %d %s" % (_SIGNED_FOR, ends_at, session.encode()), sha256).hexdigest()


class EndedSessions:
    """The sessions that people have logged out of: their cookies open nothing any more, whoever has a copy.

    Bounded for each token: beyond that, all its sessions up to the last of those that are forgotten end.
    """

    def __init__(self) -> None:
        self._by_token: dict[str, dict[str, int]] = {}
        self._all_until: dict[str, int] = {}

    def end(self, cookie: str, token: str, *, now_seconds: float) -> None:
        """Remember that a session of this token is over."""
        if token_of_session(cookie, [token], now_seconds=now_seconds) is None:
            return
        ended = {one: at for one, at in self._by_token.get(_id_of(token), {}).items() if at > now_seconds}
        ended[cookie] = int(cookie.partition(".")[0])
        while len(ended) > MAX_ENDED:
            oldest = min(ended, key=ended.__getitem__)
            self._all_until[_id_of(token)] = ended.pop(oldest)
        self._by_token[_id_of(token)] = ended

    def has(self, cookie: str) -> bool:
        """Return whether a session, as its signed cookie says, was ended."""
        ends, _, token = cookie.split(".")[:3]
        return cookie in self._by_token.get(token, ()) or int(ends) <= self._all_until.get(token, 0)
