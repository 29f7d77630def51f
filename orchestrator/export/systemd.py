"""Export systemd units for one host: queue server, supervisor, and workers of external pools. Pure."""

import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from orchestrator.config.pools import PoolSpec
from orchestrator.export.request import ExportedFiles, ExportRequest, Findings, header
from orchestrator.export.settings import (
    PYTHON,
    check_command,
    check_placeholders,
    check_program,
    environment_of,
    program_of,
    variables_of,
)
from queue_core.config.store_urls import scheme_of
from queue_core.stores import sqlite_path

Section = Sequence[tuple[str, str]]

QUEUE_UNIT: Final = "towline-queue.service"
SUPERVISOR_UNIT: Final = "towline-supervisor.service"
ENVIRONMENT_FILE: Final = "/etc/towline/environment"
WORKER_ENVIRONMENT_FILE: Final = "/etc/towline/worker-environment"
"""A separate file: workers must not see the tokens and passwords of server and store."""
VARIABLES_FOLDER: Final = "/etc/towline"
GRACE_MARGIN_SECONDS: Final = 10
_CONTROL: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}

USER: Final = "towline"
STATE_FOLDER: Final = "/var/lib/towline"
_HOMES: Final = ("/home/", "/root/", "/run/user/")
# The same as in the units of `deploy/systemd`.
_HARDENED: Final[Section] = (
    ("UMask", "0077"),
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("ProtectSystem", "strict"),
    ("PrivateTmp", "yes"),
    ("PrivateDevices", "yes"),
    ("ProtectClock", "yes"),
    ("ProtectHostname", "yes"),
    ("ProtectKernelLogs", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectControlGroups", "yes"),
    ("ProtectProc", "invisible"),
    ("LockPersonality", "yes"),
    ("RestrictRealtime", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallFilter", "@system-service"),
    ("SystemCallErrorNumber", "EPERM"),
)
_AGAIN: Final[Section] = (
    ("Restart", "on-failure"),
    ("RestartSec", "2s"),
    # 78: the settings are wrong; a restart does not help.
    ("RestartPreventExitStatus", "78"),
)


def systemd(request: ExportRequest) -> ExportedFiles:
    """Return one file per unit. Raises `ExportRefusedError`."""
    found = Findings(request.document)
    pools = request.project.pools
    for pool in pools.values():
        _check(pool, found)
    found.check()
    files = {QUEUE_UNIT: _queue(request)}
    if pools:
        files[SUPERVISOR_UNIT] = _supervisor(request)
    for pool in pools.values():
        if pool.runtime_kind == "external":
            files[worker_unit(pool)] = _worker(request, pool)
    return ExportedFiles(
        {name: header(_how(request, name, list(files))) + text for name, text in files.items()},
        found.warnings,
        {
            variables_file(pool): "".join(_assignment(name, text) for name, text in variables_of(pool).items())
            for pool in pools.values()
            if pool.runtime_kind == "external" and pool.env
        },
    )


def worker_unit(pool: PoolSpec) -> str:
    """Return the name of the pool's template unit: `systemctl start towline-worker-resize@{1..3}`."""
    return f"towline-worker-{pool.name}@.service"


def variables_file(pool: PoolSpec) -> str:
    """Return the name of the file with the values of the pool's variables."""
    return f"worker-{pool.name}.env"


def _queue(request: ExportRequest) -> str:
    after = "network-online.target postgresql.service redis-server.service"
    return _unit(
        (("Description", "Towline: the queue server"), ("Wants", "network-online.target"), ("After", after)),
        (
            ("Type", "exec"),
            ("ExecStart", _command(*request.program, "serve", "--json", "--file", request.settings_path)),
            *_common(request),
            *_AGAIN,
            ("TimeoutStopSec", "30s"),
            ("LimitNOFILE", "65536"),
            *_own_user(request, state="yes"),
            *_HARDENED,
        ),
    )


def _supervisor(request: ExportRequest) -> str:
    longest = max(pool.grace for pool in request.project.pools.values())
    return _unit(
        (
            ("Description", "Towline: the supervisor and its workers"),
            ("Wants", f"network-online.target {QUEUE_UNIT}"),
            ("After", f"network-online.target {QUEUE_UNIT}"),
        ),
        (
            ("Type", "notify"),
            ("ExecStart", _command(*request.program, "supervise", "--json", "--file", request.settings_path)),
            # The command waits for the answer and fails if the settings are refused; a signal does neither.
            ("ExecReload", _command(*request.program, "reload", "--file", request.settings_path)),
            *_common(request),
            ("WatchdogSec", "60s"),
            ("TimeoutStartSec", "90s"),
            *_AGAIN,
            ("TimeoutStopSec", f"{math.ceil(longest) + GRACE_MARGIN_SECONDS}s"),
            # Workers outlive a killed supervisor: the next one adopts them.
            ("KillMode", "process"),
            ("OOMPolicy", "continue"),
            ("LimitNOFILE", "65536"),
            *_own_user(request, state="yes"),
            *_engine_group(request),
            *_HARDENED,
        ),
    )


def _worker(request: ExportRequest, pool: PoolSpec) -> str:
    url = request.project.queue_file.server.url(request.project.directory)
    environment = environment_of(pool, url=url)
    program = program_of(pool, python=PYTHON, app=[*request.program, "work", "--json"])
    return _unit(
        (
            ("Description", f"Towline: worker %i of pool {pool.name}"),
            ("Wants", "network-online.target"),
            ("After", f"network-online.target {QUEUE_UNIT}"),
        ),
        (
            ("Type", "exec"),
            ("ExecStart", _command(*program)),
            *_common(request, folder=pool.cwd, variables=WORKER_ENVIRONMENT_FILE),
            *_environment(environment),
            *((("EnvironmentFile", f"{VARIABLES_FOLDER}/{variables_file(pool)}"),) if pool.env else ()),
            # A worker also exits to be replaced by a fresh one.
            ("Restart", "always"),
            *_AGAIN[1:],
            ("TimeoutStopSec", f"{math.ceil(pool.grace) + GRACE_MARGIN_SECONDS}s"),
            ("KillMode", "mixed"),
            *_own_user(request, state="no"),
            *_HARDENED,
        ),
    )


def written_folders(request: ExportRequest) -> list[str]:
    """Return the folders outside of /var/lib/towline that queue server and supervisor write to."""
    project = request.project
    queue = project.queue_file
    places = [project.directory / project.supervisor.state_dir]
    if scheme_of(queue.store.url) == "sqlite":
        places.append((project.directory / sqlite_path(queue.store.url)).parent)
    if queue.log is not None:
        places.append((project.directory / queue.log).parent)
    if queue.server.listen.startswith("unix:"):
        places.append((project.directory / queue.server.listen.removeprefix("unix:")).parent)
    folders = dict.fromkeys(os.path.normpath(place) for place in places)
    return [folder for folder in folders if not f"{folder}/".startswith(f"{STATE_FOLDER}/")]


def _own_user(request: ExportRequest, *, state: Literal["yes", "no"]) -> Section:
    """Return a user of its own, who may write nowhere but to the state; a user `towline` that exists is taken."""
    folders = written_folders(request) if state == "yes" else []
    used = [*folders, f"{request.project.directory}/", *request.program, request.settings_path]
    homes = "read-only" if any(place.startswith(_HOMES) for place in used) else "yes"
    return (
        ("DynamicUser", "yes"),
        ("User", USER),
        *((("StateDirectory", "towline"), ("StateDirectoryMode", "0700")) if state == "yes" else ()),
        *(("ReadWritePaths", _quoted(f"-{folder}")) for folder in folders),
        ("ProtectHome", homes),
    )


def _engine_group(request: ExportRequest) -> Section:
    """Return the group of the engine's socket, for pools that run in containers."""
    is_needed = any(pool.runtime_kind in ("docker", "swarm") for pool in request.project.pools.values())
    return (("SupplementaryGroups", "docker"),) if is_needed else ()


def _common(request: ExportRequest, *, folder: str | None = None, variables: str = ENVIRONMENT_FILE) -> Section:
    return (
        ("WorkingDirectory", _path(folder or str(request.project.directory))),
        ("EnvironmentFile", f"-{variables}"),
        ("Environment", "PYTHONUNBUFFERED=1"),
    )


def _check(pool: PoolSpec, found: Findings) -> None:
    path = ("pools", pool.name)
    if pool.runtime_kind == "external":
        check_program(pool, found)
        check_placeholders(pool, found)
        check_command(pool, found)
        if pool.celery is not None and not (pool.celery.python or "").startswith("/"):
            shown = pool.celery.python or "left out"
            found.wrong((*path, "celery", "python"), f"{shown}: systemd wants the full path of the app's Python")
    if pool.command is not None and pool.runtime_kind == "external" and not pool.command[0].startswith("/"):
        found.wrong((*path, "command"), f"{pool.command[0]}: systemd wants the program's full path")


def _environment(variables: Mapping[str, str]) -> Section:
    return [("Environment", _quoted(f"{name}={text}")) for name, text in sorted(variables.items())]


def _assignment(name: str, text: str) -> str:
    """Return a line of an `EnvironmentFile=`, where a text in double quotes has four characters with a meaning."""
    escaped = re.sub(r'(["\\`$])', r"\\\1", text)
    return f'{name}="{escaped}"\n'


def _command(*words: str) -> str:
    """Return a unit's command line, with `$` and a leading `@` or `-` escaped."""
    return " ".join(_quoted(word.replace("$", "$$")) for word in words)


def _quoted(word: str) -> str:
    """Quote one word of a unit file; `%` would be a specifier."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    for raw, escape in _CONTROL.items():
        escaped = escaped.replace(raw, escape)
    plain = word and all(c.isalnum() or c in "/._-=:+," for c in word)
    return escaped if plain else f'"{escaped}"'


def _path(path: str) -> str:
    return path.replace("%", "%%")


def _unit(unit: Section, service: Section) -> str:
    sections = {"Unit": unit, "Service": service, "Install": (("WantedBy", "multi-user.target"),)}
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in entries) for name, entries in sections.items()
    )


def _how(request: ExportRequest, name: str, names: Sequence[str]) -> list[str]:
    lines = ["From `towline export --to systemd`; change the settings file and export again rather than this unit.", ""]
    if name.endswith("@.service"):
        stem = name.removesuffix(".service")
        return [
            *lines,
            "Workers without scaling: as many as are enabled, each by a number.",
            f"  systemctl enable --now {stem}1 {stem}2",
            "How many there should be: `towline pools`. Their names begin with their pool's.",
            f"Their own token, as TOWLINE_TOKEN=...: in {WORKER_ENVIRONMENT_FILE}, mode 0600. They read nothing of",
            f"{ENVIRONMENT_FILE}, where those of server and store are.",
            *_how_to_install(name, request),
            "",
        ]
    if name == QUEUE_UNIT:
        units = " ".join(one for one in names if "@" not in one)
        return [
            *lines,
            f"  cp {' '.join(names)} /etc/systemd/system/ && systemctl daemon-reload",
            f"  systemctl enable --now {units}",
            f"Tokens and passwords that the settings take from the environment: in {ENVIRONMENT_FILE}, mode 0600.",
            f"They run as {USER}, a user that systemd makes, who may write to {STATE_FOLDER} alone.",
            *_how_to_write(request),
            "",
        ]
    return lines


def _how_to_write(request: ExportRequest) -> list[str]:
    folders = written_folders(request)
    if not folders:
        return []
    named = " ".join(map(shlex.quote, folders))
    return [
        f"The settings have the store or the state elsewhere: keep them in {STATE_FOLDER}, or make a user {USER} with",
        f"`useradd --system {USER}`, who may write to: {named}",
    ]


def _how_to_install(name: str, request: ExportRequest) -> list[str]:
    pool = next(one for one in request.project.pools.values() if worker_unit(one) == name)
    if not pool.env:
        return []
    return [
        f"The values of the pool's variables are in {variables_file(pool)}, for root alone:",
        f"  install -D --mode 0600 {variables_file(pool)} {VARIABLES_FOLDER}/{variables_file(pool)}",
    ]
