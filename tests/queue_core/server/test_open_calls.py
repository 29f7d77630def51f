"""Streams and long waits are bounded for each token and in all, leave room for admins, and end with their token."""

import json
import socket
from contextlib import ExitStack

import pytest

from queue_core.process.places import Places
from queue_core.server.base.event_stream import MAX_FOLLOWERS
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, Reply, RunningServer, a_server, read_reply, request

VIEWERS = [AccessToken(Role.VIEWER, f"viewer-{number}-0123456789") for number in range(3)]
ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
OPTIONS = ServeOptions(tokens=(*VIEWERS, ADMIN))
FOLLOW = "/v1/events?follow=true"
WAIT = json.dumps({"queues": [{"queue": QUEUE}], "wait_seconds": 30}).encode()


def with_token(token: AccessToken) -> list[tuple[str, str]]:
    return [("content-type", "application/json"), ("authorization", f"Bearer {token.secret}")]


def follow(server: RunningServer, token: AccessToken) -> socket.socket:
    """Follow the events; returns once that is answered."""
    connection = server.connect()
    connection.sendall(request("GET", FOLLOW, headers=with_token(token)))
    connection.recv(1 << 16, socket.MSG_PEEK)
    return connection


def is_followed(connection: socket.socket) -> bool:
    return connection.recv(1 << 16, socket.MSG_PEEK).startswith(b"HTTP/1.1 200")


def refused(server: RunningServer, token: AccessToken) -> Reply:
    return server.ask("GET", FOLLOW, headers=with_token(token))


def test_one_token_leaves_room_for_others_and_all_of_them_for_admins() -> None:
    with a_server(options=OPTIONS) as server, ExitStack() as stack:

        def followed(token: AccessToken, count: int) -> int:
            made = [stack.enter_context(follow(server, token)) for _ in range(count)]
            return sum(map(is_followed, made))

        assert followed(VIEWERS[0], MAX_FOLLOWERS) == MAX_FOLLOWERS // 2
        reply = refused(server, VIEWERS[0])
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert str(reply.json()["type"]).endswith("too-many-followers")
        assert f"{MAX_FOLLOWERS // 2} are open with this token" in str(reply.json()["detail"])
        assert followed(VIEWERS[1], MAX_FOLLOWERS) == MAX_FOLLOWERS * 4 // 10
        assert followed(VIEWERS[2], 1) == 0
        assert followed(ADMIN, MAX_FOLLOWERS) == MAX_FOLLOWERS // 10
        assert "is the limit" in str(refused(server, ADMIN).json()["detail"])


def test_a_place_is_given_back_as_the_follower_leaves() -> None:
    with a_server(options=OPTIONS) as server:
        for _ in range(2):
            with ExitStack() as stack:
                eventually(lambda: server.thread.core.ring.places.taken == 0)
                made = [stack.enter_context(follow(server, VIEWERS[0])) for _ in range(MAX_FOLLOWERS // 2)]
                assert all(map(is_followed, made))
        eventually(lambda: server.thread.core.ring.places.taken == 0)


def test_a_stream_ends_as_its_token_is_removed_and_no_other_does() -> None:
    with a_server(options=OPTIONS) as server, ExitStack() as stack:
        removed, kept = (stack.enter_context(follow(server, token)) for token in VIEWERS[:2])
        assert is_followed(removed)
        assert is_followed(kept)
        server.thread.renew(ServeOptions(tokens=(VIEWERS[1], ADMIN)))
        ended = b""
        while not ended.endswith(b"0\r\n\r\n"):  # the last chunk
            ended += removed.recv(1 << 16)
        eventually(lambda: server.thread.core.ring.places.taken == 1)
        body = b'{"tasks":[{"text":"x"}]}'
        assert server.ask("POST", f"/v1/queues/{QUEUE}/add", body, headers=with_token(ADMIN)).status == 200
        told = b""
        while b"task.added" not in told:
            told += kept.recv(1 << 16)


def test_calls_that_wait_are_bounded_for_a_token_that_does_no_work() -> None:
    with a_server(options=OPTIONS) as server, ExitStack() as stack:
        server.thread.core.long_waits.most = 10
        callers = [stack.enter_context(server.connect()) for _ in range(5)]
        for caller in callers:
            caller.sendall(request("POST", "/v1/wait", WAIT, headers=with_token(VIEWERS[0])))
        eventually(lambda: server.thread.core.long_waits.taken == 5)
        reply = server.ask("POST", "/v1/wait", WAIT, headers=with_token(VIEWERS[0]))
        assert (reply.status, str(reply.json()["type"]).endswith("too-many-waiting")) == (503, True)
        others = stack.enter_context(server.connect())
        others.sendall(request("POST", "/v1/wait", WAIT, headers=with_token(VIEWERS[1])))
        eventually(lambda: server.thread.core.long_waits.taken == 6)
        body = b'{"tasks":[{"text":"x"}]}'
        server.ask("POST", f"/v1/queues/{QUEUE}/add", body, headers=with_token(ADMIN))
        assert [read_reply(caller).status for caller in (*callers, others)] == [200] * 6
        eventually(lambda: server.thread.core.long_waits.taken == 0)


@pytest.mark.parametrize("most", [1, 2, 10, 100])
def test_there_is_at_least_one_place_for_everybody(most: int) -> None:
    places = Places(most)
    assert not places.refusal("a", is_admin=False)
    places.take("a")
    places.leave("a")
    assert places.taken == 0


def test_callers_who_are_not_told_apart_share_all_places() -> None:
    places = Places(4)
    for _ in range(4):
        assert not places.refusal(None, is_admin=True)
        places.take(None)
    assert places.refusal(None, is_admin=True)
