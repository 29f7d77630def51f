"""Build the body of `containers/create` for one worker from the settings. Pure."""

import math
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from orchestrator.base.errors import SpawnError
from orchestrator.base.values import value
from orchestrator.config.containers import ContainerSettings, Volume
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.docker import container_state as labels

LOCK_TARGET: Final = "/run/towline/supervisor.lock"
QUEUE_TARGET: Final = "/run/towline/queue"
SECRETS_TARGET: Final = "/run/secrets"
TOKEN_SECRET: Final = "towline-token"  # noqa: S105  the file's name
URL_SECRET: Final = "towline-url"  # noqa: S105
OWN_TARGETS: Final = frozenset(
    {LOCK_TARGET, QUEUE_TARGET, f"{SECRETS_TARGET}/{TOKEN_SECRET}", f"{SECRETS_TARGET}/{URL_SECRET}"}
)
"""Where the supervisor's own files are mounted in a container."""
APP_MODULE: Final = "queue_core.worker"
HOST_NAME: Final = "host.docker.internal"
"""The name of the host inside its containers."""
STOP_MARGIN_SECONDS: Final = 2
"""Time between the worker's grace and the engine's own SIGKILL, so that ours comes first."""
MAX_PIDS: Final = 4096
"""The maximum of processes and threads per worker: well above what handlers need, and a limit to fork bombs."""
NO_NEW_PRIVILEGES: Final = "no-new-privileges:true"
ROOT_UID: Final = 0

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104  compared with, not bound
# Variables that a container gets in another way, or must not have: anyone with access to the engine can read a token,
# and a state directory identifies processes of the host.
_NOT_PASSED: Final = frozenset(
    {"TOWLINE_TOKEN", "TOWLINE_SUPERVISOR_LOCK", "TOWLINE_STATE_DIR", "TOWLINE_STATE_ID", "TOWLINE_URL"}
)


@value
class HostPaths:
    """The supervisor's files that a container needs: paths on the engine's host.

    `state` identifies the supervisor's state directory across hosts, `host` its host, `fleet` the store's fleet. `lock`
    is a file that a living supervisor holds locked, `token` a file with the worker's token, `url` a file with the
    queue's URL if that contains a password; None without one, or if the engine runs on another host. `socket_uid` is
    the owner of the queue's socket.
    """

    state: str
    host: str
    lock: str | None = None
    token: str | None = None
    url: str | None = None
    socket_uid: int = ROOT_UID
    fleet: str = ""


@value
class Mount:
    """A file or folder of the host, or a named volume, mounted in a container."""

    source: str
    target: str
    is_read_only: bool = True
    is_path: bool = True

    def body(self) -> dict[str, object]:
        """Return the mount as the engine's JSON. A missing source is an error; the engine never creates it."""
        return {
            "Type": "bind" if self.is_path else "volume",
            "Source": self.source,
            "Target": self.target,
            "ReadOnly": self.is_read_only,
        }


def container_body(
    request: SpawnRequest, settings: ContainerSettings, *, paths: HostPaths, spawned_at: float
) -> dict[str, object]:
    """Return the body that creates a worker's container, spawned at this second since the epoch.

    Raises `SpawnError` if the container could never reach the queue.
    """
    pool = request.pool
    url, mounts = url_and_mounts(request.environment.get("TOWLINE_URL", ""), settings, pool=pool.name)
    environment = environment_of(request, url=url, paths=paths)
    mounts += [mount_of(Volume.parse(text)) for text in settings.volumes]
    mounts += [Mount(path, f"{SECRETS_TARGET}/{name}") for name, path in sorted(settings.secrets.items())]
    if paths.lock is not None:
        mounts.append(Mount(paths.lock, LOCK_TARGET))
    if paths.token is not None:
        mounts.append(Mount(paths.token, f"{SECRETS_TARGET}/{TOKEN_SECRET}"))
    if paths.url is not None:
        mounts.append(Mount(paths.url, f"{SECRETS_TARGET}/{URL_SECRET}"))
    body: dict[str, object] = {
        "Image": settings.image,
        "Entrypoint": [],
        "Cmd": command_of(request, settings),
        "Env": [f"{name}={text}" for name, text in sorted(environment.items())],
        "Labels": labels_of(request, settings, paths=paths, spawned_at=spawned_at),
        "StopSignal": settings.stop_signal,
        "StopTimeout": math.ceil(pool.grace) + STOP_MARGIN_SECONDS,
        "Healthcheck": {"Test": ["NONE"]},  # an image's own would start a process every few seconds
        "HostConfig": host_config(
            settings,
            mounts,
            needs_host_name=urlsplit(url).hostname == HOST_NAME,
            # Root without DAC_OVERRIDE can't open another user's socket.
            capabilities=["DAC_OVERRIDE"] if _is_foreign_socket(url, settings, paths) else [],
        ),
    }
    if pool.cwd is not None:
        body["WorkingDir"] = pool.cwd
    if settings.user is not None:
        body["User"] = settings.user
    return body


def command_of(request: SpawnRequest, settings: ContainerSettings) -> list[str]:
    """Return the worker's command. The image's entrypoint is not used: only the pool's program runs."""
    return list(request.program(settings.python, app=(settings.python, "-m", APP_MODULE)))


