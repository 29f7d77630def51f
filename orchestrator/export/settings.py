"""Settings and worker commands for containers: state on a volume, secrets as files, external workers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from orchestrator.config.placeholders import filled, names_worker
from orchestrator.config.pools import PoolSpec
from orchestrator.export.request import ExportRequest, Findings
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from queue_core.attempts.secret_forms import masked_command
from queue_core.config.settings import TokenSettings
from queue_core.config.store_urls import has_password, scheme_of

STATE_FOLDER: Final = "/var/lib/towline"
SECRETS_FOLDER: Final = "/run/secrets"
PORT: Final = 7878


@dataclass(frozen=True, slots=True)
class ExportedSecret:
    """A secret that containers read from a file of this name, and the variable or file it comes from.

    `role` is the role of a token; "" for a password.
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
        """Return the first token that has one of these roles, trying the roles in order."""
        return next((one for role in roles for one in self.secrets if one.role == role), None)


def portable(
    request: ExportRequest,
    found: Findings,
    *,
    runtimes: Mapping[str, object],
    roles: Sequence[Literal["worker", "viewer"]] = (),
) -> Portable:
    """Return the file's settings, changed only where a container needs it, with the given runtime for each pool.

    `roles`: for each of them there is a token, if need be a new one: nobody is given more rights than it needs.
    """
    raw = request.document.data
    data: dict[str, object] = dict(raw) if isinstance(raw, Mapping) else {}
    secrets: list[ExportedSecret] = []
    _place_store(data, request, found, secrets)
    _place_server(data, request, found, secrets, roles)
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
                **{key: value for key, value in settings.items() if _is_kept(key, value, runtimes[name])},
                "runtime": runtimes[name],
            }
            for name, settings in pools.items()
            if name in runtimes
        }
        for name in runtimes:
            if pools.get(name, {}).get("start") == "fork" and runtimes[name] != "process":
                why = "left out: workers that are exported import their app themselves, and none is forked"
                found.warn(("pools", name, "start"), why)
    return Portable(data, tuple(secrets))


def _is_kept(setting: str, value: object, runtime: object) -> bool:
    """Return whether a pool's setting means the same in a container: a folder of this host and a fork do not."""
    if setting == "cwd":
        return str(value).startswith("/")
    if setting == "env":  # variables may be secrets: each platform has its own place for them
        return False
    return setting != "start" or runtime == "process"


def _place_store(
    data: dict[str, object], request: ExportRequest, found: Findings, secrets: list[ExportedSecret]
) -> None:
    store = request.project.queue_file.store
    scheme = scheme_of(store.url)
    if has_password(store.url):
        why = "the URL contains a password, which would be readable in the export: use store.password_env"
        found.wrong(("store",), why)
    elif scheme == "memory":
        message = "memory: tasks are lost whenever the container restarts; use sqlite: or postgresql:"
        found.warn(("store",), message)
        data["store"] = "memory:"
    elif scheme == "sqlite":
        message = f"a file in {STATE_FOLDER}, on a volume: one queue server on one host; for more use postgresql:"
        found.warn(("store",), message)
        data["store"] = f"sqlite:///{STATE_FOLDER}/{PurePosixPath(store.url).name}"
    elif store.password_env or store.password_file:
        secret = ExportedSecret("store-password", store.password_env, store.password_file)
        secrets.append(secret)
        data["store"] = {"url": store.url, "password_file": f"{SECRETS_FOLDER}/{secret.name}"}
    else:
        data["store"] = store.url


