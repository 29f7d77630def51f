"""The five verbs of the apiserver that we use, and a Pod's log: over urllib3, with a limit on every call (ADR 139).

An answer other than 2xx is an `ApiError` before its body is read as anything else. An apiserver that can't be reached,
or that is overloaded, is a `RuntimeUnavailableError`.
"""

import io
import json
import math
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

import urllib3

from orchestrator.base.errors import OrchestratorError, RuntimeUnavailableError
from orchestrator.base.values import value
from orchestrator.runtimes.kubernetes.access import Access, Credentials

CALL_SECONDS: Final = 10.0
"""Time limit of a call."""
FOLLOWED_SECONDS: Final = 3_600.0
"""Silence after which a log is followed no more."""
SILENT_SECONDS: Final = 90.0
"""Silence after which a watch counts as broken: an apiserver sends a bookmark about every minute."""
PAGE: Final = 100
"""Objects of one page of a list."""
MAX_PAGES: Final = 1_000
MAX_TEXT_CHARS: Final = 2_000
"""Length at which an error message is cut."""
MAX_LINE_BYTES: Final = 4 * 2**20
"""The longest line of a watch: an object of 1.5 MiB at most, as the apiserver's store has it, in JSON."""
_CHUNK_BYTES: Final = 64 * 2**10
_UNAVAILABLE: Final = frozenset({500, 502, 503, 504})
_TOO_MANY: Final = 429
_GONE: Final = 410
_UNAUTHORIZED: Final = 401
_JSON: Final = "application/json"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Json: TypeAlias = Mapping[str, object]
Kind = Literal["pods", "configmaps", "nodes", "selfsubjectaccessreviews"]

_GROUPS: Final[Mapping[Kind, str]] = {"selfsubjectaccessreviews": "/apis/authorization.k8s.io/v1"}
_CLUSTER_WIDE: Final = frozenset({"nodes", "selfsubjectaccessreviews"})


