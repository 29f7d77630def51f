"""Sends hostile and largest requests through every door as every role, and says how long the loop stood still."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random

from tests.fuzz.stalls import hostile, http2
from tests.fuzz.stalls.doors import TASKQUEUE, Door, doors, rpc_body
from tests.fuzz.stalls.server import MIB, ROLES, TOKENS, Pause, ProbedServer

MAX_PAUSE_SECONDS = 0.05
MAX_GROWTH_BYTES = 20 << 20
WARM_BYTES = 1_000
CACHE_MIB = 40
"""What the caches of the store take, which it keeps, and some more."""
IDLE_SECONDS = 8.0
"""Without a fall of its memory for so long, a server has settled."""
SETTLED_SECONDS = 60.0
SHOWN_SECONDS = 0.025
"""Pauses from here on are shown as they come."""
SIZES = (3 * MIB // 64, MIB - 4_096, MIB - 4_096, 8 * MIB - 4_096, 64 * MIB - 4_096)
"""Bytes of bodies: a short one's, and the bounds of each kind of door."""
BIG = ("add", "exchange", "delete", "renew", "mailboxes", "schedules", "rpc_http", "tasks", "update", "batch")
"""Parts of the paths of doors that take the longer ones."""
RPC = ("BulkAdd", "Add", "QueryAndOwnTasks", "FetchQueues", "Delete", "UpdateQueue", "x" * 10_000)
GRPC = ("CreateTask", "LeaseTasks", "GetQueue", "UpdateQueue", "TestIamPermissions", "UploadQueueYaml", "ListTasks")
QUEUE = "/v1/queues/work"

Show = Callable[[str], object]
Measure = Callable[[Pause], float]
HELD: Measure = attrgetter("held_seconds")
OWN: Measure = attrgetter("own_seconds")
"""The loop's own processor time, which no other program on the machine makes much longer."""


