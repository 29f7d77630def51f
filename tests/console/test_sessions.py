"""A session is a cookie that its token signs: no other text is one, and it ends."""

import pytest

from queue_core.console.sessions import (
    MAX_ENDED,
    SESSION_SECONDS,
    EndedSessions,
    known_token,
    session_cookie,
    token_of_session,
)

TOKENS = ("viewer-token", "admin-token")
NOW = 1_795_000_000.0
COOKIE = session_cookie("admin-token", name="s", now_seconds=NOW)
ENDS, SESSION, NAME, SIGNATURE = COOKIE.split(".")


@pytest.mark.parametrize("seconds", [0.0, 1.0, SESSION_SECONDS - 1.0])
def test_a_session_says_which_token_its_bearer_logged_in_with(seconds: float) -> None:
    assert token_of_session(COOKIE, TOKENS, now_seconds=NOW + seconds) == "admin-token"


def test_a_session_ends_after_twelve_hours() -> None:
    assert SESSION_SECONDS == 12 * 3600
    assert token_of_session(COOKIE, TOKENS, now_seconds=NOW + SESSION_SECONDS) is None


def test_a_session_ends_with_its_token() -> None:
    assert token_of_session(COOKIE, ("viewer-token",), now_seconds=NOW) is None


def test_a_session_does_not_contain_its_token_and_tells_nothing_of_another_one() -> None:
    assert "admin-token" not in COOKIE
    other = session_cookie("viewer-token", name="s", now_seconds=NOW)
    assert not {*other.split(".")[2:]} & {NAME, SIGNATURE}


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        ".",
        "..",
        "admin-token",
        f"{int(ENDS) + 1}.{SESSION}.{NAME}.{SIGNATURE}",  # a longer life
        f"0{ENDS}.{SESSION}.{NAME}.{SIGNATURE[:-1]}",
        f"{ENDS}.{SESSION}.{NAME}.",
        f"{ENDS}.{SESSION}.{NAME}.{SIGNATURE[:-1]}",
        f"{ENDS}.{SESSION}.{NAME}.{SIGNATURE[:-1]}{'0' if SIGNATURE[-1] != '0' else '1'}",
        f"{ENDS}.{SESSION}.{NAME}.{SIGNATURE}.x",
        f"{ENDS}.{SESSION}.{session_cookie('viewer-token', name='s', now_seconds=NOW).split('.')[2]}.{SIGNATURE}",
        f"{ENDS}.{SESSION}..{SIGNATURE}",
        f"{ENDS}.{NAME}.{SIGNATURE}",
        f"{ENDS}.another.{NAME}.{SIGNATURE}",
        f"{ENDS}..{NAME}.{SIGNATURE}",
        f"-1.{SESSION}.{NAME}.{SIGNATURE}",
        f"²³.{SESSION}.{NAME}.{SIGNATURE}",
        f"{'9' * 5000}.{SESSION}.{NAME}.{SIGNATURE}",
        f"{ENDS}.{SESSION}.ü.{SIGNATURE}",
        f"{ENDS}.ü.{NAME}.{SIGNATURE}",
        f"{ENDS}.{SESSION}.{NAME}.ü",
    ],
)
def test_no_other_text_is_a_session(cookie: str) -> None:
    assert token_of_session(cookie, TOKENS, now_seconds=NOW) is None


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("admin-token", "admin-token"),
        ("viewer-token", "viewer-token"),
        ("", None),
        ("admin-toke", None),
        ("admin-token ", None),
        ("\udcff", None),
    ],
)
def test_a_token_is_known_as_a_whole(shown: str, found: str | None) -> None:
    assert known_token(shown, TOKENS) == found


# -- logged out -------------------------------------------------------------------------------------------------------


def a_session(number: int, token: str = "admin-token", *, at: float = NOW) -> str:
    return session_cookie(token, name=f"s{number}", now_seconds=at)


def test_a_session_that_was_ended_is_known_and_no_other_one() -> None:
    ended = EndedSessions()
    ended.end(a_session(1), "admin-token", now_seconds=NOW)
    assert ended.has(a_session(1))
    assert not ended.has(a_session(2))
    assert not ended.has(a_session(1, "viewer-token"))


def test_a_text_that_is_no_session_ends_none() -> None:
    ended = EndedSessions()
    ended.end(a_session(1, "viewer-token"), "admin-token", now_seconds=NOW)
    ended.end(a_session(2), "admin-token", now_seconds=NOW + SESSION_SECONDS)
    assert not ended.has(a_session(1, "viewer-token"))
    assert not ended.has(a_session(2))


def test_of_more_ended_sessions_than_are_remembered_all_up_to_the_forgotten_ones_are_over() -> None:
    ended = EndedSessions()
    for number in range(MAX_ENDED + 5):
        ended.end(a_session(number, at=NOW + number), "admin-token", now_seconds=NOW + number)
    assert all(ended.has(a_session(number, at=NOW + number)) for number in range(MAX_ENDED + 5))
    assert ended.has(a_session(-1, at=NOW + 3)), "as old as one that was forgotten"
    assert not ended.has(a_session(-1, at=NOW + 500))
    assert not ended.has(a_session(1, "viewer-token"))


def test_sessions_that_would_be_over_by_now_are_forgotten() -> None:
    ended = EndedSessions()
    for number in range(MAX_ENDED):
        ended.end(a_session(number), "admin-token", now_seconds=NOW)
    later = NOW + SESSION_SECONDS
    for number in range(5):
        ended.end(a_session(number, at=later), "admin-token", now_seconds=later)
    assert not ended.has(a_session(-1, at=NOW + 1)), "none had to be forgotten before its time"
