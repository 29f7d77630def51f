"""The common part of `serve` and `up`: open the store, set its queues, open the lifecycle log, set up the server."""

import errno
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from queue_core.cli import exits
from queue_core.cli.credentials import read_secret
from queue_core.cli.failure import CommandError
from queue_core.cli.settings_file import store_url
from queue_core.clock import SystemClock
from queue_core.config.listen import GrpcSettings, ProxyLoginSettings, TlsSettings
from queue_core.config.served_store import here, served_store
from queue_core.config.settings import Override, QueueFile, ServerSettings, absolute_store
from queue_core.config.store_urls import is_shared, masked
from queue_core.errors import ListenError, StoreUnavailableError
from queue_core.events import EventLog
from queue_core.log import get_logger
from queue_core.process.holders import ResourceHolder, holder_of_port, holder_of_socket
from queue_core.process.logs import LifecycleFile
from queue_core.server.base.options import (
    AccessToken,
    GrpcOptions,
    GrpcTls,
    HttpTls,
    ProxyLogin,
    ServeOptions,
    options_of,
)
from queue_core.server.http.tls import tls_context
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role

MAX_START_SECONDS: Final = 60.0
"""Seconds a starting server waits for its store: both may have been started at the same time."""
WAIT_LOG_SECONDS: Final = 5.0
"""Seconds between two messages while it waits."""
STORE_AWAITED: Final = "store.awaited"
"""The store does not answer yet: the start waits for it."""
PAUSE_SECONDS: Final = 0.5
"""Seconds between two attempts."""

Own: TypeAlias = Callable[[ResourceHolder], str]


@contextmanager
def prepared_store(settings: QueueFile, directory: Path, *, patience_seconds: float | None = None) -> Iterator[Store]:
    """Open the store of the settings, and create or update its queues.

    Waits for a store on a network that does not answer, and logs that. Raises `CommandError` after
    `patience_seconds` (default: `MAX_START_SECONDS`).
    """
    patience_seconds = MAX_START_SECONDS if patience_seconds is None else patience_seconds
    store = _open_when_available(settings, store_url(settings, directory), patience_seconds)
    try:
        yield store
    finally:
        store.close()


def _open_when_available(settings: QueueFile, url: str, patience_seconds: float) -> Store:
    clock = SystemClock()
    began_at = clock.monotonic()
    next_log_at = began_at
    while True:
        try:
            return _open_once(settings, url)
        except StoreUnavailableError as error:
            now = clock.monotonic()
            waited_seconds = now - began_at
            if not is_shared(url) or waited_seconds >= patience_seconds:
                message = str(error) if not is_shared(url) else f"{error}; tried for {waited_seconds:.0f} s"
                fix = "start it, or correct `store:` (or --store, TOWLINE_STORE); run `towline doctor`"
                raise CommandError(message, code=exits.UNAVAILABLE, where=f"{masked(url)} (store)", fix=fix) from error
            if now >= next_log_at:
                next_log_at = now + WAIT_LOG_SECONDS
                left = patience_seconds - waited_seconds
                sentence = f"waiting up to {left:.0f} s for {masked(url)}: {error}"
                get_logger().warning(STORE_AWAITED, store=masked(url), sentence=sentence)
            time.sleep(PAUSE_SECONDS)


def _open_once(settings: QueueFile, url: str) -> Store:
    store = open_store(url, durability=settings.durability)
    try:
        service = QueueService(store)
        for spec in settings.specs():
            service.run(lambda unit, spec=spec: unit.put_queue(spec))  # type: ignore[misc]
        limit_bytes = settings.total_storage_limit
        if limit_bytes is not None:
            service.run(lambda unit: unit.set_storage_limit(limit_bytes))
    except BaseException:
        store.close()
        raise
    return store


@contextmanager
def lifecycle_log(settings: QueueFile, directory: Path) -> Iterator[EventLog | None]:
    """Open the lifecycle log of the settings; None if they have none."""
    if settings.log is None or settings.lifecycle == "off":
        yield None
        return
    log = LifecycleFile(directory / settings.log, lifecycle=settings.lifecycle)
    try:
        yield log
    finally:
        log.close()


def serve_options(settings: QueueFile, directory: Path, *, listen: str | None = None) -> ServeOptions:
    """Return the server's options, or those of another listener with the same tokens.

    Raises `CommandError` for a token that can't be read.
    """
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
        console_writes=settings.console.writes,
        console_payloads=settings.console.viewers_see_payloads,
        console_redact=settings.console.redact,
        allowed_hosts=server.hosts,
        tls=_tls(server.tls, directory),
        proxy=_proxy(server.auth),
        serves=served_store(absolute_store(settings.store.url, directory), directory, host=here()).to_text(),
    )


