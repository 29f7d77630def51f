"""The API as the console calls it: of the server that it is a part of, or of another one by HTTP."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast
from urllib.parse import quote, unquote, urlencode

from pydantic_core import from_json, to_json
from starlette.types import ASGIApp, Message, Scope

from queue_core.client.http.caller import HttpCaller, Repeat, Retries
from queue_core.errors import StoreUnavailableError
from queue_core.verbs.wire import Json

RETRIES: Final = Retries(tries=2, timeouts=1)
TIMEOUT_SECONDS: Final = 10.0
"""How long a reply of another server may take: a person waits."""
MAX_CALLERS: Final = 100
"""Tokens whose connections to another server are kept."""
DOCUMENT: Final = "/openapi.json"
Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A reply: its HTTP status and its JSON."""

    status: int
    body: Json

    @property
    def is_done(self) -> bool:
        """Return whether the call succeeded."""
        return self.status < 300


class ApiProblemError(Exception):
    """The API refused a call; `detail` says why, in a sentence for people."""

    def __init__(self, reply: ApiReply) -> None:
        self.status = reply.status
        self.detail = str(reply.body.get("detail") or reply.body.get("title") or f"status {reply.status}")
        self.kind = str(reply.body.get("type", "")).rpartition(":")[2].rpartition("/")[2]
        self.url = str(reply.body.get("url") or "")
        super().__init__(self.detail)


def refused(detail: str, *, status: int = 422) -> ApiProblemError:
    """Return the error of a form that the console itself refuses."""
    return ApiProblemError(ApiReply(status, {"detail": detail}))


class ConsoleApi(Protocol):
    """Calls to the API, each with the viewer's token."""

    async def call(
        self, method: str, path: str, body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        """Make one call; `path` is quoted already. Raises nothing for an error status."""


class OwnServer:
    """The API of the server in this process, called without a socket."""

    def __init__(self, app: ASGIApp, *, host: str, paths: Iterable[str]) -> None:
        """Args:
        host: the name by which the server is called, as its guard against foreign pages wants one.
        paths: those of the API, which pages ask for; the whole document takes 0.1 s to make.
        """
        self._app = app
        self._host = host.encode()
        self._paths: Json = {path: {} for path in paths}

    async def call(
        self, method: str, path: str, body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        """See `ConsoleApi.call`. Of the document it answers the paths alone."""
        if path == DOCUMENT:
            return ApiReply(200, {"paths": self._paths})
        data = b"" if body is None else to_json(body)
        headers = [(b"host", self._host), (b"content-length", b"%d" % len(data))]
        if body is not None:
            headers.append((b"content-type", b"application/json"))
        if token is not None:
            headers.append((b"authorization", b"Bearer " + token.encode()))
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query).encode(),
            "headers": headers,
            "client": None,
            "server": None,
        }
        return await _in_process(self._app, scope, data)


async def _in_process(app: ASGIApp, scope: Scope, data: bytes) -> ApiReply:
    status, parts = 500, list[bytes]()
    is_sent = False
    hang_up = asyncio.Event()  # never set: the console waits for every reply

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await hang_up.wait()
        is_sent = True
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return ApiReply(status, _json(b"".join(parts)))


class OtherServer:
    """The API of another server, by HTTP. The calls wait in threads."""

    def __init__(self, url: str) -> None:
        """Raises `InvalidSettingError` for a wrong URL."""
        self._url = url
        self._callers: OrderedDict[str | None, HttpCaller] = OrderedDict()
        self._caller(None)

    async def call(
        self, method: str, path: str, body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        """See `ConsoleApi.call`."""
        whole = f"{path}?{urlencode(query)}" if query else path
        caller = self._caller(token)
        repeat: Repeat = "safe" if method == "GET" else "once"
        try:
            response = await asyncio.to_thread(caller.request, method, whole, body, repeat=repeat)
        except StoreUnavailableError as error:
            return ApiReply(503, {"detail": str(error)})
        return ApiReply(response.status, _json(response.body))

    def _caller(self, token: str | None) -> HttpCaller:
        found = self._callers.get(token)
        if found is None:
            found = HttpCaller(self._url, token=token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS)
            self._callers[token] = found
        self._callers.move_to_end(token)
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)  # not closed: a call may be under way
        return found

    def close(self) -> None:
        """Close the connections."""
        for caller in self._callers.values():
            caller.close()


class SplitApi:
    """The API of a supervisor in this process, and beside it that of the queue server that it uses."""

    def __init__(
        self,
        own: ConsoleApi,
        own_paths: Sequence[str],
        other: ConsoleApi,
        *,
        token_there: Callable[[str | None], str | None] = lambda token: token,
    ) -> None:
        """Args:
        own_paths: the paths that `own` has, as its document writes them: "/v1/pools/{pool}/why".
        token_there: returns the token with which `other` is called for the viewer with a token.
        """
        self._token_there = token_there
        parts = "|".join(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)) for path in own_paths)
        self._is_own = re.compile(parts or "(?!)")
        self._own = own
        self._own_paths = own_paths
        self._other = other

    async def call(
        self, method: str, path: str, body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        """See `ConsoleApi.call`. Of the document only the paths are merged."""
        if path == DOCUMENT:
            reply = await self._other.call(method, path, token=self._token_there(token))
            known = reply.body.get("paths")
            others = known if reply.is_done and isinstance(known, dict) else {}
            return ApiReply(reply.status, {"paths": {**others, **{one: {} for one in self._own_paths}}})
        if self._is_own.fullmatch(path):
            return await self._own.call(method, path, body, query=query, token=token)
        return await self._other.call(method, path, body, query=query, token=self._token_there(token))


def _json(data: bytes) -> Json:
    if not data:
        return {}
    try:
        found = from_json(data)
    except ValueError:
        return {"detail": data[:200].decode("utf-8", "replace")}
    return cast("Json", found) if isinstance(found, Mapping) else {"value": found}


def quoted(name: str) -> str:
    """Quote a name as one segment of a path."""
    return quote(name, safe="")
