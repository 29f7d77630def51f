"""A stand-in for Kubernetes' API that can be asked for what a real one can't: watches that hang, answers that are lost.

It isn't believed by itself: every promise of the runtime is held against it and against a real control plane.
"""

import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, Final, cast

from tests.support.kubernetes.cluster import ApiAccess, Cluster, Json
from tests.support.kubernetes.objects import (
    ENDED,
    Change,
    Key,
    Objects,
    RefusalError,
    is_selected,
    merged,
    now_text,
    pages,
)

BOOKMARK_SECONDS: Final = 60.0
COLLECT_SECONDS: Final = 0.2
_NAMED: Final = r"(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?$"
_VERSION: Final = r"/apis?/(?:[^/]+/)?v\d[^/]*/"
_NAMESPACED: Final = re.compile(rf"{_VERSION}namespaces/(?P<namespace>[^/]+)/{_NAMED}")
_WHOLE: Final = re.compile(_VERSION + _NAMED)
PERSON: Final = "a-person"
"""The token of a test."""
_METADATA_ONLY: Final = "as=PartialObjectMetadataList"
_KINDS: Final = {"pods": "Pod", "configmaps": "ConfigMap", "nodes": "Node", "namespaces": "Namespace"}
_VERBS: Final = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_GONE: Final = "The provided continue parameter or resource version is too old"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that came: "create", "get", "list", "watch", "delete" or "patch" of a kind of object, and who made it."""

    verb: str
    resource: str
    name: str
    query: Mapping[str, str]
    body: Json
    token: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in place of the right one; `headers` beside those of every answer.

    With `is_lost` the call is carried out, and its connection ends without a word of that.
    """

    status: int = 503
    reason: str = "ServiceUnavailable"
    message: str = "the server is currently unable to handle the request"
    headers: Mapping[str, str] = field(default_factory=dict)
    is_lost: bool = False


LOST: Final = Answer(is_lost=True)


@dataclass
class _Fault:
    verb: str
    answer: Answer
    times: int


