"""Export systemd units for one host: queue server, supervisor, and workers of external pools. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.export.request import ExportedFiles, ExportRequest, Findings, header
from orchestrator.export.settings import PYTHON, check_placeholders, check_program, environment_of, program_of

Section = Sequence[tuple[str, str]]

QUEUE_UNIT: Final = "towline-queue.service"
SUPERVISOR_UNIT: Final = "towline-supervisor.service"
ENVIRONMENT_FILE: Final = "/etc/towline/environment"
WORKER_ENVIRONMENT_FILE: Final = "/etc/towline/worker-environment"
"""A separate file: workers must not see the tokens and passwords of server and store."""
GRACE_MARGIN_SECONDS: Final = 10
_CONTROL: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}

_HARDENED: Final[Section] = (
    ("NoNewPrivileges", "yes"),
    ("ProtectSystem", "full"),
    ("PrivateTmp", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectControlGroups", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("LockPersonality", "yes"),
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
    return ExportedFiles({name: header(_how(name, list(files))) + text for name, text in files.items()}, found.warnings)


def worker_unit(pool: PoolSpec) -> str:
    """Return the name of the pool's template unit: `systemctl start towline-worker-resize@{1..3}`."""
    return f"towline-worker-{pool.name}@.service"


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
            # A worker also exits to be replaced by a fresh one.
            ("Restart", "always"),
            *_AGAIN[1:],
            ("TimeoutStopSec", f"{math.ceil(pool.grace) + GRACE_MARGIN_SECONDS}s"),
            ("KillMode", "mixed"),
            *_HARDENED,
        ),
    )


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
        if pool.celery is not None and not (pool.celery.python or "").startswith("/"):
            shown = pool.celery.python or "left out"
            found.wrong((*path, "celery", "python"), f"{shown}: systemd wants the full path of the app's Python")
    if pool.command is not None and pool.runtime_kind == "external" and not pool.command[0].startswith("/"):
        found.wrong((*path, "command"), f"{pool.command[0]}: systemd wants the program's full path")


def _environment(variables: Mapping[str, str]) -> Section:
    return [("Environment", _quoted(f"{name}={text}")) for name, text in sorted(variables.items())]


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


def _how(name: str, names: Sequence[str]) -> list[str]:
    lines = ["From `towline export --to systemd`; change the settings file and export again rather than this unit.", ""]
    if name.endswith("@.service"):
        stem = name.removesuffix(".service")
        return [
            *lines,
            "Workers without scaling: as many as are enabled, each by a number.",
            f"  systemctl enable --now {stem}1 {stem}2",
            "How many there should be: `towline pools`. Their names begin with their pool's.",
            f"Their own token, as TOWLINE_TOKEN=..., and variables of the handlers: in {WORKER_ENVIRONMENT_FILE}, mode",
            f"0600. They read nothing of {ENVIRONMENT_FILE}, where those of server and store are.",
            "",
        ]
    if name == QUEUE_UNIT:
        units = " ".join(one for one in names if "@" not in one)
        return [
            *lines,
            f"  cp {' '.join(names)} /etc/systemd/system/ && systemctl daemon-reload",
            f"  systemctl enable --now {units}",
            f"Tokens and passwords that the settings take from the environment: in {ENVIRONMENT_FILE}, mode 0600.",
            "Without User= they run as root: `systemctl edit` adds a user who may write store and state directory.",
            "",
        ]
    return lines
