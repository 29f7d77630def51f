"""Access a manager of a swarm through its engine: services, tasks, nodes; and containers of reachable engines.

The only module of this runtime that uses the SDK. Every failure is one of ours: unavailable, changed meanwhile,
refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import docker
from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import RequestException

from orchestrator.base.errors import RuntimeUnavailableError, SpawnError
from orchestrator.runtimes.docker.container_state import FLEET_LABEL, STATE_LABEL
from orchestrator.runtimes.docker.engine import DockerEngine
from orchestrator.runtimes.swarm.service import DIGEST_LABEL, ServiceBody
from orchestrator.runtimes.swarm.tasks import SwarmService, SwarmTask, down_nodes, read_service, read_task

TIMEOUT_SECONDS: Final = 5.0
"""Time limit of a call: the supervisor's other pools wait meanwhile."""
LAST_LINES: Final = 20
"""Lines of a task's output in its exit."""
MAX_LINE_CHARS: Final = 500
"""Length at which such a line is cut."""

_UNAVAILABLE: Final = frozenset({502, 503, 504})
# Errors of an engine whose swarm has no leader, or that is shutting down.
_GOING_AWAY: Final = (
    "leader",
    "deadline",
    "timed out",
    "timeout",
    "unavailable",
    "connection",
    "transport",
    "shutting",
)
_OUT_OF_SEQUENCE: Final = "out of sequence"
_HEADER_BYTES: Final = 8


class ChangedMeanwhileError(Exception):
    """The service has changed since it was read: read it again."""