def listen_failure(error: ListenError, options: ServeOptions, *, own: Own = lambda _holder: "") -> CommandError:
    """Return the failure of a server that can't listen, with the process that holds its address where that is known.

    `own`: describes a holder that is the caller's own, else "".
    """
    fix = "stop the other program, or choose another address with --listen or server.listen (port 0: any free port)"
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return CommandError(str(error), code=exits.CANT_CREATE, fix=fix)
    path = options.socket_path
    holder = holder_of_socket(path) if path is not None else holder_of_port(options.host, options.port)
    who = own(holder)
    where = str(path) if path is not None else f"{options.host}:{options.port}"
    if not (who or holder.text):
        return CommandError(str(error), code=exits.CANT_CREATE, fix=fix)
    fix = own_fix(holder) if who else fix
    return CommandError(
        f"can't listen on {where}: it is taken by {who or holder.text}", code=exits.CANT_CREATE, fix=fix
    )


def console_sentence(url: str) -> str:
    """Return where the console of a server at a URL is, as a sentence; browsers reach no Unix socket."""
    if url.startswith("http"):
        return f"The console is at {url}/console/."
    return "`towline console` shows it in a browser."


def own_fix(holder: ResourceHolder) -> str:
    """Return what to do about a supervisor of the same folder."""
    return f"`towline top` shows what it does; Ctrl-C in its terminal, or `kill {holder.pid}`, ends it"


def flag_overrides(given: Sequence[tuple[tuple[str, ...], str | None]]) -> tuple[Override, ...]:
    """Return the settings that flags override; a flag that was not given is None."""
    return tuple(Override(path, value, f"--{path[-1].replace('_', '-')}") for path, value in given if value is not None)


def _tls(settings: TlsSettings | None, directory: Path) -> HttpTls | None:
    """Return the files of a certificate. Raises `CommandError` for such as can't be used."""
    if settings is None:
        return None
    found = HttpTls(directory / settings.cert, directory / settings.key)
    _check_certificate(found, where="server.tls")
    return found


def _check_certificate(files: HttpTls, *, where: str) -> None:
    """Raise `CommandError` for files that are no certificate and its key."""
    try:
        for path in (files.cert, files.key):
            path.read_bytes()
        tls_context(files)
    except ssl.SSLError as error:
        message = f"{where}: {files.cert} and {files.key} are no certificate and its key: {error.reason or error}"
        fix = "name the PEM files of the certificate with its chain, and of its key without a passphrase"
        raise CommandError(message, code=exits.BAD_CONFIG, fix=fix) from None
    except OSError as error:
        message = f"{where}: {error.filename}: {error.strerror}"
        raise CommandError(
            message, code=exits.NO_INPUT, fix="name the PEM files of the certificate and its key"
        ) from None


def _proxy(settings: ProxyLoginSettings | None) -> ProxyLogin | None:
    if settings is None:
        return None
    roles = {name: Role[role.upper()] for name, role in settings.roles.items()}
    return ProxyLogin(settings.header.lower(), settings.trust, Role[settings.role.upper()], roles)


def _grpc(settings: GrpcSettings | None, directory: Path) -> GrpcOptions | None:
    if settings is None:
        return None
    if settings.certificate is None or settings.key is None:
        return GrpcOptions(settings.host, settings.port)
    files = HttpTls(directory / settings.certificate, directory / settings.key)
    _check_certificate(files, where="server.grpc")
    return GrpcOptions(settings.host, settings.port, GrpcTls(files.cert.read_bytes(), files.key.read_bytes()))


def _tokens(server: ServerSettings, directory: Path) -> tuple[AccessToken, ...]:
    tokens = []
    for index, token in enumerate(server.tokens):
        where = f"server.tokens[{index}]"
        if token.token_file is not None:
            secret = read_secret(directory / token.token_file).strip()
        else:
            secret = os.environ.get(token.token_env or "", "")
        if len(secret) < 16:
            message = f"{where}: the token of {token.token_file or token.token_env} must have 16 characters or more"
            fix = "make one with `python3 -c 'import secrets; print(secrets.token_urlsafe())'`"
            raise CommandError(message, code=exits.BAD_CONFIG, fix=fix)
        tokens.append(AccessToken(Role[token.role.upper()], secret, token.email, token.queues))
    return tuple(tokens)
