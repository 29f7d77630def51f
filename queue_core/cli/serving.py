"""What `serve` and `up` have in common: the store opened, its queues set, the lifecycle log, the server's options."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from queue_core.cli import exits
from queue_core.cli.credentials import secret_in
from queue_core.cli.failure import CommandError
from queue_core.cli.settings_file import store_url
from queue_core.clock import SystemClock
from queue_core.config.listen import GrpcSettings
from queue_core.config.settings import Override, QueueFile, ServerSettings
from queue_core.config.store_urls import is_shared, masked
from queue_core.errors import ListenError, StoreUnavailableError
from queue_core.events import EventLog
from queue_core.process.logs import LifecycleFile
from queue_core.server.options import AccessToken, GrpcOptions, GrpcTls, Role, ServeOptions, options_of
from queue_core.service import QueueService
from queue_core.store import Store
from queue_core.stores import open_store

START_SECONDS: Final = 60.0
"""How long a store may be away when a server starts: both may have been started at the same time."""
TOLD_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.5


@contextmanager
def opened_store(settings: QueueFile, directory: Path, *, patience_seconds: float | None = None) -> Iterator[Store]:
    """The store of the settings with every queue set as they say; closed at the end.

    A store across a network that does not answer is waited for, which is told on stderr. Raises `CommandError` when
    that takes too long.
    """
    patience_seconds = START_SECONDS if patience_seconds is None else patience_seconds
    store = _opened(settings, store_url(settings, directory), patience_seconds)
    try:
        yield store
    finally:
        store.close()


def _opened(settings: QueueFile, url: str, patience_seconds: float) -> Store:
    clock = SystemClock()
    began_at = clock.monotonic()
    tell_at = began_at
    while True:
        try:
            return _open_once(settings, url)
        except StoreUnavailableError as error:
            now = clock.monotonic()
            waited_seconds = now - began_at
            if not is_shared(url) or waited_seconds >= patience_seconds:
                told = str(error) if not is_shared(url) else f"{error}; tried for {waited_seconds:.0f} s"
                fix = "start it, or mend `store:` (or --store, TOWLINE_STORE); `towline doctor` tells more"
                raise CommandError(told, code=exits.UNAVAILABLE, where=f"{masked(url)} (store)", fix=fix) from error
            if now >= tell_at:
                tell_at = now + TOLD_SECONDS
                left = patience_seconds - waited_seconds
                click.echo(f"waiting up to {left:.0f} s for {masked(url)}: {error}", err=True)
            time.sleep(PAUSE_SECONDS)


def _open_once(settings: QueueFile, url: str) -> Store:
    store = open_store(url, durability=settings.durability)
    try:
        service = QueueService(store)
        for spec in settings.specs():
            service.run(lambda turn, spec=spec: turn.put_queue(spec))  # type: ignore[misc]
        limit_bytes = settings.total_storage_limit
        if limit_bytes is not None:
            service.run(lambda turn: turn.set_storage_limit(limit_bytes))
    except BaseException:
        store.close()
        raise
    return store


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


def serve_options(settings: QueueFile, directory: Path, *, listen: str | None = None) -> ServeOptions:
    """How the server is to be set, or another listener with its tokens. Raises `CommandError` for a token that can't
    be read."""
    server = settings.server
    listen = listen or server.listen
    if listen.startswith("unix:") and not listen.startswith("unix:/"):
        listen = f"unix:{directory / listen.removeprefix('unix:')}"
    options = options_of(listen, tokens=_tokens(server, directory))
    return replace(
        options,
        lifecycle=settings.lifecycle,
        grpc=_grpc(server.grpc, directory),
        queues=tuple(settings.specs()),
        storage_limit_bytes=settings.total_storage_limit,
    )


def listen_failure(error: ListenError) -> CommandError:
    """What to do about an address that is taken."""
    fix = "stop the other one, or choose another address with --listen or server.listen (port 0: any free port)"
    return CommandError(str(error), code=exits.CANT_CREATE, fix=fix)


def flag_overrides(given: Sequence[tuple[tuple[str, ...], str | None]]) -> tuple[Override, ...]:
    """The settings that flags changed; a flag that was not given is None."""
    return tuple(Override(path, value, f"--{path[-1].replace('_', '-')}") for path, value in given if value is not None)


def _grpc(settings: GrpcSettings | None, directory: Path) -> GrpcOptions | None:
    if settings is None:
        return None
    if settings.certificate is None or settings.key is None:
        return GrpcOptions(settings.host, settings.port)
    try:
        certificates = (directory / settings.certificate).read_bytes()
        key = (directory / settings.key).read_bytes()
    except OSError as error:
        told = f"server.grpc: {error.filename}: {error.strerror}"
        raise CommandError(told, code=exits.NO_INPUT, fix="name the PEM files of the certificate and its key") from None
    return GrpcOptions(settings.host, settings.port, GrpcTls(certificates, key))


def _tokens(server: ServerSettings, directory: Path) -> tuple[AccessToken, ...]:
    tokens = []
    for index, token in enumerate(server.tokens):
        where = f"server.tokens[{index}]"
        if token.token_file is not None:
            secret = secret_in(directory / token.token_file).strip()
        else:
            secret = os.environ.get(token.token_env or "", "")
        if len(secret) < 16:
            told = f"{where}: the token of {token.token_file or token.token_env} must have 16 characters or more"
            fix = "make one with `python3 -c 'import secrets; print(secrets.token_urlsafe())'`"
            raise CommandError(told, code=exits.BAD_CONFIG, fix=fix)
        tokens.append(AccessToken(Role[token.role.upper()], secret, token.email))
    return tuple(tokens)
