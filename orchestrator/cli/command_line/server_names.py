"""Names of queues, pools, workers, tasks and tags, of the running server: for completion, quick and silent.

Nothing here raises, prints, or takes longer than `LOOK_SECONDS`; what is not known by then is left out. It imports no
settings model: a Tab must be answered before a person notices.
"""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import quote, urlsplit

Kind: TypeAlias = Literal[
    "queues", "pools", "workers", "dead workers", "tasks", "tags", "pools and workers", "pools and tasks"
]
Json: TypeAlias = dict[str, object]

LOOK_SECONDS: Final = 0.25
"""Time for all calls together."""
CALL_SECONDS: Final = 0.2
MAX_NAMES: Final = 200
MAX_QUEUES: Final = 10
"""Queues whose tasks are looked at where no queue is named."""
MAX_JOURNAL_BYTES: Final = 256 * 1024
"""The end of the journal of deaths that is read."""
DEFAULT_FILE: Final = "towline.yaml"
DEFAULT_LISTEN: Final = "127.0.0.1:7878"
DEFAULT_STATE: Final = ".towline"
_SAFE: Final = re.compile(r"[\w.+@%/-]+")
"""Names that a shell takes as one word: a task may be called anything, and a shell runs what it is given."""
_VALUE_OPTIONS: Final = {"--url": "url", "-f": "file", "--file": "file", "--token-file": "token_file"}


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CALL_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CALL_SECONDS)
        self.sock.connect(self._path)


class NamingServer:
    """The server and the state folder that a command line means."""

    def __init__(self, url: str, state: Path | None, token: str | None) -> None:
        self._url = url.partition(",")[0]
        self._state = state
        self._token = token

    def queues(self) -> Iterator[str]:
        """Yield the queues."""
        yield from _fields(self._call("GET", "/v1/queues").get("queues"), "name")

    def pools(self) -> Iterator[str]:
        """Yield the pools."""
        yield from _fields(self._call("GET", "/v1/pools").get("pools"), "pool")

    def tasks(self, queue: str) -> Iterator[str]:
        """Yield the oldest tasks of a queue."""
        query: Json = {"limit": MAX_NAMES, "payload_bytes": 0}
        found = self._call("POST", f"/v1/queues/{quote(queue, safe='')}/peek", query).get("tasks")
        for task in found if isinstance(found, list) else ():
            yield str(task.get("name") or f"_{task.get('id')}")

    def tags(self, queue: str) -> Iterator[str]:
        """Yield the tags of a queue's tasks."""
        found = self._call("GET", f"/v1/queues/{quote(queue, safe='')}/tags?limit={MAX_NAMES}")
        yield from _fields(found.get("tags"), "tag")

    def workers(self) -> Iterator[str]:
        """Yield the workers of the supervisor of this host, as it published them, or of the one behind the URL."""
        if self._state is None:
            yield from _fields(self._call("GET", "/v1/workers").get("workers"), "worker")
        else:
            snapshot = json.loads((self._state / "supervisor.json").read_text(encoding="utf-8"))
            yield from _fields(snapshot.get("workers"), "worker")

    def dead_workers(self) -> Iterator[str]:
        """Yield the workers that died last, the latest first."""
        if self._state is None:
            yield from _fields(self._call("GET", f"/v1/deaths?limit={MAX_NAMES}").get("deaths"), "worker")
            return
        with (self._state / "deaths.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - MAX_JOURNAL_BYTES))
            lines = file.read().splitlines()
        for line in reversed(lines):
            with suppress(ValueError):
                yield str(json.loads(line).get("worker"))

    def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        parts = urlsplit(self._url)
        connection: HTTPConnection
        if parts.scheme == "unix":
            connection = _UnixConnection(parts.path)
        else:
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=CALL_SECONDS)
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            return cast("Json", json.loads(connection.getresponse().read()))
        finally:
            connection.close()