def environment_of(request: SpawnRequest, *, url: str, paths: HostPaths) -> dict[str, str]:
    """Return a container's variables: its pool's, then the request's, adapted to paths in the container."""
    environment = dict(request.variables)
    environment.update({k: v for k, v in request.environment.items() if k not in _NOT_PASSED})
    if paths.url is not None:
        environment["TOWLINE_URL_FILE"] = f"{SECRETS_TARGET}/{URL_SECRET}"
    elif url:
        environment["TOWLINE_URL"] = url
    if paths.lock is not None:
        environment["TOWLINE_SUPERVISOR_LOCK"] = LOCK_TARGET
    if paths.token is not None:
        environment["TOWLINE_TOKEN_FILE"] = f"{SECRETS_TARGET}/{TOKEN_SECRET}"
    return environment


def labels_of(
    request: SpawnRequest, settings: ContainerSettings, *, paths: HostPaths, spawned_at: float
) -> dict[str, str]:
    """Return the labels by which the container is recognised after a restart."""
    environment = request.environment
    orphan_grace = float(environment.get("TOWLINE_ORPHAN_GRACE_SECONDS", 60.0))
    fleet = {labels.FLEET_LABEL: paths.fleet} if paths.fleet else {}
    return {
        **settings.labels,
        **fleet,
        labels.STATE_LABEL: paths.state,
        labels.WORKER_LABEL: request.worker,
        labels.POOL_LABEL: request.pool.name,
        labels.SPEC_LABEL: environment["TOWLINE_SPEC"],
        labels.SPAWNED_AT_LABEL: f"{spawned_at:.6f}",
        labels.HOST_LABEL: paths.host,
        labels.APP_LABEL: request.pool.app or "",
        labels.STOP_SIGNAL_LABEL: settings.stop_signal,
        labels.ORPHAN_GRACE_LABEL: f"{orphan_grace:g}",
        labels.ORPHAN_LABEL: f"{orphan_grace + request.pool.grace:g}",
    }


def _is_foreign_socket(url: str, settings: ContainerSettings, paths: HostPaths) -> bool:
    is_mounted = settings.url is None and url.startswith("unix://")
    return is_mounted and settings.user is None and paths.socket_uid != ROOT_UID


def host_config(
    settings: ContainerSettings,
    mounts: list[Mount],
    *,
    needs_host_name: bool = False,
    capabilities: Sequence[str] = (),
) -> dict[str, object]:
    """Return the limits, network and mounts of a container that the engine never restarts.

    It has none of root's capabilities but `capabilities`, and can't gain any through a setuid program.
    """
    config: dict[str, object] = {
        "CapDrop": ["ALL"],
        "SecurityOpt": [NO_NEW_PRIVILEGES],
        "PidsLimit": MAX_PIDS,
        "Init": settings.init,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "ReadonlyRootfs": settings.read_only,
        "Mounts": [mount.body() for mount in mounts],
    }
    if settings.read_only and not any(mount.target == "/tmp" for mount in mounts):  # noqa: S108  in the container
        config["Tmpfs"] = {"/tmp": "rw,mode=1777"}  # noqa: S108
    if settings.memory is not None:
        config["Memory"] = config["MemorySwap"] = settings.memory
    if settings.cpus is not None:
        config["NanoCpus"] = round(settings.cpus * 1e9)
    if settings.network is not None:
        config["NetworkMode"] = settings.network
    if capabilities:
        config["CapAdd"] = list(capabilities)
    if needs_host_name:
        config["ExtraHosts"] = [f"{HOST_NAME}:host-gateway"]
    return config


def mount_of(volume: Volume) -> Mount:
    """A volume of the settings."""
    return Mount(volume.source, volume.target, volume.is_read_only, volume.is_path)


def url_and_mounts(url: str, settings: ContainerSettings, *, pool: str) -> tuple[str, list[Mount]]:
    """Return the queue's URL for use in a container, and the mounts it needs.

    Of a socket the folder is mounted, because a restarted server creates another socket there. Raises `SpawnError`.
    """
    found = settings.url or url
    if found.startswith("unix://"):
        path = found.removeprefix("unix://")
        folder, _, name = path.rpartition("/")
        if settings.url is not None:
            return found, []  # a path in the image
        return f"unix://{QUEUE_TARGET}/{name}", [Mount(folder or "/", QUEUE_TARGET)]
    if is_out_of_reach(found, settings):
        raise SpawnError(unreachable(found, pool=pool))
    return found, []


def is_out_of_reach(url: str, settings: ContainerSettings) -> bool:
    """Return whether the URL is a loopback address, which in a container is the container itself."""
    network = settings.network or ""
    if network == "host" or network.startswith("container:"):
        return False
    return url.startswith(("http://", "https://")) and urlsplit(url).hostname in _LOOPBACK


def unreachable(url: str, *, pool: str) -> str:
    """Return the message for a URL that is out of reach, with what to do."""
    return (
        f"a container of pool {pool} can't reach the queue at {url}, which is its own loopback: let the queue listen "
        f"on an address that containers reach, or on unix:/path, or give the container network: host, or its own url"
    )
