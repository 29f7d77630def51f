"""What `serve` and `up` have in common: the store opened, its queues set, the lifecycle log, the server's options."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.config import Override, QueueFile, ServerSettings, absolute_store
from queue_core.errors import ListenError
from queue_core.events import EventLog
from queue_core.logs import LifecycleFile
from queue_core.server.options import AccessToken, Role, ServeOptions, options_of
from queue_core.service import QueueService
from queue_core.store import Store
from queue_core.stores import open_store


@contextmanager
def opened_store(settings: QueueFile, directory: Path) -> Iterator[Store]:
    """The store of the settings with every queue set as they say; closed at the end."""
    store = open_store(absolute_store(settings.store, directory), durability=settings.durability)
    try:
        service = QueueService(store)
        for spec in settings.specs():
            service.run(lambda turn, spec=spec: turn.put_queue(spec))  # type: ignore[misc]
        yield store
    finally:
        store.close()


@contextmanager
def lifecycle_log(settings: QueueFile, directory: Path) -> Iterator[EventLog | None]:
    """The log file of the settings, where there is one."""
    if settings.log is None or settings.lifecycle == "off":
        yield None
        return
    log = LifecycleFile(directory / settings.log, lifecycle=settings.lifecycle)
    try:
        yield log
    finally:
        log.close()


def serve_options(settings: QueueFile, directory: Path) -> ServeOptions:
    """How the server is to be set. Raises `CommandError` for a token that can't be read."""
    server = settings.server
    listen = server.listen
    if listen.startswith("unix:") and not listen.startswith("unix:/"):
        listen = f"unix:{directory / listen.removeprefix('unix:')}"
    return replace(options_of(listen, tokens=_tokens(server, directory)), lifecycle=settings.lifecycle)


def listen_failure(error: ListenError) -> CommandError:
    """What to do about an address that is taken."""
    fix = "stop the other one, or choose another address with --listen or server.listen (port 0: any free port)"
    return CommandError(str(error), code=exits.CANT_CREATE, fix=fix)


def flag_overrides(given: Sequence[tuple[tuple[str, ...], str | None]]) -> tuple[Override, ...]:
    """The settings that flags changed; a flag that was not given is None."""
    return tuple(Override(path, value, f"--{path[-1].replace('_', '-')}") for path, value in given if value is not None)


def _tokens(server: ServerSettings, directory: Path) -> tuple[AccessToken, ...]:
    tokens = []
    for index, token in enumerate(server.tokens):
        where = f"server.tokens[{index}]"
        if token.token_file is not None:
            secret = (directory / token.token_file).read_text().strip()
        else:
            secret = os.environ.get(token.token_env or "", "")
        if len(secret) < 16:
            told = f"{where}: the token of {token.token_file or token.token_env} must have 16 characters or more"
            fix = "make one with `python3 -c 'import secrets; print(secrets.token_urlsafe())'`"
            raise CommandError(told, code=exits.BAD_CONFIG, fix=fix)
        tokens.append(AccessToken(Role[token.role.upper()], secret))
    return tuple(tokens)