def names_of(kind: Kind, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the names of a kind, sorted; none where no server answers in time.

    Args:
        words: the command and what is typed after it, for `--url`, `-f` and the queue whose tasks are meant.
    """
    found: list[str] = []
    thread = threading.Thread(target=_collect, args=(found, kind, list(words), dict(environment)), daemon=True)
    thread.start()
    thread.join(LOOK_SECONDS)
    return sorted({name for name in list(found) if _SAFE.fullmatch(name)})[:MAX_NAMES]


def _collect(found: list[str], kind: Kind, words: list[str], environment: Mapping[str, str]) -> None:
    """Append the names to `found` as they become known."""
    with suppress(Exception):  # completion is silent, whatever is wrong
        server = _server(words, environment)
        for look in _looks(server, kind, words):
            with suppress(OSError, HTTPException, ValueError):
                found.extend(look())


def _looks(server: NamingServer, kind: Kind, words: Sequence[str]) -> Iterator[Callable[[], Iterator[str]]]:
    match kind:
        case "queues":
            yield server.queues
        case "workers":
            yield server.workers
        case "dead workers":
            yield server.dead_workers
        case "tasks" | "tags":
            look = server.tasks if kind == "tasks" else server.tags
            for queue in _queues_meant(server, words):
                yield lambda queue=queue: look(queue)  # type: ignore[misc]
        case _:
            yield server.pools
            if kind == "pools and workers":
                yield server.workers
            elif kind == "pools and tasks":
                for queue in _queues_meant(server, ()):
                    yield lambda queue=queue: server.tasks(queue)  # type: ignore[misc]


def _queues_meant(server: NamingServer, words: Sequence[str]) -> list[str]:
    """Return the queue that is typed, as the first argument or after --queue; else the first ones of the server."""
    if "--queue" in words[:-1]:
        return [words[words.index("--queue") + 1]]
    known = list(server.queues())
    typed = [word for word in words[1:] if word in known]
    return typed[:1] or known[:MAX_QUEUES]


def _server(words: Sequence[str], environment: Mapping[str, str]) -> NamingServer:
    given = {_VALUE_OPTIONS[word]: value for word, value in pairwise(words) if word in _VALUE_OPTIONS}
    given |= {
        key: word.partition("=")[2]
        for word in words
        for option, key in _VALUE_OPTIONS.items()
        if option.startswith("--") and word.startswith(f"{option}=")
    }
    token = environment.get("TOWLINE_TOKEN")
    token_file = given.get("token_file") or environment.get("TOWLINE_TOKEN_FILE")
    if token_file and (not token or "token_file" in given):
        token = Path(token_file).read_text(encoding="utf-8-sig").strip()
    path = Path(given.get("file") or environment.get("TOWLINE_FILE") or DEFAULT_FILE)
    settings, folder = _settings(path), path.parent.absolute()
    supervisor, server = (_part(settings, name) for name in ("supervisor", "server"))
    state = folder / (environment.get("TOWLINE_STATE_DIR") or str(supervisor.get("state_dir") or DEFAULT_STATE))
    url = given.get("url") or (None if "file" in given else environment.get("TOWLINE_URL"))
    if not url:
        url = _url(environment.get("TOWLINE_LISTEN") or str(server.get("listen") or DEFAULT_LISTEN), folder)
        from queue_core.process.own_addresses import is_of_this_machine

        token = token if is_of_this_machine(url) else None  # a key press sends no secret to where a file says
    return NamingServer(url, None if "url" in given else state, token)


def _settings(path: Path) -> Json:
    if not path.is_file():
        return {}
    import yaml

    found = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  both are safe
    return found if isinstance(found, dict) else {}


def _part(settings: Json, name: str) -> Json:
    part = settings.get(name)
    return part if isinstance(part, dict) else {}


def _url(listen: str, folder: Path) -> str:
    """Return the URL of a listen address; see `ServerSettings.url`, whose import takes too long."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:").removeprefix("//")
        return f"unix://{folder / path}"
    host, _, port = listen.rpartition(":")
    return f"http://{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"  # noqa: S104


def _fields(records: object, name: str) -> Iterator[str]:
    for record in records if isinstance(records, list) else ():
        if isinstance(record, dict) and isinstance(record.get(name), str):
            yield str(record[name])
