"""Sessions: a cookie that says which token its bearer logged in with, without containing it. Pure.

A cookie is signed with the token itself. So every server that knows the token accepts it, nothing is stored, it
survives a restart, and it ends with the token. It holds an id of the token, a digest that does not reveal it.
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
_SIGNED_FOR: Final = b"towline console 1"


def session_cookie(token: str, *, now_seconds: float) -> str:
    """Return the value of the cookie for somebody who has shown a token."""
    ends_at = int(now_seconds) + SESSION_SECONDS
    return f"{ends_at}.{_id_of(token)}.{_signature(token, ends_at)}"


def token_of_session(cookie: str, tokens: Iterable[str], *, now_seconds: float) -> str | None:
    """Return the token of a session that is not over; None for any other text. Takes equal time for all tokens."""
    ends, _, rest = cookie.partition(".")
    name, _, signature = rest.partition(".")
    if not (ends.isascii() and ends.isdigit() and len(ends) <= 12) or not signature.isascii() or not name.isascii():
        return None
    found = None
    for token in tokens:
        is_named = hmac.compare_digest(_id_of(token), name)
        is_signed = hmac.compare_digest(_signature(token, int(ends)), signature)
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


def _signature(token: str, ends_at: int) -> str:
    return hmac.new(token.encode(), b"%s %d" % (_SIGNED_FOR, ends_at), sha256).hexdigest()