class Watch:
    """A watch that is open, as the server sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self.is_frozen = False
        self.said: list[bytes] = []
        self._connection = connection

    def cut(self) -> None:
        """End its connection in the middle of whatever is sent."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class StandIn:
    """The server: what it holds, what it was asked, and what it does wrong.

    Attributes:
        url: where it is.
        token: the one it takes; "" takes all.
        has_bookmarks: send them as a client asks for them.
        holds_events: say nothing on watches, open ones and new ones, as a connection that is half open.
    """

    def __init__(self) -> None:
        self.objects = Objects()
        self.token = ""
        self.has_bookmarks = True
        self.holds_events = False
        self.bookmark_seconds = BOOKMARK_SECONDS
        self.reorders: Callable[[list[Change]], list[Change]] = list
        self.calls: list[Call] = []
        self.watches: list[Watch] = []
        self.is_ended = False
        self._faults: list[_Fault] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stand_in = self
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def cluster(self) -> Cluster:
        """Calls by a person: they are always answered, and not taken down."""
        return Cluster(ApiAccess(self.url, PERSON))

    def kubeconfig(self, file: Path, *, token: str = "", namespace: str = "fleet") -> Path:
        """Write a kubeconfig for a client with a token."""
        context = {"cluster": "here", "user": "me", "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": token or self.token or "a-client"}}],
            "contexts": [{"name": "tests", "context": context}],
        }
        file.write_text(json.dumps(content))
        return file

    def answer(self, verb: str, answer: Answer, *, times: int = 1) -> None:
        """Answer the next calls of a verb like this."""
        with self.objects.lock:
            self._faults.append(_Fault(verb, answer, times))

    def end_watches(self, error: Json | None = None) -> None:
        """End all watches: with an ERROR event inside the stream, or without a word."""
        with self.objects.lock:
            for watch in self.watches:
                if error is None:
                    watch.cut()
                else:
                    watch.said.append(_line("ERROR", error))
            self.objects.changed.notify_all()

    def asked(self, verb: str, resource: str = "pods") -> list[Call]:
        """Return the calls of a verb so far."""
        with self.objects.lock:
            return [call for call in self.calls if (call.verb, call.resource) == (verb, resource)]

    def fault_of(self, call: Call) -> Answer | None:
        """Take down a call, and return what to answer in place of the right answer."""
        if call.token == PERSON:
            return None
        with self.objects.lock:
            self.calls.append(call)
            for fault in self._faults:
                if fault.verb == call.verb and fault.times and call.resource == "pods":
                    fault.times -= 1
                    return fault.answer
        return None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """End every connection and thread."""
        self.is_ended = True
        self.end_watches()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()

    def _collect(self) -> None:
        while not self.is_ended:
            self.objects.collect_orphans()
            time.sleep(COLLECT_SECONDS)


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Run a stand-in without objects."""
    server = StandIn()
    server.start()
    try:
        yield server
    finally:
        server.end()


def expired(code: int = 410) -> Json:
    """Return the status of a version that is too old, as an answer has it or an event."""
    return _status(code, "Expired" if code == 410 else "InternalError", _GONE)


def _status(code: int, reason: str, message: str) -> Json:
    head: Json = {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure"}
    return {**head, "code": code, "reason": reason, "message": message}


def _line(kind: str, found: Json) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    stand_in: StandIn

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()

    def process_request(self, request: object, client_address: object) -> None:
        self._open.add(cast("socket.socket", request))
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def shutdown_request(self, request: object) -> None:
        self._open.discard(cast("socket.socket", request))
        super().shutdown_request(request)  # type: ignore[arg-type]

    def end_connections(self) -> None:
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that end their connections are part of most tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    does: ClassVar[Mapping[str, str]] = _VERBS

    @property
    def stand_in(self) -> StandIn:
        return cast("_Server", self.server).stand_in

    @property
    def objects(self) -> Objects:
        return self.stand_in.objects

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _handle(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body: Json = json.loads(self.rfile.read(length)) if length else {}
        path, _, text = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(text))
        match = _NAMESPACED.match(path) or _WHOLE.match(path)
        if match is None:
            self._send(404, _status(404, "NotFound", f"the server could not find the requested resource: {path}"))
            return
        parts = {"namespace": "", **{name: part or "" for name, part in match.groupdict().items()}}
        key = Key(parts["resource"], parts["namespace"], parts["name"])
        is_watch = query.get("watch") in ("1", "true")
        reading = "watch" if is_watch else "get" if key.name else "list"
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        call = Call(self.does.get(self.command, reading), key.resource, key.name, query, body, token)
        fault = self.stand_in.fault_of(call)
        if self.stand_in.token and token not in (self.stand_in.token, PERSON):
            fault = Answer(401, "Unauthorized", "Unauthorized")
        if fault is not None and not fault.is_lost:
            self._send(fault.status, _status(fault.status, fault.reason, fault.message), fault.headers)
            return
        try:
            status, answer = self._carried_out(call, key, parts["sub"])
        except RefusalError as error:
            status, answer = error.status, _status(error.status, error.reason, str(error))
        if fault is not None:
            self.close_connection = True
        elif answer is not None:
            self._send(status, answer)

    def _carried_out(self, call: Call, key: Key, sub: str) -> tuple[int, Json | None]:
        match call.verb:
            case "create" if sub in ("binding", "eviction"):
                return 201, self._of_pod(key, sub, call.body)
            case "create":
                return 201, self._create(key, call)
            case "patch":
                return 200, self.objects.change(key, lambda found: merged(found, call.body))
            case "delete":
                return 200, self._delete(key, call.body)
            case "watch":
                self._watch(key, call.query)
                return 200, None
            case "list":
                return 200, self._list(key, call.query)
        if sub == "log":
            return 200, {"text": "lines\n"}
        return 200, self.objects.find(key)

    def _create(self, key: Key, call: Call) -> Json:
        if not key.name and "review" in key.resource:
            return {**call.body, "status": {"allowed": True}}
        named = key._replace(name=str(call.body["metadata"]["name"]))
        return self.objects.create(named, call.body, is_dry=call.query.get("dryRun") == "All")

    def _of_pod(self, key: Key, sub: str, body: Json) -> Json:
        if sub == "eviction":
            said = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            self.objects.change(key, lambda pod: _add_condition(pod, said))
            self.objects.delete(key)
            return {**_status(201, "", ""), "status": "Success"}

        def bind(pod: Json) -> None:
            pod["spec"]["nodeName"] = body["target"]["name"]
            _add_condition(pod, {"type": "PodScheduled", "status": "True"})

        self.objects.change(key, bind)
        return {**_status(201, "", ""), "status": "Success"}

    def _delete(self, key: Key, options: Json) -> Json:
        uid = str((options.get("preconditions") or {}).get("uid", ""))
        return self.objects.delete(key, grace_seconds=options.get("gracePeriodSeconds"), uid=uid)

    # -- lists and watches ---------------------------------------------------------------------------------------------

    def _list(self, key: Key, query: Mapping[str, str]) -> Json:
        with self.objects.lock:
            selector = query.get("labelSelector", "")
            found = [one for one in self.objects.all_of(key.resource, key.namespace) if is_selected(one, selector)]
            version = self.objects.version
        size = int(query.get("limit") or 0)
        chunks = list(pages(found, limit=size))
        number = int(query.get("continue") or 0)
        metadata: Json = {"resourceVersion": version}
        if number + 1 < len(chunks):
            metadata["continue"] = str(number + 1)
        head = {"apiVersion": "v1", "kind": f"{_KINDS.get(key.resource, 'Object')}List", "metadata": metadata}
        items = chunks[number]
        if _METADATA_ONLY in (self.headers.get("accept") or ""):
            head |= {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList"}
            items = [{"metadata": one["metadata"]} for one in items]
        return {**head, "items": items}

    def _watch(self, key: Key, query: Mapping[str, str]) -> None:
        begun = self.objects.number_of(query.get("resourceVersion", ""))
        if begun is None or begun < self.objects.forgotten:
            raise RefusalError(410, "Expired", _GONE)
        watch = Watch(self.connection)
        self.stand_in.watches.append(watch)
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            self._follow(watch, key, query, begun)
            self._chunk(b"")
        finally:
            self.stand_in.watches.remove(watch)

    def _follow(self, watch: Watch, key: Key, query: Mapping[str, str], seen: int) -> None:
        """Send what changes until the client's time is up, or an error was sent."""
        until = time.monotonic() + float(query.get("timeoutSeconds") or 3600)
        marks = query.get("allowWatchBookmarks") in ("1", "true")
        marked = time.monotonic()
        while not self.stand_in.is_ended and time.monotonic() < until:
            with self.objects.lock:
                if not self.stand_in.holds_events and not watch.is_frozen:
                    changes, said = self.objects.since(seen), watch.said
                    watch.said = []
                else:
                    changes, said = [], []
                version = self.objects.version
                if not changes and not said:
                    self.objects.changed.wait(0.05)
            seen = changes[-1].number if changes else seen
            for change in self.stand_in.reorders(changes):
                line = _event(change, key, query.get("labelSelector", ""))
                if line:
                    self._chunk(line)
            for line in said:
                self._chunk(line)
            if said:
                return
            is_due = time.monotonic() - marked > self.stand_in.bookmark_seconds
            if marks and self.stand_in.has_bookmarks and not changes and is_due and not self.stand_in.holds_events:
                marked = time.monotonic()
                head: Json = {"apiVersion": "v1", "kind": _KINDS.get(key.resource, "Object")}
                self._chunk(_line("BOOKMARK", {**head, "metadata": {"resourceVersion": version}}))

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def _send(self, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
        text = str(body["text"]).encode() if set(body) == {"text"} else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain" if set(body) == {"text"} else "application/json")
        self.send_header("content-length", str(len(text)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)
        self.wfile.flush()


def _event(change: Change, key: Key, selector: str) -> bytes:
    """Return the event that a watch of some objects has of a change; b"" for one that is none of its business."""
    if change.key.resource != key.resource or key.namespace not in ("", change.key.namespace):
        return b""
    is_in = is_selected(change.became, selector)
    was_in = change.was is not None and is_selected(change.was, selector)
    if change.kind == "DELETED" and was_in:
        return _line("DELETED", change.became)
    if is_in and change.kind != "DELETED":
        return _line("MODIFIED" if was_in else "ADDED", change.became)
    return _line("DELETED", change.became) if was_in else b""


def _add_condition(pod: Json, said: Json) -> None:
    conditions = [one for one in pod["status"].get("conditions", ()) if one["type"] != said["type"]]
    pod["status"]["conditions"] = [*conditions, {"lastTransitionTime": now_text(), **said}]


__all__ = ["ENDED", "LOST", "Answer", "Call", "StandIn", "expired", "stand_in"]
