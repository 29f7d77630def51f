"""A session is a cookie that its token signs: no other text is one, and it ends."""

import pytest

from queue_core.console.sessions import SESSION_SECONDS, known_token, session_cookie, token_of_session

TOKENS = ("viewer-token", "admin-token")
NOW = 1_795_000_000.0
COOKIE = session_cookie("admin-token", now_seconds=NOW)
ENDS, NAME, SIGNATURE = COOKIE.split(".")


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
    other = session_cookie("viewer-token", now_seconds=NOW)
    assert not {*other.split(".")[1:]} & {NAME, SIGNATURE}


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        ".",
        "..",
        "admin-token",
        f"{int(ENDS) + 1}.{NAME}.{SIGNATURE}",  # a longer life
        f"0{ENDS}.{NAME}.{SIGNATURE[:-1]}",
        f"{ENDS}.{NAME}.",
        f"{ENDS}.{NAME}.{SIGNATURE[:-1]}",
        f"{ENDS}.{NAME}.{SIGNATURE[:-1]}{'0' if SIGNATURE[-1] != '0' else '1'}",
        f"{ENDS}.{NAME}.{SIGNATURE}.x",
        f"{ENDS}.{session_cookie('viewer-token', now_seconds=NOW).split('.')[1]}.{SIGNATURE}",
        f"{ENDS}..{SIGNATURE}",
        f"-1.{NAME}.{SIGNATURE}",
        f"²³.{NAME}.{SIGNATURE}",
        f"{'9' * 5000}.{NAME}.{SIGNATURE}",
        f"{ENDS}.ü.{SIGNATURE}",
        f"{ENDS}.{NAME}.ü",
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
