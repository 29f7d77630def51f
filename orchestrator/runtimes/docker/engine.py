"""The Docker Engine as its SDK's low-level client speaks to it: one client a thread, a limit on every call.

What the engine refuses stays a `docker.errors.APIError`; that it cannot be asked is a `RuntimeUnavailableError`.
"""

import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol
from urllib.parse import urlsplit

import docker
import requests
import urllib3
from docker.utils import kwargs_from_env

from orchestrator.errors import RuntimeUnavailableError

CALL_SECONDS: Final = 10.0
"""How long an engine may take to answer a question."""
WORK_SECONDS: Final = 60.0
"""How long it may take to do something: on a busy host a start takes long."""
DIAL_SECONDS: Final = 5.0
DEFAULT_ENGINE: Final = "unix:///var/run/docker.sock"

# An engine that is going down, or has just lost its own daemon, answers with these; nothing is wrong with the pool.
_GOING_AWAY: Final = (
    "context canceled",
    "context deadline exceeded",
    "transport is closing",
    "connection refused",
    "shutting down",
    "error while dialing",
)


class Events(Protocol):
    """The engine's stream of events; `close` ends it from another thread."""

    def __iter__(self) -> Iterator[object]: ...
    def close(self) -> None: ...


class EngineResponse(Protocol):
    """An answer of the engine to a bare request."""

    status_code: int
    headers: Mapping[str, str]


class Api(Protocol):
    """What we use of `docker.APIClient`."""

    timeout: float
    headers: MutableMapping[str, str | bytes]
    base_url: str
    api_version: str

    def ping(self) -> bool: ...
    def info(self) -> Mapping[str, object]: ...
    def events(self, *, since: str | None, filters: Mapping[str, object], decode: bool) -> Events: ...
    def containers(self, *, all: bool, filters: Mapping[str, object]) -> Sequence[Mapping[str, object]]: ...  # noqa: A002
    def create_container_from_config(self, config: Mapping[str, object], name: str) -> Mapping[str, object]: ...
    def start(self, container: str) -> None: ...
    def kill(self, container: str, signal: str) -> None: ...
    def unpause(self, container: str) -> None: ...
    def inspect_container(self, container: str) -> Mapping[str, object]: ...
    def remove_container(self, container: str, *, v: bool, force: bool) -> None: ...
    def stats(self, container: str, *, stream: bool, one_shot: bool) -> Mapping[str, object]: ...
    def inspect_image(self, image: str) -> Mapping[str, object]: ...
    def pull(self, repository: str) -> str: ...
    def head(self, url: str, *, params: Mapping[str, str], timeout: float) -> EngineResponse: ...
    def close(self) -> None: ...


class DockerEngine:
    """One engine. Any thread may ask for its client; each has its own, as they keep connections."""

    def __init__(self, url: str | None = None, *, environment: Mapping[str, str] | None = None) -> None:
        """`url` None: that of DOCKER_HOST, with its certificates, or the local engine's."""
        self._mistake = ""
        given: dict[str, object] = {}
        try:
            given = kwargs_from_env(dict(os.environ if environment is None else environment) or {"": ""})
        except docker.errors.DockerException as error:
            self._mistake = f"DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH can't be used: {error}"
        self._settings: dict[str, object] = {**given, "base_url": url or given.get("base_url") or DEFAULT_ENGINE}
        self._mine = threading.local()
        self._all: list[Api] = []

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self._settings["base_url"])

    @property
    def socket_path(self) -> str | None:
        """The socket of an engine of this very host; None when it is reached otherwise."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else None

    @property
    def tls(self) -> object:
        """The certificates it is spoken to with, as the SDK's `TLSConfig`; None without."""
        return self._settings.get("tls")

    def api(self, *, seconds: float = CALL_SECONDS) -> Api:
        """This thread's client, with a limit on the calls that follow. Raises `RuntimeUnavailableError`."""
        if self._mistake:
            raise RuntimeUnavailableError(self._mistake)
        if self.socket_path is not None:
            # The SDK leaves a socket open that it could not connect.
            with answering(self.url):
                dial(self).close()
        known: Api | None = getattr(self._mine, "api", None)
        if known is None:
            with answering(self.url):
                known = self._mine.api = docker.APIClient(**self._settings, timeout=CALL_SECONDS)
            if self.socket_path is not None:
                # On a socket the SDK keeps a connection for each address it called: 25 a thread, and no setting for it.
                known.headers["Connection"] = "close"
                known.close()
            self._all.append(known)
        known.timeout = seconds
        return known

    def close(self) -> None:
        """Let go of all connections."""
        for api in self._all:
            api.close()
        self._all.clear()


def dial(engine: DockerEngine) -> socket.socket:
    """A bare connection to the engine. Raises `OSError`."""
    if engine.socket_path is not None:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.settimeout(DIAL_SECONDS)
        try:
            local.connect(engine.socket_path)
        except OSError:
            local.close()
            raise
        return local
    where = urlsplit(engine.url)
    if where.scheme == "ssh":
        raise OSError("an engine over ssh does not send output as it comes")
    plain = socket.create_connection((where.hostname or "", where.port or 2375), timeout=DIAL_SECONDS)
    certificates = engine.tls
    if certificates is None and where.scheme != "https":
        return plain
    context = ssl.create_default_context(cafile=getattr(certificates, "ca_cert", None))
    if not getattr(certificates, "verify", True):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    own = getattr(certificates, "cert", None)
    if own:
        context.load_cert_chain(*own)
    return context.wrap_socket(plain, server_hostname=where.hostname)


@contextmanager
def answering(url: str) -> Iterator[None]:
    """Whatever keeps an engine from being asked becomes a `RuntimeUnavailableError` that says what and what to do."""
    try:
        yield
    except docker.errors.APIError as error:
        if any(word in explained(error).lower() for word in _GOING_AWAY):
            raise RuntimeUnavailableError(f"the engine at {url} is going away: {explained(error)}") from error
        raise
    except (requests.exceptions.Timeout, TimeoutError, urllib3.exceptions.TimeoutError) as error:
        raise RuntimeUnavailableError(f"the engine at {url} does not answer") from error
    except (requests.exceptions.RequestException, docker.errors.DockerException, OSError) as error:
        raise RuntimeUnavailableError(f"the engine at {url} can't be reached: {_reason(error)}") from error
    except urllib3.exceptions.HTTPError as error:
        raise RuntimeUnavailableError(f"the engine at {url} can't be reached: {_reason(error)}") from error


def explained(error: docker.errors.APIError) -> str:
    """What the engine says is wrong."""
    return str(error.explanation or error)


def _reason(error: BaseException) -> str:
    """The innermost cause in few words: the SDK wraps an error of the system up to five times."""
    seen: BaseException = error
    for _ in range(10):
        inner = seen.__cause__ or seen.__context__
        if inner is None:
            break
        seen = inner
    if isinstance(seen, PermissionError):
        return "permission denied: add this user to the engine's group"
    return (seen.strerror if isinstance(seen, OSError) and seen.strerror else str(seen)) or type(seen).__name__