class SwarmManager:
    """A client of one manager. Belongs to one thread at a time; connects when first used."""

    def __init__(
        self,
        url: str | None,
        *,
        state: str,
        fleet: Callable[[], str] = lambda: "",
        nodes: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Args:
        url: a manager's engine; None for DOCKER_HOST, or the local one.
        state: the identity of our state directory.
        fleet: returns the id of the store's fleet, as far as it is known: only objects with one of the two are ours.
        nodes: URLs of other nodes' engines, by hostname or id.
        timeout_seconds: the time limit of a call.
        """
        self._timeout_seconds = timeout_seconds
        self._url = url
        self._state = state
        self._fleet = fleet
        self._urls = dict(nodes or {})
        self._engines: dict[str, DockerEngine] = {}
        self._own_node = ""
        self._hostnames: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The manager's URL."""
        return DockerEngine(self._url).url

    def add_nodes(self, nodes: Mapping[str, str]) -> None:
        """Add URLs of other nodes' engines."""
        self._urls = {**self._urls, **nodes}

    def close(self) -> None:
        """Close the connections; the manager may be used again."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    # -- reads ----------------------------------------------------------------------------------------------------

    def tasks(self, *, service: str = "") -> list[SwarmTask]:
        """Return all our tasks, or those of one service, ended ones included."""
        filters = [{"service": service}] if service else [{"label": label} for label in self._labels()]
        with self._translated_errors("list tasks"):
            found = [read_task(data) for each in filters for data in self._manager().tasks(filters=each)]
        return list({task.id: task for task in found}.values())

    def services(self, *, digest: str = "") -> list[SwarmService]:
        """Return our services, or those with one body, the oldest first."""
        labels = [f"{DIGEST_LABEL}={digest}"] if digest else self._labels()
        with self._translated_errors("list services"):
            found = [
                read_service(data) for label in labels for data in self._manager().services(filters={"label": label})
            ]
        known = {service.id: service for service in found}.values()
        return sorted(known, key=lambda service: (len(service.name), service.name))

    def _labels(self) -> list[str]:
        fleet = self._fleet()
        return [f"{STATE_LABEL}={self._state}", *([f"{FLEET_LABEL}={fleet}"] if fleet else [])]

    def down_nodes(self) -> Mapping[str, str]:
        """Return the names of the nodes that the managers have lost, by id."""
        with self._translated_errors("list nodes"):
            return down_nodes(self._manager().nodes())

    # -- services -------------------------------------------------------------------------------------------------

    def create(self, body: ServiceBody, *, generation: int, replicas: int) -> str:
        """Create a service and return its id.

        Raises `SpawnError` when Swarm refuses it, `ChangedMeanwhileError` when it exists.
        """
        container = body.task_template["ContainerSpec"]
        if body.secrets and isinstance(container, Mapping):
            container = {**container, "Secrets": self._secrets(body)}
        template = {**body.task_template, "ContainerSpec": container}
        with self._translated_errors(f"create the service of pool {body.pool}"):
            made = self._manager().create_service(
                template,
                name=body.name(generation),
                labels=dict(body.labels),
                mode={"Replicated": {"Replicas": replicas}},
            )
        return str(made["ID"])

    def scale(self, service: SwarmService, replicas: int) -> None:
        """Set a service's replicas, if it has not changed since it was read.

        Raises `ChangedMeanwhileError`.
        """
        with self._translated_errors(f"scale service {service.name}"):
            self._manager().update_service(
                service.id,
                service.version,
                task_template=service.spec["TaskTemplate"],
                name=service.name,
                labels=service.spec.get("Labels"),
                mode={"Replicated": {"Replicas": replicas}},
                endpoint_spec=service.spec.get("EndpointSpec"),
            )

    def remove(self, service: SwarmService) -> None:
        """Remove a service and the rest of its tasks; does nothing when it is gone."""
        with self._translated_errors(f"remove service {service.name}"), contextlib.suppress(NotFound):
            self._manager().remove_service(service.id)

    def remove_unused_secrets(self) -> None:
        """Remove our secrets that no service uses; Swarm keeps those in use."""
        with self._translated_errors("list secrets"):
            found = self._manager().secrets(filters={"label": f"{STATE_LABEL}={self._state}"})
        for secret in found:
            with contextlib.suppress(ChangedMeanwhileError, SpawnError), self._translated_errors("remove a secret"):
                self._manager().remove_secret(secret["ID"])

    # -- containers of reachable engines --------------------------------------------------------------------------

    def signal(self, task: SwarmTask, number: str) -> bool:
        """Signal a task's container, resumed if it is paused; False when its engine does not answer."""
        client = self._engine(task.node) if task.container else None
        if client is None:
            return False
        try:
            try:
                client.kill(task.container, number)
            except APIError as error:
                if "pause" not in str(error.explanation or error).lower():
                    raise
                client.unpause(task.container)
                client.kill(task.container, number)
        except APIError as error:
            return error.status_code in {404, 409}  # it has ended
        except (DockerException, RequestException):
            return False
        return True

    def inspected(self, task: SwarmTask) -> Mapping[str, object]:
        """Return the inspection of a task's container; empty when it is gone or its engine unreachable."""
        client = self._engine(task.node) if task.container else None
        if client is None:
            return {}
        try:
            found = client.inspect_container(task.container)
        except (DockerException, RequestException):
            return {}
        return found if isinstance(found, Mapping) else {}

    def is_removed(self, task: SwarmTask) -> bool:
        """Return whether a task's container is gone from its engine; False where that can't be asked."""
        client = self._engine(task.node) if task.container else None
        if client is None:
            return False
        try:
            client.inspect_container(task.container)
        except NotFound:
            return True
        except (DockerException, RequestException):
            return False
        return False

    def last_lines(self, task: SwarmTask) -> tuple[str, ...]:
        """Return a task's last lines of output, through the manager from any node; empty when unavailable."""
        if not task.container:
            return ()
        try:
            client = self._manager()
            params = {"stdout": 1, "stderr": 1, "tail": LAST_LINES}
            answer = client.get(
                client.base_url + f"/v{client.api_version}/tasks/{task.id}/logs",
                params=params,
                timeout=self._timeout_seconds,
            )
            raw = answer.content if answer.status_code == 200 else b""
        except (RuntimeUnavailableError, DockerException, RequestException):
            return ()
        lines = [line for line in plain_text(raw).splitlines() if line.strip()]
        return tuple(line[:MAX_LINE_CHARS] for line in lines[-LAST_LINES:])

    # -- clients --------------------------------------------------------------------------------------------------

    def _manager(self) -> docker.APIClient:
        return self._client(self._url)

    def _engine(self, node: str) -> docker.APIClient | None:
        try:
            url = self._engine_url(node)
            return None if url is None else self._client(url or None)
        except (RuntimeUnavailableError, DockerException, RequestException):
            return None

    def _engine_url(self, node: str) -> str | None:
        """Return the URL of a node's engine: "" for the manager's own, None for an unreachable one."""
        if not node:
            return None
        if not self._own_node:
            with self._translated_errors("get the node of an engine"):
                self._own_node = str(self._manager().info().get("Swarm", {}).get("NodeID", ""))
        if node == self._own_node:
            return self._url or ""
        if not self._urls:
            return None
        if node not in self._hostnames:
            with self._translated_errors("list nodes"):
                self._hostnames = {n["ID"]: n["Description"]["Hostname"] for n in self._manager().nodes()}
        return self._urls.get(node) or self._urls.get(self._hostnames.get(node, ""))

    def _client(self, url: str | None) -> docker.APIClient:
        engine = self._engines.get(url or "")
        if engine is None:
            engine = self._engines[url or ""] = DockerEngine(url)
        return engine.api(seconds=self._timeout_seconds)

    def _secrets(self, body: ServiceBody) -> list[Mapping[str, object]]:
        """Return the service's secrets with their ids; create ours if missing. Raises `SpawnError`."""
        with self._translated_errors("list secrets"):
            ids = {str(found["Spec"]["Name"]): str(found["ID"]) for found in self._manager().secrets()}
        for secret in body.secrets:
            if secret.name not in ids and secret.data is not None:
                with self._translated_errors(f"create secret {secret.name}"):
                    made = self._manager().create_secret(secret.name, secret.data, {STATE_LABEL: self._state})
                ids[secret.name] = str(made["ID"])
        missing = [secret.name for secret in body.secrets if secret.name not in ids]
        if missing:
            fix = f"make it with `docker secret create {missing[0]} FILE`"
            raise SpawnError(f"pool {body.pool} needs secrets that the swarm lacks: {', '.join(missing)}; {fix}")
        return [
            {
                "SecretID": ids[secret.name],
                "SecretName": secret.name,
                "File": {"Name": secret.file, "UID": "0", "GID": "0", "Mode": 0o444},
            }
            for secret in body.secrets
        ]

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except APIError as error:
            message = str(error.explanation or error)
            if _OUT_OF_SEQUENCE in message or error.status_code in {404, 409}:
                raise ChangedMeanwhileError(message) from error
            if error.status_code in _UNAVAILABLE or any(word in message.lower() for word in _GOING_AWAY):
                raise RuntimeUnavailableError(f"can't {what}: {message}{_fix(message)}") from error
            raise SpawnError(f"can't {what}: {message}") from error
        except (DockerException, RequestException) as error:
            raise RuntimeUnavailableError(f"can't {what}: no answer from the engine: {error}") from error


def plain_text(raw: bytes) -> str:
    """Return the output in an engine's frames: a kind, three zeroes, a length, bytes."""
    parts = []
    at = 0
    while at + _HEADER_BYTES <= len(raw):
        size = int.from_bytes(raw[at + 4 : at + _HEADER_BYTES], "big")
        at += _HEADER_BYTES
        parts.append(raw[at : at + size])
        at += size
    return b"".join(parts).decode(errors="replace")


def _fix(message: str) -> str:
    if "not a swarm manager" in message:
        return "; name the engine of a manager as `engine`, or make this one a manager: docker swarm init"
    return ""
