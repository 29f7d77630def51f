"""Build the service whose tasks are a pool's workers. Pure.

All workers of a service have the same settings: a pool whose settings change, or a supervisor with another URL, gets a
new service beside the old one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.config.containers import SwarmSettings, Volume
from orchestrator.config.placeholders import filled
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.docker.container_state import FLEET_LABEL, POOL_LABEL, SPEC_LABEL, STATE_LABEL
from orchestrator.runtimes.docker.create import (
    MAX_PIDS,
    SECRETS_TARGET,
    TOKEN_SECRET,
    Mount,
    command_of,
    mount_of,
    url_and_mounts,
)

DIGEST_LABEL: Final = "towline.service"
"""The label with the digest of all that a service's workers get; it distinguishes two services of one pool."""
GRACE_MARGIN_SECONDS: Final = 2.0
"""Time between the end of a worker's grace, when it releases its leases, and Swarm's SIGKILL."""

# The lock and the state directory are files of the supervisor's host: a worker elsewhere would take their absence for
# the supervisor's death. Anyone with access to a manager can read variables: the token is a secret instead.
_NOT_PASSED: Final = frozenset(
    {"TOWLINE_SUPERVISOR_LOCK", "TOWLINE_STATE_DIR", "TOWLINE_STATE_ID", "TOWLINE_TOKEN", "TOWLINE_URL"}
)
_NANOSECONDS: Final = 1_000_000_000
_POOL_CHARS: Final = 24

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SwarmSecret:
    """A secret of the swarm, and its file's name in /run/secrets. `data` is set if we create it."""

    name: str
    file: str
    data: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServiceBody:
    """The contents of a service. `digest` covers all of it; secrets are given by name, as Swarm assigns their ids."""

    digest: str
    stem: str
    pool: str
    labels: Mapping[str, str]
    task_template: Json
    secrets: tuple[SwarmSecret, ...] = ()

    def name(self, generation: int) -> str:
        """Return the name of the first, second ... service with this body, at most 63 characters."""
        return self.stem if generation == 1 else f"{self.stem}-{generation}"


def service_body(request: SpawnRequest, settings: SwarmSettings, *, state: str, fleet: str = "") -> ServiceBody:
    """Return the service for a request; `state` is the identity of the supervisor's state directory, `fleet` the
    store's.

    Raises `SpawnError` if no container could reach the queue.
    """
    pool = request.pool
    url, mounts = url_and_mounts(request.environment.get("TOWLINE_URL", ""), settings, pool=pool.name)
    secrets = _secrets(request, settings)
    own = {POOL_LABEL: pool.name, SPEC_LABEL: request.environment["TOWLINE_SPEC"]}
    container: dict[str, object] = {
        "Image": settings.image,
        "Command": command_of(request, settings),
        "Env": _environment(request, url=url, has_token=any(one.data is not None for one in secrets)),
        "Labels": {**settings.labels, **own},  # without our state's label: that marks containers of the Docker runtime
        "Init": settings.init,
        "ReadOnly": settings.read_only,
        "CapabilityDrop": ["ALL"],
        "Privileges": {"NoNewPrivileges": True},  # ignored by engines before version 25
        "StopSignal": settings.stop_signal,
        "StopGracePeriod": int((pool.grace + GRACE_MARGIN_SECONDS) * _NANOSECONDS),
        "Mounts": _mounts(mounts, settings),
    }
    container.update({key: value for key, value in (("Dir", pool.cwd), ("User", settings.user)) if value})
    template: dict[str, object] = {
        "ContainerSpec": container,
        "RestartPolicy": {"Condition": "none"},
        "Resources": _resources(settings),
        "Placement": {"Constraints": list(settings.constraints)},
    }
    if settings.network is not None:
        template["Networks"] = [{"Target": settings.network}]
    digest = _digest([template, [(one.name, one.file) for one in secrets]])
    stem = f"towline-{_digest(state)[:6]}-{pool.name[:_POOL_CHARS].rstrip('-')}-{digest}"
    labels = {**settings.labels, **own, STATE_LABEL: state, DIGEST_LABEL: digest}
    if fleet:
        labels[FLEET_LABEL] = fleet
    return ServiceBody(digest, stem, pool.name, labels, template, secrets)


def literal(text: str) -> str:
    """Escape text against Swarm's templates, which expand `{{...}}` in the values of variables."""
    return text.replace("{{", '{{"{{"}}')


def worker_template(pool: str) -> str:
    """Return the template from which Swarm makes a task's worker name: the same as `tasks.worker_of`."""
    return f"{pool}.{{{{.Task.Slot}}}}.{{{{.Task.ID}}}}"


def _environment(request: SpawnRequest, *, url: str, has_token: bool) -> list[str]:
    environment = {name: value for name, value in request.environment.items() if name not in _NOT_PASSED}
    if url:
        environment["TOWLINE_URL"] = url
    if has_token:
        environment["TOWLINE_TOKEN_FILE"] = f"{SECRETS_TARGET}/{TOKEN_SECRET}"
    pool = request.pool
    template = worker_template(pool.name)
    variables = {name: filled(text, worker=template, pool=pool.name, quote=literal) for name, text in pool.env.items()}
    variables |= {name: literal(value) for name, value in environment.items()}
    variables["TOWLINE_WORKER"] = template
    return sorted(f"{name}={value}" for name, value in variables.items())


def _secrets(request: SpawnRequest, settings: SwarmSettings) -> tuple[SwarmSecret, ...]:
    named = [SwarmSecret(secret, file) for file, secret in sorted(settings.secrets.items())]
    token = request.environment.get("TOWLINE_TOKEN")
    if token:
        named.append(SwarmSecret(f"{TOKEN_SECRET}-{_digest(token)}", TOKEN_SECRET, token))
    return tuple(named)


def _resources(settings: SwarmSettings) -> Json:
    limits = {"Pids": MAX_PIDS}
    if settings.memory is not None:
        limits["MemoryBytes"] = settings.memory
    if settings.cpus is not None:
        limits["NanoCPUs"] = round(settings.cpus * _NANOSECONDS)
    return {"Limits": limits}


def _mounts(needed: Sequence[Mount], settings: SwarmSettings) -> list[Json]:
    mounts = [*needed, *(mount_of(Volume.parse(text)) for text in settings.volumes)]
    bodies: list[Json] = [mount.body() for mount in mounts]
    if settings.read_only and not any(mount.target == "/tmp" for mount in mounts):  # noqa: S108  in the container
        bodies.append({"Type": "tmpfs", "Target": "/tmp"})  # noqa: S108
    return bodies


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