def _place_server(
    data: dict[str, object],
    request: ExportRequest,
    found: Findings,
    secrets: list[ExportedSecret],
    roles: Sequence[Literal["worker", "viewer"]],
) -> None:
    server = request.project.queue_file.server
    if server.grpc is not None:
        found.warn(("server", "grpc"), "is not exported: give the certificate and the port by hand")
    if not server.tokens:
        why = "no tokens, but other containers reach the server: add tokens: [{role: admin, token_env: TOWLINE_ADMIN}]"
        found.wrong(("server", "tokens"), why)
    tokens: list[dict[str, object]] = []
    given = [
        (token.model_dump(mode="json", exclude={"token_env", "token_file"}, exclude_defaults=True), token)
        for token in server.tokens
    ]
    there = {token.role for token in server.tokens}
    if server.tokens:
        added = [_token_beside(server.tokens[0], role) for role in roles if role not in there]
        for token in added:
            source = f"the variable {token.token_env}" if token.token_env else f"the file {token.token_file}"
            why = f"no token of the role {token.role}: one is added, from {source}"
            found.warn(("server", "tokens"), why)
        given += [({"role": token.role}, token) for token in added]
    for number, (kept, token) in enumerate(given, start=1):
        secret = ExportedSecret(f"token-{number}-{token.role}", token.token_env, token.token_file, token.role)
        secrets.append(secret)
        tokens.append({**kept, "token_file": f"{SECRETS_FOLDER}/{secret.name}"})
    data["server"] = {"listen": f"0.0.0.0:{PORT}", "tokens": tokens}


def _token_beside(first: TokenSettings, role: Literal["worker", "viewer"]) -> TokenSettings:
    """Return a token that comes from where the first one does, a variable or a file beside it: both are there then."""
    if first.token_file is None:
        return TokenSettings(role=role, token_env=f"TOWLINE_{role.upper()}_TOKEN")
    return TokenSettings(role=role, token_file=str(PurePosixPath(first.token_file).with_name(f"{role}.token")))


_NAMES_ITSELF: Final = "{worker}: an exported worker names itself as it starts: leave it out, or use its host's name"
PYTHON: Final = "python3"
APP_MODULE: Final = "queue_core.worker"
# An external worker names itself and does not depend on our supervisor's life.
_LEFT_OUT: Final = frozenset(
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
    """Return the worker's command in a container."""
    settings = pool.containers
    python = settings.python if settings else PYTHON
    return program_of(pool, python=python, app=[python, "-m", APP_MODULE])


def program_of(pool: PoolSpec, *, python: str, app: Sequence[str]) -> list[str]:
    """Return a worker's command line: the pool's, or Celery's run by `python`, or else `app`."""
    if pool.celery is None:
        return command_in(pool) or list(app)
    return list(SpawnRequest(pool.name, pool).program(python, app=app))


def command_in(pool: PoolSpec) -> list[str]:
    """Return the pool's command with the pool's name in it; empty for an `app` and for Celery's workers."""
    return [_filled(argument, pool) for argument in pool.command or ()]


def check_placeholders(pool: PoolSpec, found: Findings) -> None:
    """Refuse the placeholder of a worker's name: exported workers name themselves."""
    for index, argument in enumerate(pool.command or ()):
        if names_worker(argument):
            found.wrong(("pools", pool.name, "command", index), _NAMES_ITSELF)
    for name, text in pool.env.items():
        if names_worker(text):
            found.wrong(("pools", pool.name, "env", name), _NAMES_ITSELF)


def _filled(text: str, pool: PoolSpec) -> str:
    return filled(text, worker="{worker}", pool=pool.name)  # of the worker there is none: see `check_placeholders`


def variables_of(pool: PoolSpec) -> Mapping[str, str]:
    """Return the pool's own variables. Any may be a secret: they go into private files alone, whatever they are called.

    This is the one place where an export takes them from (ADR 127).
    """
    return {name: _filled(text, pool) for name, text in sorted(pool.env.items())}


def check_command(pool: PoolSpec, found: Findings) -> None:
    """Warn of a pool's command that has a secret, which everybody reads who sees the export or the process."""
    if pool.command is not None and masked_command(pool.command) != list(pool.command):
        why = "has what looks like a secret, which everybody reads who sees the export or the process: use env"
        found.warn(("pools", pool.name, "command"), why)


def environment_of(pool: PoolSpec, *, url: str) -> Mapping[str, str]:
    """Return a worker's environment without the pool's own variables: how it finds its work, none of it secret."""
    variables = Launch(url, "", "", 0.0).environment("", pool)
    return {name: text for name, text in variables.items() if name not in _LEFT_OUT and text}


def check_program(pool: PoolSpec, found: Findings) -> None:
    """Refuse a pool that does not say what runs in a worker."""
    if pool.app is None and pool.command is None and pool.celery is None:
        what = "give app: module:attribute, or command: [program, argument], or celery: {app: proj}"
        found.wrong(("pools", pool.name), f"what runs in a worker? {what}")
