"""A response whose head equals the last one, but for its content length, bypasses the parser; any other is parsed."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from queue_core.client.http.transport import (
    READ_BYTES,
    HttpClientConnection,
    HttpResponse,
    ResponseLostError,
    ServerAddress,
    body_after,
    known_head,
)

HEAD = b"HTTP/1.1 200 OK\r\ndate: Sat, 01 Jan 2022 00:00:00 GMT\r\ncontent-type: application/json\r\n"
LATER = HEAD.replace(b"00:00:00", b"00:00:01")
CHUNKED = b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
ASKED_SECONDS = 5.0


def _answer(body: bytes, *, head: bytes = HEAD, length: int | None = None) -> bytes:
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body) if length is None else length, body)


@contextmanager
def _answering(place: Path, answers: Sequence[bytes]) -> Iterator[HttpClientConnection]:
    """A connection to a server that gives these answers, then hangs up."""
    path = str(place / "socket")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            taken, _ = listener.accept()
            with closing(taken):
                for answer in answers:
                    taken.recv(1000)
                    taken.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        with closing(HttpClientConnection(ServerAddress("unix", "", 0, path))) as connection:
            yield connection
        thread.join(ASKED_SECONDS)


def test_answers_of_every_size_come_whole_whatever_the_head_before_said(tmp_path: Path) -> None:
    bodies = [b"{}", b'{"leases":[]}', b"", b"x" * (3 * READ_BYTES), b"{}"]
    others = [b"later", b"none other"]
    answers = [*(_answer(body) for body in bodies), *(_answer(body, head=LATER) for body in others)]
    with _answering(tmp_path, answers) as connection:
        read = [connection.request(b"ask", timeout_seconds=ASKED_SECONDS) for _ in answers]
    assert read == [(HttpResponse(200, body), True) for body in bodies + others]


def test_a_status_a_form_and_a_close_are_seen_after_a_known_head(tmp_path: Path) -> None:
    refused = HEAD.replace(b"200 OK", b"503 Service Unavailable")
    closing_head = HEAD + b"connection: close\r\n"
    answers = [_answer(b"{}"), _answer(b"{}", head=refused), HEAD + CHUNKED, _answer(b"{}", head=closing_head)]
    with _answering(tmp_path, answers) as connection:
        read = [connection.request(b"ask", timeout_seconds=ASKED_SECONDS) for _ in answers]
    assert read == [
        (HttpResponse(status, b"{}"), reusable)
        for status, reusable in zip((200, 503, 200, 200), (1, 1, 1, 0), strict=True)
    ]


def test_an_answer_cut_short_after_a_known_head_is_lost(tmp_path: Path) -> None:
    with _answering(tmp_path, [_answer(b"{}"), _answer(b"{", length=2)]) as connection:
        connection.request(b"ask", timeout_seconds=ASKED_SECONDS)
        with pytest.raises(ResponseLostError, match="closed the connection"):
            connection.request(b"ask", timeout_seconds=ASKED_SECONDS)


def test_only_an_answer_whose_size_ends_its_head_makes_that_known() -> None:
    response = HttpResponse(200, b"{}")
    assert known_head(response, _answer(b"{}")) == HEAD + b"content-length: "
    assert known_head(HttpResponse(404, b"{}"), _answer(b"{}")) == b""
    assert known_head(response, HEAD + b"content-length: 2\r\nserver: s\r\n\r\n{}") == b""
    assert known_head(response, HEAD + CHUNKED) == b""
    assert known_head(response, _answer(b"{}", head=HEAD + b"x: %b\r\n" % (b"y" * 3000))) == b""


@pytest.mark.parametrize(
    "data",
    [
        _answer(b"{}", length=1),
        _answer(b"{}", length=3),
        _answer(b"{}", head=LATER),
        HEAD + b"content-length: 2, 2\r\n\r\n{}",
        HEAD + b"content-length: -2\r\n\r\n{}",
        HEAD + b"content-length: 2\r\nconnection: close\r\n\r\n{}",
        HEAD + b"content-length: 2\r\n\r",
        HEAD + b"content-length: \r\n\r\n",
        b"",
    ],
)
def test_whatever_else_follows_a_known_head_is_for_the_parser(data: bytes) -> None:
    assert body_after(HEAD + b"content-length: ", data) is None
