"""`--host`: the supervisor on one host, found by any server or supervisor of the same store."""

import functools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from orchestrator.base.json_fields import mapping_of, mappings_of, text_in
from orchestrator.cli.supervisor_calls import NoSupervisorError, SupervisorCalls, supervisor_at
from queue_core.cli import exits
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError
from queue_core.cli.options import Function
from queue_core.cli.target import Target, find_target
from queue_core.config.messages import did_you_mean
from queue_core.process.own_addresses import is_of_this_machine
from queue_core.process.process_start import process_start

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class KnownSupervisor:
    """A supervisor as it registered itself; `url` is empty where it has no listener."""

    name: str
    host: str
    url: str
    is_local: bool
    phase: str
    pid: int = 0
    process_start: str = ""


def host_option(function: Function) -> Function:
    """Add `--host`, which sets `--url` to that of the supervisor on the host."""

    @functools.wraps(function)
    def resolved(*args: object, host: str | None, **options: object) -> object:
        if host is not None:
            url, token_file, file = (options.get(name) for name in ("url", "token_file", "file"))
            options["url"] = url_on(
                host,
                url=url if isinstance(url, str) else None,
                token_file=token_file if isinstance(token_file, Path) else None,
                file=file if isinstance(file, Path) else None,
            )
            options["file"] = None
        return function(*args, **options)

    option = click.option("--host", help="The supervisor on this host, of those that share a store.")
    return option(resolved)  # type: ignore[return-value]


def url_on(host: str, *, url: str | None, token_file: Path | None, file: Path | None) -> str:
    """Return the URL of the supervisor on a host. Raises `CommandError` where there is none that can be called."""
    target = find_target(url=url, store=None, token_file=token_file, file=file)
    if not target.is_server:
        fix = "give --url with that of any server or supervisor of the store"
        raise CommandError("--host needs a server that answers", code=exits.UNAVAILABLE, where=target.shown, fix=fix)
    with supervisor_at(target.url, token_file) as calls:
        known = known_supervisors(calls)
    found = [one for one in known if host in {one.host, one.name}]
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        message = f"{len(found)} supervisors run on {host}: {names}"
        raise CommandError(message, code=exits.NO_INPUT, where=target.shown, fix="give --host with one of these names")
    if not found:
        hosts = sorted({one.host for one in known})
        shown = f"these are known: {', '.join(hosts)}" if hosts else "none is registered at this store"
        message = f"no supervisor runs on '{host}'{did_you_mean(host, hosts)}"
        raise CommandError(message, code=exits.NO_INPUT, where=target.shown, fix=shown)
    return _reachable(found[0], target, token=bearer_token(token_file))


def known_supervisors(calls: SupervisorCalls) -> Sequence[KnownSupervisor]:
    """Return the supervisors of the store behind a supervisor, or behind a server without one."""
    try:
        return [_known(one, one) for one in mappings_of(calls.get("supervisors")["supervisors"])]
    except NoSupervisorError:
        found = mappings_of(calls.get("registrations", "supervisors")["registrations"])
        return [_known(one, mapping_of(one.get("facts"))) for one in found]


def _known(one: dict[str, object], facts: dict[str, object]) -> KnownSupervisor:
    reach = text_in(facts, "reach")
    pid = str(facts.get("pid", ""))
    return KnownSupervisor(
        name=text_in(one, "name"),
        host=text_in(facts, "host"),
        url=text_in(facts, "url"),
        is_local=reach != "network",
        phase=text_in(facts, "phase"),
        pid=int(pid) if pid.isdecimal() and len(pid) < 10 else 0,
        process_start=text_in(facts, "process_start"),
    )


def _reachable(one: KnownSupervisor, target: Target, *, token: str | None) -> str:
    """Return the URL of a supervisor to which the token may go. Raises `CommandError` for any other.

    Programs of any machine write such registrations: a token goes to the very process that did, on this machine, and
    to addresses that a person has named.
    """
    where = target.shown
    if not one.url:
        message = f"the supervisor on {one.host} has no listener"
        raise CommandError(message, code=exits.UNAVAILABLE, where=where, fix="set supervisor.listen in its settings")
    is_here = one.host == socket.gethostname()
    if one.is_local and not is_here:
        message = f"the supervisor on {one.host} listens only for programs on that host, at {one.url}"
        fix = "run this there; or give its listener an address that others reach, and tokens"
        raise CommandError(message, code=exits.UNAVAILABLE, where=where, fix=fix)
    if _is_named(one.url, target):
        return one.url
    start = process_start(one.pid)
    if is_here and not start:
        message = f"the supervisor on {one.host} has ended: no process {one.pid} is on this machine"
        fix = f"start it; or give --url {one.url} if it runs in a container"
        raise CommandError(message, code=exits.UNAVAILABLE, where=where, fix=fix)
    is_proven = is_here and start == one.process_start and is_of_this_machine(one.url)
    if token is None or is_proven:
        return one.url
    message = f"the token is not sent to {one.url}: the supervisor on {one.host} registered it, and you did not name it"
    fix = f"if you trust that address: --url {one.url} in place of --host"
    raise CommandError(message, code=exits.BAD_CONFIG, where=where, fix=fix)


def _is_named(url: str, target: Target) -> bool:
    """Return whether a flag, the environment or the settings name this address."""
    named = [*target.url.split(","), *os.environ.get("TOWLINE_URL", "").split(",")]
    return _address(url) in map(_address, named)


def _address(url: str) -> tuple[str, str, int | None]:
    """Return what of a URL says where it leads: its scheme, its host or path, and its port."""
    try:
        parts = urlsplit(url.strip())
        return parts.scheme, parts.hostname or parts.path, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "", url, None
