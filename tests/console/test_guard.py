"""What changes something comes from a page of the console itself; browsers say where a request is from."""

import pytest

from queue_core.console.guard import CONTENT_POLICY, is_secure_host, refusal_of_write

HOST = "queues.example:7878"
OWN = "http://queues.example:7878"


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "same-origin", "origin": OWN},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none", "origin": OWN},
        {"origin": OWN},
        {"origin": "https://QUEUES.example:7878"},  # behind a proxy that speaks TLS
    ],
)
def test_the_consoles_own_forms_are_served(headers: dict[str, str]) -> None:
    assert refusal_of_write({"host": HOST, **headers}) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": OWN},
        {"sec-fetch-site": "same-site", "origin": OWN},
        {"sec-fetch-site": "Same-Origin", "origin": OWN},
        {"sec-fetch-site": "", "origin": OWN},
        {"sec-fetch-site": "same-origin", "origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://["},
        {"origin": "http://queues.example"},
        {"origin": "http://queues.example:78780"},
        {"origin": "http://queues.example:7878.elsewhere.example"},
        {"origin": "http://a@queues.example:7878"},
    ],
)
def test_whatever_else_is_refused(headers: dict[str, str]) -> None:
    assert refusal_of_write({"host": HOST, **headers}) != ""


def test_a_request_without_a_host_is_refused() -> None:
    assert refusal_of_write({"origin": OWN}) != ""
    assert refusal_of_write({"origin": "file:///etc/passwd"}) != ""


@pytest.mark.parametrize(
    ("host", "is_secure"),
    [
        ("127.0.0.1:7878", False),
        ("localhost", False),
        ("[::1]:7878", False),
        ("queues.example", True),
        ("10.0.0.7:7878", True),
        ("localhost.elsewhere.example", True),
        ("[broken", True),
        ("", True),
    ],
)
def test_a_session_beyond_the_loopback_needs_tls(host: str, *, is_secure: bool) -> None:
    assert is_secure_host({"host": host}) is is_secure


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_POLICY.split(";"))
    assert directives["default-src"] == directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    allowed = {source for sources in directives.values() for source in sources.split()}
    assert allowed == {"'none'", "'self'", "data:"}
    assert [name for name, sources in directives.items() if "data:" in sources] == ["img-src"]