def _hide(_line: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: what it is called in the table, and what is sent.

    Args:
        method: a method; or `HTTP/1.1`, `HTTP/2`: `body` is all that a connection is sent; or `gRPC`: a call.
    """

    door: str
    role: str
    kind: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The longest pause that a request brought about, and what it was answered."""

    request: Request
    pause: Pause
    status: int


@dataclass(slots=True)
class Report:
    """What came of all requests, and the memory before the first of them, after each door had its first ones, and
    after the last."""

    outcomes: list[Outcome] = field(default_factory=list)
    before: Pause = field(default_factory=Pause)
    once: Pause = field(default_factory=Pause)
    after: Pause = field(default_factory=Pause)
    show: Show = _hide

    def longest(self, measure: Measure = HELD) -> list[Outcome]:
        """Return the outcome with the longest pause of each door and role, the longest first."""
        found: dict[tuple[str, str], Outcome] = {}
        for one in sorted(self.outcomes, key=lambda one: -measure(one.pause)):
            found.setdefault((one.request.door, one.request.role), one)
        return list(found.values())

    def failures(self, measure: Measure = HELD) -> list[str]:
        """Return what was not as promised, a line each."""
        found = [line(one) for one in self.longest(measure) if measure(one.pause) > MAX_PAUSE_SECONDS]
        return [*found, *[f"answered 500: {line(one)}" for one in self.outcomes if one.status == 500]]

    @property
    def grown_bytes(self) -> int:
        """By how much the memory grew beyond what it is with full caches, which are filled and emptied all the time."""
        return self.after.resident_bytes - self.before.resident_bytes


HEADING = "   held = own + lock     gc  kernel    late"


def line(one: Outcome) -> str:
    """Return an outcome as a line of the table, in milliseconds."""
    request, pause = one.request, one.pause
    parts = (
        pause.held_seconds,
        pause.own_seconds,
        pause.lock_seconds,
        pause.collecting_seconds,
        pause.waited_seconds,
        pause.late_seconds,
    )
    shown = "".join(f"{seconds * 1000:7.1f}" for seconds in parts)
    told = f"{shown}  {one.status:3}  {request.role or 'nobody':9}{request.door}  {request.kind}"
    if pause.beside:
        told += f"  (beside {pause.beside})"
    return f"{told}\n        {pause.where}" if pause.where else told


def stalls(
    server: ProbedServer,
    *,
    seconds: float,
    seed: int,
    longest: Sequence[int] = SIZES,
    show: Callable[[str], object] = lambda _line: None,
) -> Report:
    """Send requests for so long, at least one to each door."""
    report, chance = Report(show=show), Random(seed)
    ways = doors(server)
    sessions = {role: server.session(role) for role in ROLES}
    _send_all(server, _warming(ways, sessions, chance), Report())
    report.before = _settled(server)
    show(f"before: {report.before.memory}")
    _send_all(server, _largest(), report)
    end = time.monotonic() + seconds
    first = True
    while first or time.monotonic() < end:
        chance.shuffle(ways)
        for door in ways:
            _send_all(server, _hostile(door, sessions, chance, longest), report)
            if not first and time.monotonic() > end:
                break
        _send_all(server, _over_grpc(chance), report)
        show(f"{len(report.outcomes):,} requests; {server.sized().memory}")
        if first and seconds > 60.0:  # of a short run both are one
            report.once = _settled(server)
            show(f"once:   {report.once.memory}")
        first = False
    report.after = _settled(server)
    if not report.once.resident_bytes:
        report.once = report.before
    return report


def _warming(ways: Sequence[Door], sessions: dict[str, str], chance: Random) -> Iterator[Request]:
    """Yield a short request to each door, so that what is loaded when it is first needed is there, and as many plain
    tasks as fill the caches of the store."""
    for door in ways:
        yield from _hostile(door, sessions, chance, (WARM_BYTES,))
    for method in GRPC:
        known = (("authorization", f"Bearer {TOKENS['admin']}"),)
        yield Request(f"gRPC {method}", "admin", "empty", "gRPC", f"{http2.SERVICE}/{method}", known, b"")
    known = (("authorization", f"Bearer {TOKENS['admin']}"), ("content-type", "application/json"))
    add = hostile.json_text({"tasks": [{"text": "x" * (MIB // 2)}]})
    peek = hostile.json_text({"limit": 1_000, "payload_bytes": MIB})
    for verb, body in [*[("add", add)] * (2 * CACHE_MIB), ("peek", peek), ("search", peek), ("purge", b"{}")]:
        yield Request(f"POST {QUEUE}/{verb}", "admin", "plain", "POST", f"{QUEUE}/{verb}", known, body)


def _settled(server: ProbedServer) -> Pause:
    """Return the memory once a server without callers has stopped to give some back."""
    end = time.monotonic() + SETTLED_SECONDS
    least, since = server.sized(), time.monotonic()
    while time.monotonic() < min(end, since + IDLE_SECONDS):
        time.sleep(0.5)
        found = server.sized()
        if found.resident_bytes < least.resident_bytes - MIB:
            since = time.monotonic()
        least = min(least, found, key=lambda one: one.resident_bytes)
    return least


def _send_all(server: ProbedServer, requests: Iterator[Request], report: Report) -> None:
    for request in requests:
        server.pause()
        status = _send(server, request)
        ended = server.process.poll()
        assert ended is None, f"the server ended with {ended}: {request.door} {request.kind} {server.log.read_text()}"
        found = server.pause()
        report.outcomes.append(Outcome(request, found, status))
        if found.held_seconds > SHOWN_SECONDS:
            report.show(line(report.outcomes[-1]))


def _send(server: ProbedServer, request: Request) -> int:
    """Send a request; returns the status of an answer over HTTP/1.1."""
    match request.method:
        case "HTTP/2":
            server.send(request.body or b"", port=server.grpc_port)
        case "HTTP/1.1":
            server.send(request.body or b"", port=server.port)
        case "gRPC":
            server.call(request.path, request.body or b"", request.headers)
        case _:
            return server.ask(request.method, request.path, request.body, headers=request.headers)[0]
    return 0


def _credentials(door: Door, role: str, sessions: dict[str, str]) -> tuple[tuple[str, str], ...]:
    if not role:
        return ()
    if door.path.startswith("/console"):
        return (("cookie", sessions[role]),)
    return (("authorization", f"Bearer {TOKENS[role]}"),)


def _hostile(door: Door, sessions: dict[str, str], chance: Random, sizes: Sequence[int]) -> Iterator[Request]:
    """Yield some requests through a door: by a stranger, and by one of the roles."""
    for role in ("", chance.choice(ROLES), "admin"):
        known = _credentials(door, role, sessions)
        own = (("sec-fetch-site", "same-origin"),) if door.path.startswith("/console") else ()

        def made(
            kind: str,
            path: str,
            headers: Sequence[tuple[str, str]] = (),
            body: bytes | None = None,
            role: str = role,
            before: tuple[tuple[str, str], ...] = (*known, *own),
        ) -> Request:
            names = {name for name, _ in headers}
            kept = tuple(one for one in before if one[0] not in names)
            return Request(door.label, role, kind, door.method, path, (*kept, *headers), body)

        address = door.address()
        header, query, odd = (chance.choice([*some]) for some in (hostile.HEADERS, hostile.QUERIES, hostile.PATHS))
        yield made(f"header: {header}", address, hostile.HEADERS[header](), b"{}" if door.method == "POST" else None)
        joint = "&" if "?" in address else "?"
        yield made(f"query: {query}", f"{address}{joint}{hostile.QUERIES[query]()}")
        yield made(f"path: {odd}", door.address(odd=hostile.PATHS[odd]()))
        size = chance.choice(sizes if any(part in door.path for part in BIG) else sizes[:3])
        if door.takes != "nothing":
            kind, headers, body = _body(door, size, chance)
            yield made(f"{kind}, {len(body):,} B", address, headers, body)


def _body(door: Door, size: int, chance: Random) -> tuple[str, Sequence[tuple[str, str]], bytes]:
    if door.takes == "form":
        kind, media_type, body = hostile.form(chance.choice((60_000, size)), chance)
        return kind, [("content-type", media_type)], body
    kind, body = hostile.body(door.members, size, chance)
    if door.takes == "json":
        return kind, [("content-type", "application/json")], body
    if door.takes == "rpc":
        method = chance.choice(RPC)
        body = body if chance.random() < 0.2 else rpc_body(body[: len(body) // 2 * 2], method)
        return f"{method[:20]} {kind}", [("content-type", "application/octet-stream")], body
    if door.takes == "batch":
        part = b"--cut\r\nContent-Type: application/http\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        whole = chance.choice(
            [part * (size // len(part)), b"--cut\r\n" * (size // 7), b"--cut\r\n" + body, b"\r\n" * (size // 2)]
        )
        return f"batch {kind}", [("content-type", "multipart/mixed; boundary=cut")], whole
    texts = [
        b"queue:\n" + b"- name: a\n" * (size // 10),
        b"queue: " + b"[" * size,
        b"queue: " + b"{a: " * (size // 4),
        b"a: &a [x]\n" + b"b: *a\n" * (size // 6),
        b"<queue-entries>" + b"<queue>" * (size // 7),
        b"? " * (size // 2),
        b"- " * (size // 2),
        b"'" * size,
        body,
    ]
    return "a file", [("content-type", chance.choice(["text/plain", "application/json"]))], chance.choice(texts)


def _on_one_connection() -> Iterator[Request]:
    """Yield what a connection may be sent at once: requests without waiting for an answer, chunks, heads."""
    for role in ("", "producer"):
        token = f"authorization: Bearer {TOKENS[role]}\r\n" if role else ""
        for path in ("/", "/livez", f"{QUEUE}/add", "/console/login", "/rpc_http", f"{TASKQUEUE}/work/tasks"):
            for kind, data in hostile.streams(path, token).items():
                yield Request(f"stream to {path}", role, kind, "HTTP/1.1", "", body=data)


def _over_grpc(chance: Random) -> Iterator[Request]:
    """Yield connections and calls for gRPC: everything that is a stranger's, and calls of a role."""
    for more, opening in http2.openings().items():
        for kind, data in http2.floods().items():
            yield Request("gRPC", "", f"{kind}{more}", "HTTP/2", "", body=opening + data)
    role = chance.choice(ROLES)
    known = (("authorization", f"Bearer {TOKENS[role]}"),)
    for kind, data in http2.floods(known).items():
        if chance.random() < 0.3:
            yield Request("gRPC", role, kind, "HTTP/2", "", body=http2.openings()[""] + data)
    for caller, size in ((role, MIB - 4_096), ("admin", chance.choice(SIZES))):
        known = (("authorization", f"Bearer {TOKENS[caller]}"),)
        for kind, message in http2.messages(size).items():
            method = chance.choice(GRPC)
            yield Request(
                f"gRPC {method}", caller, f"{kind}, {size:,} B", "gRPC", f"{http2.SERVICE}/{method}", known, message
            )


def _largest() -> Iterator[Request]:
    """Yield what may be asked for, at its largest."""
    known = (("authorization", f"Bearer {TOKENS['admin']}"), ("content-type", "application/json"))

    def made(kind: str, verb: str, body: bytes, method: str = "POST") -> Request:
        return Request(f"{method} {QUEUE}/{verb}", "admin", f"largest: {kind}", method, f"{QUEUE}/{verb}", known, body)

    yield from _on_one_connection()
    text = hostile.json_text
    members = ",".join(f'"a{number}":""' for number in range(60_000))
    twice = f'{{"tasks":[{{"headers":{{{members},"a59999":""}}}}]}}'.encode()
    yield made("a key twice", "add", twice)
    yield made("a key twice, short", "add", twice.replace(members.encode(), members[:63_000].encode() + b'"'))
    bomb = "[" * 200 + ",".join(["1"] * 32_000) + "]" * 200
    yield made("a deep payload", "add", text({"tasks": [{"name": "bomb", "text": bomb}]}))
    mebibyte = "A" * (4 * MIB // 3 // 4 * 4)
    yield made("base64", "add", text({"tasks": [{"payload": mebibyte, "tag": "big"}] * 45}))
    yield made("text", "add", text({"tasks": [{"text": 'a\n",' * (MIB // 8), "tag": "big"}] * 60}))
    yield made("letters", "add", text({"tasks": [{"text": "é€" * (MIB // 16), "tag": "big"}] * 60}))
    small = {"text": "x" * 1_000, "headers": {f"h{number}": "y" * 50 for number in range(50)}, "tag": "small"}
    yield made("1,000 tasks", "add", text({"tasks": [small] * 1_000}))
    for kind in ("small", "big"):
        yield made(f"lease {kind}", "lease", text({"count": 1_000, "tags": [kind], "seconds": 0}))
        more = {"limit": 1_000, "payload_bytes": MIB, "tags": [kind]}
        yield made(f"peek {kind}", "peek", text(more))
        yield made(f"search {kind}", "search", text({**more, "contains": "zz", "scan": 10_000}))
        yield made(f"found {kind}", "search", text({**more, "contains": "A"}))
    yield made("history", "history", text({"limit": 1_000}))
    yield made("1,000 names", "peek", text({"names": [f"{number:0500}" for number in range(1_000)]}))
    yield made("tokens", "renew", text({"tokens": ["1.1"] * 1_000}))
    yield made("releases", "release", text({"tokens": ["1.1"] * 1_000, "error": "e: " * 600}))
    then = {"token": "1.1", "then": [small]}
    yield made("deletions", "exchange", text({"deletions": [then] * 1_000}))
    yield made("all", "purge", b"{}")
    yield made("a deep payload", "add", text({"tasks": [{"name": "bomb", "text": bomb}]}))
