"""Guesses of tokens are logged, folded and without the token, and answered later; a right token never is."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.http.guesses import (
    DELAY_SECONDS,
    FORGET_SECONDS,
    FREE_GUESSES,
    MAX_DELAYED,
    MAX_PEERS,
    Guesses,
    peer_of,
)
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server, read_reply, request

ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
GUESS = "a-guess-0123456789"
PATHS = {
    "fast": ("POST", f"/v1/queues/{QUEUE}/lease"),
    "regular": ("GET", "/v1/queues"),
    "Cloud Tasks": ("GET", "/v2beta2/projects/p/locations/l/queues"),
    "metrics": ("GET", "/metrics"),
}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server(options=ServeOptions(tokens=(ADMIN,))) as server:
        yield server


def guessed(server: RunningServer, path: str, token: str = GUESS) -> int:
    method, address = PATHS[path]
    headers = [("content-type", "application/json"), ("authorization", f"Bearer {token}")]
    return server.ask(method, address, b"{}" if method == "POST" else None, headers=headers).status


def all_guesses(server: RunningServer) -> Guesses:
    with server.connect():
        return eventually(server.connections)[0].shared.guesses


@pytest.mark.parametrize("path", list(PATHS))
def test_a_refused_token_is_logged_without_the_token_and_folded(server: RunningServer, path: str) -> None:
    with capture_logs() as logged:
        assert [guessed(server, path) for _ in range(FREE_GUESSES)] == [401] * FREE_GUESSES
    refused = [one for one in logged if one["event"] == "token.refused"]
    assert [(one["address"], one["refused"]) for one in refused] == [("127.0.0.1", 1)], "one line for many"
    assert GUESS not in str(logged)


@pytest.mark.parametrize("path", list(PATHS))
def test_who_goes_on_guessing_waits_and_a_right_token_from_there_does_not(server: RunningServer, path: str) -> None:
    guesses = all_guesses(server)
    for _ in range(FREE_GUESSES):
        guesses.refused("127.0.0.1")
    method, address = PATHS[path]
    headers = [("content-type", "application/json"), ("authorization", f"Bearer {GUESS}")]
    with server.connect() as guesser:
        guesser.sendall(request(method, address, b"{}" if method == "POST" else None, headers=headers))
        eventually(lambda: guesses.delayed == 1)
        assert guessed(server, path, ADMIN.secret) == 200
        assert guesses.delayed == 1, "the guess waits still"
        assert read_reply(guesser).status == 401
    assert guesses.delayed == 0


def test_the_body_of_a_guess_that_waits_does_nothing(server: RunningServer) -> None:
    guesses = all_guesses(server)
    for _ in range(FREE_GUESSES):
        guesses.refused("127.0.0.1")
    body = b'{"tasks":[{"text":"x"}]}'
    headers = [("content-type", "application/json"), ("authorization", f"Bearer {GUESS}")]
    whole = request("POST", f"/v1/queues/{QUEUE}/add", body, headers=headers)
    with server.connect() as guesser:
        guesser.sendall(whole[: -len(body)])
        eventually(lambda: guesses.delayed == 1)
        guesser.sendall(body)
        assert read_reply(guesser).status == 401
    with closing(server.queue(token=ADMIN.secret)) as queue:
        assert queue.stats().ready == 0


def test_a_guess_at_the_login_of_the_console_counts(server: RunningServer) -> None:
    with capture_logs() as logged:
        assert Visitor(server.port).post("login", {"token": GUESS}).status == 401
        assert Visitor(server.port).get("login?once=guessed").status == 401
        assert Visitor(server.port).post("login", {"token": ADMIN.secret}).status == 200
    assert [one["refused"] for one in logged if one["event"] == "token.refused"] == [1]
    assert GUESS not in str(logged)


def test_a_call_without_a_token_is_no_guess(server: RunningServer) -> None:
    with capture_logs() as logged:
        for method, path in PATHS.values():
            assert server.ask(method, path, b"{}" if method == "POST" else None).status == 401
    assert "token.refused" not in [one["event"] for one in logged]


def test_a_guess_over_grpc_counts() -> None:
    pytest.importorskip("grpc")
    from queue_core.google.cloudtasks.grpc_server import GrpcGuesses

    with capture_logs() as logged:
        for peer in ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"):
            GrpcGuesses().refused(peer)
    assert [one["address"] for one in logged] == ["127.0.0.1", "::/64"]


# -- the rule ---------------------------------------------------------------------------------------------------------


class Told:
    """Counts the refusals of some peers at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.guesses = Guesses(lambda: self.now, lambda **_values: None)


def test_the_first_guesses_are_answered_at_once_and_again_after_a_minute_without_any() -> None:
    told = Told()
    assert [told.guesses.refused("a") for _ in range(FREE_GUESSES + 2)] == [0.0] * FREE_GUESSES + [DELAY_SECONDS] * 2
    assert told.guesses.refused("b") == 0.0, "another peer is not slowed"
    told.now = FORGET_SECONDS - 0.001
    assert told.guesses.refused("a") == DELAY_SECONDS
    told.now = 2 * FORGET_SECONDS
    assert told.guesses.refused("a") == 0.0


def test_no_more_connections_wait_than_there_may_be() -> None:
    told = Told()
    for _ in range(FREE_GUESSES):
        told.guesses.refused("a")
    assert {told.guesses.refused("a") for _ in range(MAX_DELAYED)} == {DELAY_SECONDS}
    assert told.guesses.refused("a") is None
    told.guesses.answered()
    assert told.guesses.refused("a") == DELAY_SECONDS


def test_peers_that_are_remembered_are_bounded() -> None:
    told = Told()
    for number in range(MAX_PEERS + 100):
        told.guesses.refused(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(told.guesses._peers) == MAX_PEERS


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("", "unix"),
    ],
)
def test_a_peer_is_its_address_or_its_network(address: str, peer: str) -> None:
    assert peer_of(address) == peer
