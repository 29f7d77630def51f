"""Access the Docker Engine through its SDK's low-level client: one client per thread, a time limit on every call.

An error of the engine stays a `docker.errors.APIError`; an engine that can't be reached is a `RuntimeUnavailableError`.
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

from orchestrator.base.errors import RuntimeUnavailableError

CALL_SECONDS: Final = 10.0
"""Time limit of a call that only reads."""
WORK_SECONDS: Final = 60.0
"""Time limit of a call that changes something: on a busy host a start takes long."""
DIAL_SECONDS: Final = 5.0
"""Time limit of a raw connection's opening."""
DEFAULT_ENGINE: Final = "unix:///var/run/docker.sock"

# Errors of an engine that shuts down or has lost its daemon; the pool is not at fault.
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
    """The engine's response to a raw request."""

    status_code: int
    headers: Mapping[str, str]


class EngineApi(Protocol):
    """The part of `docker.APIClient` that we use."""

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
    def inspect_network(self, net_id: str) -> Mapping[str, object]: ...
    def pull(self, repository: str) -> str: ...
    def head(self, url: str, *, params: Mapping[str, str], timeout: float) -> EngineResponse: ...
    def close(self) -> None: ...


class DockerEngine:
    """An engine. Each thread gets its own client, as clients keep connections."""

    def __init__(self, url: str | None = None, *, environment: Mapping[str, str] | None = None) -> None:
        """`url` None: DOCKER_HOST with its certificates, or the local engine."""
        self._config_error = ""
        given: dict[str, object] = {}
        try:
            given = kwargs_from_env(dict(os.environ if environment is None else environment) or {"": ""})
        except docker.errors.DockerException as error:
            self._config_error = f"DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH can't be used: {error}"
        self._settings: dict[str, object] = {**given, "base_url": url or given.get("base_url") or DEFAULT_ENGINE}
        self._local = threading.local()
        self._all: list[EngineApi] = []

    @property
    def url(self) -> str:
        """The engine's URL."""
        return str(self._settings["base_url"])

    @property
    def socket_path(self) -> str | None:
        """The socket of an engine on this host; None when it is reached otherwise."""
        return self.url.removeprefix("unix://") if self.url.startswith("unix://") else None

    @property
    def tls(self) -> object:
        """The certificates of the connection, as the SDK's `TLSConfig`; None without."""
        return self._settings.get("tls")

    def api(self, *, seconds: float = CALL_SECONDS) -> EngineApi:
        """Return this thread's client; `seconds` limits the calls that follow. Raises `RuntimeUnavailableError`."""
        if self._config_error:
            raise RuntimeUnavailableError(self._config_error)
        if self.socket_path is not None:
            # The SDK leaks a socket that it could not connect.
            with translated_errors(self.url):
                dial(self).close()
        known: EngineApi | None = getattr(self._local, "api", None)
        if known is None:
            with translated_errors(self.url):
                known = self._local.api = docker.APIClient(**self._settings, timeout=CALL_SECONDS)
            if self.socket_path is not None:
                # On a socket the SDK keeps a connection for each address it called: 25 a thread, and no setting for it.
                known.headers["Connection"] = "close"
                known.close()
            self._all.append(known)
        known.timeout = seconds
        return known

    def close(self) -> None:
        """Close all connections."""
        for api in self._all:
            api.close()
        self._all.clear()


def dial(engine: DockerEngine) -> socket.socket:
    """Open a raw connection to the engine. Raises `OSError`."""
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
        raise OSError("an engine over ssh can't stream output")
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
def translated_errors(url: str) -> Iterator[None]:
    """Turn every failure to reach the engine into a `RuntimeUnavailableError` that says what to do."""
    try:
        yield
    except docker.errors.APIError as error:
        if any(word in error_text(error).lower() for word in _GOING_AWAY):
            raise RuntimeUnavailableError(f"the engine at {url} is going away: {error_text(error)}") from error
        raise
    except (requests.exceptions.Timeout, TimeoutError, urllib3.exceptions.TimeoutError) as error:
        raise RuntimeUnavailableError(f"the engine at {url} does not answer") from error
    except (requests.exceptions.RequestException, docker.errors.DockerException, OSError) as error:
        raise RuntimeUnavailableError(f"the engine at {url} can't be reached: {_reason(error)}") from error
    except urllib3.exceptions.HTTPError as error:
        raise RuntimeUnavailableError(f"the engine at {url} can't be reached: {_reason(error)}") from error


def error_text(error: docker.errors.APIError) -> str:
    """Return the engine's own error message."""
    return str(error.explanation or error)


def _reason(error: BaseException) -> str:
    """Return the innermost cause's message: the SDK wraps a system error up to five times."""
    seen: BaseException = error
    for _ in range(10):
        inner = seen.__cause__ or seen.__context__
        if inner is None:
            break
        seen = inner
    if isinstance(seen, PermissionError):
        return "permission denied: add this user to the engine's group"
    return (seen.strerror if isinstance(seen, OSError) and seen.strerror else str(seen)) or type(seen).__name__
