"""Streams of pages over HTTP: resumed by their last id, limited, ended with the session and with the server."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from queue_core.clock import MICROSECONDS, SystemClock
from queue_core.console.live import MAX_VIEWERS
from queue_core.console.sessions import PLAIN_COOKIE, SESSION_SECONDS, session_cookie
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs.roles import Role
from tests.console.following.readers import follow
from tests.console.visits import Visitor
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server

TOKEN = "viewer-token-0123456789"
PAGE = f"queues/{QUEUE}"


def now_seconds() -> float:
    return SystemClock().now() / MICROSECONDS


def add(server: RunningServer, payload: bytes, *, token: str | None = None) -> None:
    with closing(server.queue(token=token)) as queue:
        queue.add(payload)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with a_server() as server:
        yield server


def test_a_page_is_streamed_whenever_it_has_changed(running: RunningServer) -> None:
    with follow(running.port, PAGE) as reader:
        assert reader.status == 200
        assert "text/event-stream" in reader.head
        assert "x-accel-buffering: no" in reader.head.lower()
        first = reader.next("page")
        add(running, b"new")
        second = reader.next("page")
        assert second.id != first.id
        assert "ready" in second.data


def test_a_reader_that_connects_again_gets_only_what_it_has_not_seen(running: RunningServer) -> None:
    with follow(running.port, PAGE) as reader:
        seen = reader.next("page").id
    with follow(running.port, PAGE, seen=seen) as again:
        add(running, b"newer")
        assert again.next("page").id != seen, "the page that it has seen is not sent again"


def test_further_viewers_than_there_may_be_are_refused(running: RunningServer) -> None:
    readers = [follow(running.port, PAGE) for _ in range(MAX_VIEWERS)]
    try:
        with follow(running.port, PAGE) as refused:
            assert refused.status == 503
        readers.pop().close()

        def is_let_in() -> bool:
            with follow(running.port, PAGE) as reader:
                return reader.status == 200

        eventually(is_let_in)
    finally:
        for reader in readers:
            reader.close()


def test_a_stream_ends_with_its_session_and_says_so() -> None:
    with a_server(options=ServeOptions(tokens=(AccessToken(Role.VIEWER, TOKEN),))) as server:
        with follow(server.port, PAGE) as stranger:
            assert stranger.status == 401
        began = now_seconds() - SESSION_SECONDS + 2
        cookie = f"{PLAIN_COOKIE}={session_cookie(TOKEN, name='s', now_seconds=began)}"
        with follow(server.port, PAGE, cookie=cookie) as reader:
            assert reader.next("page").id
            assert reader.next("over").data == "session"
            reader.rest()
            assert reader.is_whole
        with follow(server.port, PAGE, cookie=cookie) as again:
            assert again.status == 401


def test_a_stream_ends_as_its_session_is_logged_out_or_its_token_removed() -> None:
    viewer, admin = AccessToken(Role.VIEWER, TOKEN), AccessToken(Role.ADMIN, "admin-token-0123456789")
    cookies = [f"{PLAIN_COOKIE}={session_cookie(TOKEN, name=name, now_seconds=now_seconds())}" for name in "ab"]
    with a_server(options=ServeOptions(tokens=(viewer, admin))) as server, ExitStack() as stack:
        first, second = (stack.enter_context(follow(server.port, PAGE, cookie=cookie)) for cookie in cookies)
        assert first.next("page").id == second.next("page").id
        left = Visitor(server.port, cookies=dict([cookies[0].split("=", 1)]))
        assert left.post("logout").path == "/console/login"
        assert first.next("over").data == "session"
        server.thread.renew(ServeOptions(tokens=(admin,)))
        assert second.next("over").data == "session"


def test_one_token_leaves_room_for_others_and_all_of_them_for_admins() -> None:
    tokens = [AccessToken(Role.VIEWER, f"viewer-{number}-0123456789") for number in range(3)]
    admin = AccessToken(Role.ADMIN, "admin-token-0123456789")

    def session_of(token: AccessToken) -> str:
        return f"{PLAIN_COOKIE}={session_cookie(token.secret, name='s', now_seconds=now_seconds())}"

    with a_server(options=ServeOptions(tokens=(*tokens, admin))) as server, ExitStack() as stack:

        def followed(token: AccessToken) -> list[int]:
            readers = [follow(server.port, PAGE, cookie=session_of(token)) for _ in range(60)]
            for reader in readers:
                stack.callback(reader.close)
            return [reader.status for reader in readers]

        assert [followed(token).count(200) for token in tokens] == [MAX_VIEWERS // 2, MAX_VIEWERS * 4 // 10, 0]
        assert followed(admin).count(200) == MAX_VIEWERS // 10


def test_streams_end_whole_with_their_server_and_go_on_with_the_next_one() -> None:
    store = MemoryStore()
    options = ServeOptions(tokens=(AccessToken(Role.ADMIN, TOKEN),))
    cookie = f"{PLAIN_COOKIE}={session_cookie(TOKEN, name='s', now_seconds=now_seconds())}"
    with a_server(store, options) as server:
        port = server.port
        readers = [follow(port, PAGE, cookie=cookie) for _ in range(20)]
        seen = {reader.next("page").id for reader in readers}
        assert len(seen) == 1
        server.thread.stop()
        for reader in readers:
            reader.rest()
            reader.close()
        assert all(reader.is_whole for reader in readers), "none was cut off by the end of the stop's time"
        next_one = ServerThread(store, ServeOptions(port=port, tokens=options.tokens))
        next_one.start()
        try:
            with follow(port, PAGE, seen=seen.pop(), cookie=cookie) as again:
                assert again.status == 200, "the session outlives the server"
                add(server, b"after the restart", token=TOKEN)
                assert again.next("page").id
        finally:
            next_one.stop()


def test_events_go_on_after_a_restart_from_the_first_one(running: RunningServer) -> None:
    add(running, b"an event")
    total = running.thread.core.ring.total
    assert running.thread.core.ring.resumed(str(total - 1), default=0) == total - 1
    assert running.thread.core.ring.resumed(str(total + 1000), default=total) == 0, "an id of another run"
    assert running.thread.core.ring.resumed("", default=total) == total


def test_a_stream_ends_when_tokens_are_renewed_so_that_its_viewers_rights_are_looked_up_anew() -> None:
    wide = AccessToken(Role.VIEWER, TOKEN)
    with a_server(options=ServeOptions(tokens=(wide,))) as server:
        cookie = session_cookie(TOKEN, name="a", now_seconds=now_seconds())
        with follow(server.port, PAGE, cookie=f"{PLAIN_COOKIE}={cookie}") as reader:
            reader.next("page")
            server.thread.renew(replace(server.thread.core.options, tokens=(replace(wide, queues=("other",)),)))
            with pytest.raises(EOFError):
                reader.next("over")
            assert reader.is_whole, "no session is over: the browser connects again"
        with follow(server.port, PAGE, cookie=f"{PLAIN_COOKIE}={cookie}") as again, pytest.raises(EOFError):
            again.next("page")
