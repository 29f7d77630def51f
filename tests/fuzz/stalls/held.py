"""What hostile callers can make a server hold at a time: unfinished bodies and heads, streams, mailbox messages."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tests.fuzz.stalls.server import REPLY_SECONDS, TOKENS, ProbedServer
from tests.support.servers import request

MIB = 1 << 20
BODIES, BODY_BYTES = 12, 62 * MIB
STREAMS = 100
HEADS, HEAD_BYTES = 4_000, 60 << 10
MESSAGES = 50_000
MESSAGES_AT_ONCE = 16
FOLLOW = "/v1/events?follow=true"


@dataclass(frozen=True, slots=True)
class Held:
    """What callers of one kind made a server hold.

    Args:
        done: what came of it, in words.
        grown_bytes: resident memory while they are there, beyond that of before.
        left_bytes: memory that the program uses when they are gone, beyond that of before.
        is_admin_answered: an admin was answered meanwhile.
    """

    kind: str
    done: str
    grown_bytes: int
    left_bytes: int
    is_admin_answered: bool


def figures(server: ProbedServer) -> Iterator[Held]:
    """Yield the figures of each kind of caller, one after the other."""
    for kind, hold in KINDS.items():
        before, resident = server.settled_bytes(), server.pause().resident_bytes
        with hold(server) as done:
            grown = server.pause().resident_bytes - resident
            is_answered = server.ask("GET", "/v1/stats", headers=_headers("admin"))[0] == 200
        yield Held(kind, done, grown, server.settled_bytes() - before, is_answered)


def shown(held: Held) -> str:
    """Return figures as a line."""
    answered = "an admin is answered" if held.is_admin_answered else "AN ADMIN IS NOT ANSWERED"
    grown, left = held.grown_bytes / MIB, held.left_bytes / MIB
    return f"{held.kind}: {held.done}; {grown:+.0f} MiB, {left:+.0f} MiB afterwards; {answered}"


def _headers(role: str) -> list[tuple[str, str]]:
    return [("content-type", "application/json"), ("authorization", f"Bearer {TOKENS[role]}")]


def _connected(server: ProbedServer, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=REPLY_SECONDS))


@contextmanager
def _unfinished_bodies(server: ProbedServer) -> Iterator[str]:
    """A producer's bodies, each without its last bytes."""
    with ExitStack() as stack:
        sent = 0
        for _ in range(BODIES):
            connection = _connected(server, stack)
            head = request("POST", "/v1/queues/work/add", headers=_headers("producer")).removesuffix(b"\r\n")
            connection.settimeout(2)
            with suppress(OSError):
                connection.sendall(head + f"content-length: {BODY_BYTES}\r\n\r\n".encode())
                for _ in range(BODY_BYTES // MIB - 1):
                    connection.sendall(bytes(MIB))
                    sent += MIB
        yield f"{sent / MIB:,.0f} MiB of {BODIES * BODY_BYTES / MIB:,.0f} sent"


@contextmanager
def _streams(server: ProbedServer) -> Iterator[str]:
    """A viewer that follows events on many connections."""
    with ExitStack() as stack:
        answers = []
        for role in [*["viewer"] * STREAMS, "admin"]:
            connection = _connected(server, stack)
            connection.sendall(request("GET", FOLLOW, headers=_headers(role)))
            answers.append(connection.recv(12))
        followed = sum(answer.endswith(b"200") for answer in answers[:-1])
        yield f"{followed} of {STREAMS} follow, and {'an' if answers[-1].endswith(b'200') else 'NO'} admin beside them"


@contextmanager
def _heads(server: ProbedServer) -> Iterator[str]:
    """A stranger's heads without an end."""
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * HEAD_BYTES
    with ExitStack() as stack:
        opened = 0
        for _ in range(HEADS):
            with suppress(OSError):
                connection = _connected(server, stack)
                connection.settimeout(2)
                connection.sendall(head)
                opened += 1
        yield f"{opened:,} of {HEADS:,} sent"


@contextmanager
def _messages(server: ProbedServer) -> Iterator[str]:
    """A worker's empty messages, in mailboxes of its own."""
    with ExitStack() as stack:
        connection = _connected(server, stack)

        def call(*bodies: dict[str, object]) -> None:
            whole = b"".join(
                request("POST", "/v1/mailboxes", json.dumps(body).encode(), headers=_headers("worker"))
                for body in bodies
            )
            connection.sendall(whole)
            answers = b""
            while answers.count(b"HTTP/1.1 ") < len(bodies) or not answers.endswith(b"}"):
                answers += connection.recv(1 << 16)

        boxes = [f"box-{number}" for number in range(MESSAGES // 5_000)]
        for box in boxes:
            call({"verb": "declare", "queue": box})
        for number in range(0, MESSAGES, MESSAGES_AT_ONCE):
            box = boxes[number // 5_000 % len(boxes)]
            call(*[{"verb": "put", "queue": box} for _ in range(min(MESSAGES_AT_ONCE, MESSAGES - number))])
        sizes = [json.dumps({"verb": "size", "queue": box}).encode() for box in boxes]
        counts = [server.ask("POST", "/v1/mailboxes", size, headers=_headers("worker"))[2] for size in sizes]
        yield f"{sum(json.loads(count)['count'] for count in counts):,} of {MESSAGES:,} kept"
        for box in boxes:
            call({"verb": "delete", "queue": box})


KINDS: Mapping[str, Callable[[ProbedServer], AbstractContextManager[str]]] = {
    f"{BODIES} unfinished bodies of {BODY_BYTES // MIB} MiB": _unfinished_bodies,
    f"{STREAMS} streams of a viewer": _streams,
    f"{HEADS:,} unfinished heads of {HEAD_BYTES >> 10} KiB": _heads,
    f"{MESSAGES:,} empty messages": _messages,
}
