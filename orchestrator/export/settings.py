"""The settings file as a container reads it: state on a volume, secrets as files, workers started by others. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.export.request import ExportRequest, Findings
from orchestrator.launch import Launch
from queue_core.config.store_urls import has_password, scheme_of

STATE_FOLDER: Final = "/var/lib/towline"
SECRETS_FOLDER: Final = "/run/secrets"
PORT: Final = 7878


@dataclass(frozen=True, slots=True)
class ExportedSecret:
    """A secret that containers find as a file of this name; where it came from, to tell how it is made.

    `role` is that of a token; "" for a password.
    """

    name: str
    env: str | None
    file: str | None
    role: str = ""


@dataclass(frozen=True, slots=True)
class Portable:
    """Settings for a container, and the secrets that they name."""

    data: Mapping[str, object]
    secrets: tuple[ExportedSecret, ...]

    def token(self, *roles: str) -> ExportedSecret | None:
        """The first token of one of these roles, in the order of the roles."""
        return next((one for role in roles for one in self.secrets if one.role == role), None)


def portable(request: ExportRequest, found: Findings, *, runtimes: Mapping[str, object]) -> Portable:
    """The file's own values, changed only where a container needs it; `runtimes` are what each pool's shall be."""
    raw = request.document.data
    data: dict[str, object] = dict(raw) if isinstance(raw, Mapping) else {}
    secrets: list[ExportedSecret] = []
    _place_store(data, request, found, secrets)
    _place_server(data, request, found, secrets)
    supervisor = data.get("supervisor")
    data["supervisor"] = {
        **(supervisor if isinstance(supervisor, Mapping) else {}),
        "state_dir": f"{STATE_FOLDER}/supervisor",
    }
    if isinstance(data.get("log"), str):
        data["log"] = f"{STATE_FOLDER}/{PurePosixPath(str(data['log'])).name}"
    pools = data.get("pools")
    if isinstance(pools, Mapping):
        data["pools"] = {
            name: {
                **{key: value for key, value in settings.items() if key != "cwd" or str(value).startswith("/")},
                "runtime": runtimes[name],
            }
            for name, settings in pools.items()
            if name in runtimes
        }
    return Portable(data, tuple(secrets))


def _place_store(
    data: dict[str, object], request: ExportRequest, found: Findings, secrets: list[ExportedSecret]
) -> None:
    store = request.project.queue_file.store
    scheme = scheme_of(store.url)
    if has_password(store.url):
        why = "the URL has a password in it, and would stand open in what is exported: give it by store.password_env"
        found.wrong(("store",), why)
    elif scheme == "memory":
        told = "memory: tasks are lost whenever the container is started anew; use sqlite: or postgresql:"
        found.warn(("store",), told)
        data["store"] = "memory:"
    elif scheme == "sqlite":
        told = f"a file in {STATE_FOLDER}, on a volume: one queue server on one host; for more write postgresql:"
        found.warn(("store",), told)
        data["store"] = f"sqlite:///{STATE_FOLDER}/{PurePosixPath(store.url).name}"
    elif store.password_env or store.password_file:
        secret = ExportedSecret("store-password", store.password_env, store.password_file)
        secrets.append(secret)
        data["store"] = {"url": store.url, "password_file": f"{SECRETS_FOLDER}/{secret.name}"}
    else:
        data["store"] = store.url


def _place_server(
    data: dict[str, object], request: ExportRequest, found: Findings, secrets: list[ExportedSecret]
) -> None:
    server = request.project.queue_file.server
    if server.grpc is not None:
        found.warn(("server", "grpc"), "is not exported: give the certificate and the port by hand")
    if not server.tokens:
        why = "none, and other containers reach the server: add tokens: [{role: admin, token_env: TOWLINE_ADMIN}]"
        found.wrong(("server", "tokens"), why)
    tokens: list[dict[str, object]] = []
    for number, token in enumerate(server.tokens, start=1):
        secret = ExportedSecret(f"token-{number}-{token.role}", token.token_env, token.token_file, token.role)
        secrets.append(secret)
        email = {} if token.email is None else {"email": token.email}
        tokens.append({"role": token.role, **email, "token_file": f"{SECRETS_FOLDER}/{secret.name}"})
    data["server"] = {"listen": f"0.0.0.0:{PORT}", "tokens": tokens}


PYTHON: Final = "python3"
APP_MODULE: Final = "queue_core.worker"
# A worker that others start names itself, and misses no supervisor.
_NOT_TOLD: Final = frozenset(
    {
        "TOWLINE_WORKER",
        "TOWLINE_SPEC",
        "TOWLINE_SUPERVISOR_LOCK",
        "TOWLINE_ORPHAN_GRACE_SECONDS",
        "TOWLINE_STATE_DIR",
        "TOWLINE_TOKEN",
    }
)


def arguments_of(pool: PoolSpec) -> list[str]:
    """The worker's program in a container."""
    settings = pool.containers
    return list(pool.command or (settings.python if settings else PYTHON, "-m", APP_MODULE))


def environment_of(pool: PoolSpec, *, url: str) -> Mapping[str, str]:
    """A worker's variables: the pool's own, then what it works on."""
    told = Launch(url, "", "", 0.0).environment("", pool)
    return {**pool.env, **{name: text for name, text in told.items() if name not in _NOT_TOLD and text}}


def bounds_of(pool: PoolSpec) -> tuple[int, int]:
    """The least and the most workers at any hour of its schedule."""
    low, high = pool.workers.min, pool.workers.max
    for window in pool.schedule:
        least, most = window.workers.min, window.workers.max
        low = min(bound for bound in (low, least, most) if bound is not None)
        high = high if most is None else max(high, most)
    return low, high