class ApiError(OrchestratorError):
    """The apiserver refused a call: its status, its reason in a word, and its message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)

    @property
    def is_missing(self) -> bool:
        """True if there is no such object."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """True if there is an object of that name already, or it is another one than was meant."""
        return self.status == 409

    @property
    def is_expired(self) -> bool:
        """True if the version that a list or a watch should begin at is too old."""
        return self.status == _GONE


class ApiBusyError(RuntimeUnavailableError):
    """The apiserver asks to be left alone for `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


@value
class Listed:
    """A list of all objects that were there at one version."""

    items: Sequence[Json]
    version: str


class Watch:
    """An open watch: an iterator of events, each its type and its object. `close` ends it from another thread."""

    def __init__(self, answer: urllib3.HTTPResponse, *, url: str) -> None:
        self._answer = answer
        self._url = url
        self._is_closed = False

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Yield events until the apiserver ends the watch.

        Raises `RuntimeUnavailableError` when the connection breaks or is silent for too long, and `ApiError` for an
        ERROR event, of which the code is its status.
        """
        for line in self._lines():
            try:
                event = json.loads(line)
                kind, found = str(event["type"]), event["object"]
            except (ValueError, KeyError, TypeError) as error:
                raise RuntimeUnavailableError(f"{self._url} sent no event: {line[:100]!r}") from error
            if not isinstance(found, Mapping):
                raise RuntimeUnavailableError(f"{self._url} sent an event without an object: {line[:100]!r}")
            if kind == "ERROR":
                raise _error_of(found, status=_GONE)
            yield kind, found

    def close(self) -> None:
        """End the watch; safe from another thread while it is read, which the end of its connection wakes."""
        self._is_closed = True
        with (
            suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation),  # it has ended by itself
            socket.socket(fileno=os.dup(self._answer.fileno())) as own,
        ):
            own.shutdown(socket.SHUT_RDWR)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        try:
            with _translated(self._url):
                for chunk in self._answer.stream(_CHUNK_BYTES, decode_content=True):
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > MAX_LINE_BYTES:
                        raise RuntimeUnavailableError(f"{self._url} sent an event of over {MAX_LINE_BYTES:,} bytes")
                    yield from (line for line in lines if line.strip())
        finally:
            self._answer.close()
        if rest.strip() and not self._is_closed:
            yield rest


class Api:
    """An apiserver, as one access reaches it, for objects of one namespace. Any thread may call it."""

    def __init__(self, access: Access, namespace: str | None = None, *, credentials: Credentials | None = None) -> None:
        """`namespace`: None for the access's own."""
        self.access = access
        self.namespace = namespace or access.namespace
        self._credentials = credentials or Credentials(access)
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None
        self._version = 0

    @property
    def url(self) -> str:
        """The apiserver's URL."""
        return self.access.server

    def create(self, kind: Kind, body: Json, *, is_dry_run: bool = False, seconds: float = CALL_SECONDS) -> Json:
        """Create an object and return it as it was stored; a dry run asks everything, and stores nothing."""
        query = {"dryRun": "All", "fieldValidation": "Strict"} if is_dry_run else {}
        return self._call("POST", self._path(kind), query, body=body, seconds=seconds)

    def get(self, kind: Kind, name: str, *, seconds: float = CALL_SECONDS) -> Json:
        """Return an object."""
        return self._call("GET", self._path(kind, name), {}, seconds=seconds)

    def list(
        self, kind: Kind, *, selector: str = "", part: Literal["all", "metadata"] = "all", seconds: float = CALL_SECONDS
    ) -> Listed:
        """Return all objects with these labels, in pages; only what is called metadata of each, if asked for."""
        items: list[Json] = []
        query: dict[str, str] = {"limit": str(PAGE)}
        if selector:
            query["labelSelector"] = selector
        for _ in range(MAX_PAGES):
            page = self._call(
                "GET", self._path(kind), query, accept=_METADATA if part == "metadata" else _JSON, seconds=seconds
            )
            found, about = page.get("items"), page.get("metadata")
            if not isinstance(about, Mapping) or not isinstance(found, list | None):
                raise RuntimeUnavailableError(f"{self.url} sent no list of {kind}")
            items += [one for one in found or () if isinstance(one, Mapping)]
            if not about.get("continue"):
                return Listed(items, str(about.get("resourceVersion", "")))
            query["continue"] = str(about["continue"])
        raise RuntimeUnavailableError(f"{self.url} has more than {MAX_PAGES * PAGE:,} {kind} of ours")

    def watch(
        self, kind: Kind, *, selector: str, version: str, seconds: float, silent_seconds: float = SILENT_SECONDS
    ) -> Watch:
        """Watch the objects with these labels from a version on, for so long; ended by us after a silence."""
        query = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(math.ceil(seconds)),
        }
        answer = self._request("GET", self._path(kind), query, seconds=silent_seconds, is_streamed=True)
        return Watch(answer, url=self.url)

    def delete(
        self, kind: Kind, name: str, *, uid: str = "", grace_seconds: int | None = None, seconds: float = CALL_SECONDS
    ) -> None:
        """Delete an object; with `uid` that one only, or a conflict. An `ApiError` may say that it is gone."""
        body: dict[str, object] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        self._call("DELETE", self._path(kind, name), {}, body=body, seconds=seconds)

    def logs(
        self, name: str, *, container: str, lines: int | None = None, since: str = "", is_followed: bool = False
    ) -> Iterator[bytes]:
        """Yield what a Pod's container wrote, in pieces, each line behind its time; followed, until it ends.

        `since`: only from this time on, as the apiserver writes it.
        """
        query = {"container": container, "timestamps": "true"}
        if lines is not None:
            query["tailLines"] = str(lines)
        if since:
            query["sinceTime"] = since
        if is_followed:
            query["follow"] = "true"
        seconds = FOLLOWED_SECONDS if is_followed else CALL_SECONDS
        answer = self._request("GET", f"{self._path('pods', name)}/log", query, seconds=seconds, is_streamed=True)
        try:
            with _translated(self.url):
                yield from answer.stream(_CHUNK_BYTES, decode_content=True)
        finally:
            answer.close()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _path(self, kind: Kind, name: str = "") -> str:
        prefix = _GROUPS.get(kind, "/api/v1")
        where = "" if kind in _CLUSTER_WIDE else f"/namespaces/{quote(self.namespace, safe='')}"
        return f"{prefix}{where}/{kind}{'/' + quote(name, safe='') if name else ''}"

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Json | None = None,
        accept: str = _JSON,
        seconds: float,
    ) -> Json:
        answer = self._request(method, path, query, body=body, accept=accept, seconds=seconds)
        try:
            found = json.loads(answer.data)
        except ValueError as error:
            raise RuntimeUnavailableError(
                f"{self.url} answered {method} {path} with something else than JSON"
            ) from error
        if not isinstance(found, Mapping):
            raise RuntimeUnavailableError(f"{self.url} answered {method} {path} with something else than an object")
        return found

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Json | None = None,
        accept: str = _JSON,
        seconds: float,
        is_streamed: bool = False,
    ) -> urllib3.HTTPResponse:
        """Make a call, with new credentials once more if they were refused; return an answer of 2xx."""
        for is_last in (False, True):
            answer = self._answer(method, path, query, body=body, accept=accept, seconds=seconds, streamed=is_streamed)
            if answer.status // 100 == 2:
                return answer
            with _translated(self.url):
                said = answer.read(_CHUNK_BYTES, decode_content=True) if is_streamed else answer.data
            answer.close()
            if answer.status == _UNAUTHORIZED and not is_last:
                self._credentials.forget()
                continue
            raise _refusal(answer.status, str(answer.headers.get("Retry-After") or ""), said, url=self.url)
        raise AssertionError("unreachable")

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Json | None,
        accept: str,
        seconds: float,
        streamed: bool,
    ) -> urllib3.HTTPResponse:
        headers = {"Accept": accept, "User-Agent": "towline", **self._credentials.headers()}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        target = f"{self.url.rstrip('/')}{path}{'?' + urlencode(query) if query else ''}"
        try:
            with _translated(self.url):
                answer: urllib3.HTTPResponse = self._connections().request(
                    method,
                    target,
                    body=data,
                    headers=headers,
                    timeout=urllib3.Timeout(connect=min(seconds, CALL_SECONDS), read=seconds),
                    retries=False,
                    redirect=False,
                    preload_content=not streamed,
                )
        except RuntimeUnavailableError:
            self.close()  # the next call reads authority and certificate again
            raise
        return answer

    def _connections(self) -> urllib3.PoolManager:
        """Return the connections; new ones after a failure, or for a new certificate."""
        with self._lock:
            if self._pool is None or self._version != self._credentials.version:
                options: dict[str, object] = {"num_pools": 2, "maxsize": 8}
                if self.url.startswith("https:"):
                    options["ssl_context"] = self._credentials.tls()
                    if not self.access.is_verified:
                        options |= {"cert_reqs": "CERT_NONE", "assert_hostname": False}
                    if self.access.server_name:
                        options |= {
                            "server_hostname": self.access.server_name,
                            "assert_hostname": self.access.server_name,
                        }
                self._version = self._credentials.version
                if self.access.proxy:
                    self._pool = urllib3.ProxyManager(self.access.proxy, **options)
                else:
                    self._pool = urllib3.PoolManager(**options)
            return self._pool


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn every failure to reach the apiserver into a `RuntimeUnavailableError` that says what happened."""
    try:
        yield
    except (urllib3.exceptions.TimeoutError, TimeoutError) as error:
        raise RuntimeUnavailableError(f"the apiserver at {url} does not answer") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise RuntimeUnavailableError(f"the apiserver at {url} can't be reached: {_reason(error)}") from error


def _refusal(status: int, retry_after: str, said: bytes, *, url: str) -> OrchestratorError:
    """Return the error of an answer that is not 2xx; `said` is its body, which may be a `Status` or any text."""
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        found = {"message": " ".join(said[:MAX_TEXT_CHARS].decode(errors="replace").split())}
    error = _error_of({**found, "code": status}, status=status)
    if status != _TOO_MANY and status not in _UNAVAILABLE:
        return error
    why = f"the apiserver at {url} answers {status}: {error}"
    pause_seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiBusyError(why, pause_seconds) if pause_seconds or status == _TOO_MANY else RuntimeUnavailableError(why)


def _error_of(found: Json, *, status: int) -> ApiError:
    """Return the error that a `Status` describes; `status` counts where it has no code."""
    code, reason = found.get("code"), str(found.get("reason") or "")
    message = str(found.get("message") or reason or f"status {status}")[:MAX_TEXT_CHARS]
    return ApiError(code if isinstance(code, int) else status, reason, message)


def _reason(error: BaseException) -> str:
    """Return the innermost cause's message: urllib3 wraps a system error several times."""
    seen: BaseException = error
    for _ in range(10):
        inner = seen.__cause__ or seen.__context__ or getattr(seen, "reason", None)
        if not isinstance(inner, BaseException):
            break
        seen = inner
    if isinstance(seen, ssl.SSLCertVerificationError):
        return f"its certificate is not of the authority that we know: {seen.verify_message}"
    return (seen.strerror if isinstance(seen, OSError) and seen.strerror else str(seen)) or type(seen).__name__
