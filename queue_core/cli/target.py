"""Find the queues a command works on, a server's or a store's: by flags, environment, settings file, defaults."""

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypedDict, Unpack

import click
from click.core import ParameterSource

from queue_core.cli import exits
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError, failure_of
from queue_core.client.http.probe import is_listening, is_of_another_store
from queue_core.client.queue import Queue, Queues
from queue_core.config.celery_names import shown_queue, store_names
from queue_core.config.store_urls import SCHEMES, masked, scheme_of, with_absolute_sockets
from queue_core.errors import InvalidQueueNameError, QueueError, QueueMovedError, UnknownQueueError
from queue_core.limits import check_queue_name
from queue_core.process.own_addresses import is_of_this_machine
from queue_core.task import QueueSpec
from queue_core.worker.functions.target import DEFAULT_FILE
from queue_core.worker.settings import DEFAULT_URL

SERVER_SCHEMES: Final = ("http", "https", "unix")
MAX_SHOWN_QUEUES: Final = 10
FREE_PORT: Final = 7890
"""An example of a port that Towline's own defaults leave free."""
_EXAMPLES: Final = {"server": "http://127.0.0.1:7878", "store": "postgresql://user@host/database"}
_BEGINNINGS: Final = {"server": "http://, https:// or unix:", "store": "sqlite:///, postgresql:// or redis://"}


@dataclass(frozen=True, slots=True)
class Target:
    """The server or store of a command. `origin` says what named it; `specs` are the queues to create in a store,
    `file` is the settings file, where that named it.

    `url` may contain a password: print `shown`.
    """

    url: str = field(repr=False)
    origin: str
    token: str | None = field(default=None, repr=False)
    durability: Literal["strict", "relaxed"] = "strict"
    specs: tuple[QueueSpec, ...] = ()
    file: Path | None = None

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return masked(self.url)

    @property
    def is_server(self) -> bool:
        """Return whether the command calls a server; otherwise this process opens the store."""
        return self.url.startswith(("http://", "https://", "unix:"))


class TargetOptions(TypedDict):
    """The options of `target_options`."""

    url: str | None
    store: str | None
    token_file: Path | None
    file: Path | None


@contextmanager
def opened(*, makes_queues: bool = True, **where: Unpack[TargetOptions]) -> Iterator[tuple[Queues, Target]]:
    """Open the target of the options; yield its queues. Errors are raised as `CommandError` with their place.

    makes_queues: create the queues of the settings file in a store that this process opens.
    """
    from queue_core.client.connect import open_queues
    from queue_core.client.http.caller import Retries

    target = find_target(**where)
    try:
        retries = Retries(timeouts=1)  # a person waits at a terminal
        queues = open_queues(target.url, token=target.token, durability=target.durability, retries=retries)
        try:
            _create_missing(queues, target.specs if makes_queues else ())
            yield queues, target
        finally:
            queues.close()
    except QueueError as error:
        raise _with_place(error, target) from error


@contextmanager
def opened_queue(name: str, **where: Unpack[TargetOptions]) -> Iterator[Queue]:
    """Open one queue of the target of the options, by its name or by Celery's. Raises `InvalidQueueNameError`."""
    with opened_beside(name, **where) as (_, queue):
        yield queue


@contextmanager
def opened_beside(name: str, **where: Unpack[TargetOptions]) -> Iterator[tuple[Queues, Queue]]:
    """Open one queue as `opened_queue` does, together with all queues of the target."""
    with opened(**where) as (queues, target):
        try:
            name = queue_meant(queues, name)
        except InvalidQueueNameError as error:
            labels = [shown_queue(spec.name, label=spec.label) for spec in queues.queues()]
            if difflib.get_close_matches(name, labels, n=1):
                raise unknown_queue(name, labels, target) from error
            raise
        try:
            yield queues, queues.queue(name)
        except QueueMovedError:
            raise
        except UnknownQueueError as error:
            known: list[str] = []
            with suppress(QueueError):  # the token may not list them
                known = [spec.name for spec in queues.queues()]
            if name in known:
                raise
            raise unknown_queue(name, known, target) from error


def queue_meant(queues: Queues, text: str) -> str:
    """Return the name in the store of the queue that a text means: its own name, Celery's, or NAMESPACE/QUEUE.

    Raises `InvalidQueueNameError` for what can't be a name and is none of Celery's queues here.
    """
    named = store_names(text)
    if named == [text]:
        return text
    known: set[str] | None = None
    with suppress(QueueError):  # the token may not list them
        known = {spec.name for spec in queues.queues()}
    for name in named:
        if known is not None and name in known:
            return name
    if known is not None:
        check_queue_name(text)
    return text if _is_name(text) else named[1]


def _is_name(text: str) -> bool:
    with suppress(InvalidQueueNameError):
        check_queue_name(text)
        return True
    return False


def unknown_queue(name: str, known: Sequence[str], target: Target) -> CommandError:
    """Return the failure of a command whose queue does not exist."""
    from queue_core.config.messages import did_you_mean  # imports pydantic, which a worker's start does not need

    shown = ", ".join(map(shown_queue, known[:MAX_SHOWN_QUEUES])) + (", ..." if len(known) > MAX_SHOWN_QUEUES else "")
    return CommandError(
        f"there is no queue '{name}'{did_you_mean(name, known)}",
        code=exits.NO_INPUT,
        where=f"{target.shown} (from {target.origin})",
        fix=f"these are there: {shown}" if known else "`towline queues` lists all queues",
    )


def find_target(*, url: str | None, store: str | None, token_file: Path | None, file: Path | None) -> Target:
    """Return the target of the options. Raises `CommandError` where there is none."""
    if url and store:
        raise CommandError("--url and --store: give one of them", code=exits.USAGE)
    token = bearer_token(token_file)
    if url:
        return _server(url, "--url", token)
    if store:
        return _store(store, "--store")
    if file is not None and _is_typed("file"):  # else a purge of that file's queues would go to another server
        return _from_file(file, token)
    if os.environ.get("TOWLINE_URL"):
        return _server(os.environ["TOWLINE_URL"], "TOWLINE_URL", token)
    if os.environ.get("TOWLINE_STORE"):
        return _store(os.environ["TOWLINE_STORE"], "TOWLINE_STORE")
    path = file or (Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None)
    if path is not None:
        return _from_file(path, token)
    if is_listening(DEFAULT_URL):
        return Target(DEFAULT_URL, "default", token)
    raise CommandError(
        f"no queues found: no {DEFAULT_FILE} in {Path.cwd()}, and no server answers at {DEFAULT_URL}",
        code=exits.UNAVAILABLE,
        fix="`towline init` writes a settings file; or give --url, --store or -f",
    )


def find_server(*, url: str | None, store: str | None, token_file: Path | None, file: Path | None) -> Target:
    """Return the target of a command that asks a server: see `find_target`.

    Where TOWLINE_STORE names the store of a settings file, its server is the one at the file's address.
    """
    target = find_target(url=url, store=store, token_file=token_file, file=file)
    path = file or Path(DEFAULT_FILE)
    if target.origin != "TOWLINE_STORE" or not path.is_file():
        return target
    there = _from_file(path, bearer_token(token_file))
    return there if there.is_server else target


def _is_typed(option: str) -> bool:
    """Return whether the command line itself has this option, rather than the environment."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is ParameterSource.COMMANDLINE


def _from_file(path: Path, token: str | None) -> Target:
    from queue_core.cli.settings_file import load_queue_file, store_url  # pydantic is slow to import
    from queue_core.config.settings import absolute_store

    settings, directory = load_queue_file(path)
    server_url = settings.server.url(directory)
    if is_listening(server_url):
        store = absolute_store(settings.store.url, directory)
        if is_of_another_store(server_url, store=store, folder=directory):
            raise CommandError(
                f"another project's server answers at server.listen: its store is not {masked(store)}",
                code=exits.BAD_CONFIG,
                where=f"{server_url} (from {path})",
                fix=f"give this file an address of its own (server: {{listen: 127.0.0.1:{FREE_PORT}}}), or stop that "
                "server; --url calls it all the same",
            )
        check_token_stays(server_url, origin=str(path), token=token)
        return Target(server_url, f"{path} (server.listen)", token, file=path)
    if settings.store.url == "memory:":
        raise CommandError(
            "the tasks of a memory: store live in its server, which does not answer",
            code=exits.UNAVAILABLE,
            where=server_url,
            fix="start it with `towline up`",
        )
    url = store_url(settings, directory)
    return Target(url, f"{path} (store)", durability=settings.durability, specs=tuple(settings.specs()), file=path)


def check_token_stays(url: str, *, origin: str, token: str | None) -> None:
    """Raise `CommandError` where a token would go to another machine whose address nobody typed.

    Args:
        origin: the file that names the address: a folder of somebody else's may have one.
    """
    if token is None or is_of_this_machine(url):
        return
    raise CommandError(
        f"the token is not sent to {masked(url)}: {origin} names it, and it is no address of this machine",
        code=exits.BAD_CONFIG,
        where=origin,
        fix=f"if you trust that server, name it yourself: --url {masked(url)}, or TOWLINE_URL={masked(url)}",
    )


def _server(url: str, origin: str, token: str | None) -> Target:
    check_scheme(url, origin=origin, meant="server")
    if scheme_of(url) in SERVER_SCHEMES:
        url = with_absolute_sockets(url, Path.cwd())
    return Target(url, origin, token, _durability())


def check_scheme(url: str, *, origin: str, meant: Literal["server", "store"]) -> None:
    """Raise `CommandError` for text that is no URL of a server or a store, with the nearest that is one."""
    scheme = scheme_of(url)
    if scheme in (*SERVER_SCHEMES, *SCHEMES):
        return
    shown = masked(url)
    message = f"'{shown}' is no URL of a {meant}: it must begin with {_BEGINNINGS[meant]}"
    nearest = _nearest(shown, meant)
    fix = f"did you mean {nearest}?" if nearest else f"for example {_EXAMPLES[meant]}"
    raise CommandError(message, code=exits.BAD_CONFIG, where=origin, fix=fix)


def _nearest(text: str, meant: Literal["server", "store"]) -> str:
    """Return the URL that is most like `text`; "" where none is."""
    scheme, has_scheme, rest = text.partition("://")
    if has_scheme:
        schemes = SERVER_SCHEMES if meant == "server" else SCHEMES
        close = difflib.get_close_matches(scheme, schemes, n=1, cutoff=0.5)
        return f"{close[0]}://{rest}" if close else ""
    if meant == "store" or text.endswith((".db", ".sqlite")):
        return f"sqlite:///{text}"
    if "/" in text and Path(text).is_socket():
        return f"unix://{Path(text).absolute()}"
    host, _, port = text.partition(":")
    return f"http://{host or '127.0.0.1'}:{port or '7878'}"


def _store(url: str, origin: str) -> Target:
    check_scheme(url, origin=origin, meant="store")
    if url == "memory:":
        raise CommandError("a memory: store would be empty: it lives in one process", code=exits.USAGE, where=origin)
    return Target(url, origin, durability=_durability())


def _durability() -> Literal["strict", "relaxed"]:
    """Return the durability of a store that no settings file describes."""
    match os.environ.get("TOWLINE_DURABILITY") or "strict":
        case "strict":
            return "strict"
        case "relaxed":
            return "relaxed"
        case other:
            raise CommandError(
                f"must be strict or relaxed: {other!r}", code=exits.BAD_CONFIG, where="TOWLINE_DURABILITY"
            )


def _create_missing(queues: Queues, specs: tuple[QueueSpec, ...]) -> None:
    """Create the queues that the store does not have yet; existing ones keep their settings."""
    if specs:
        known = {spec.name for spec in queues.queues()}
        for spec in specs:
            if spec.name not in known:
                queues.put_queue(spec)


def _with_place(error: QueueError, target: Target) -> CommandError:
    failure = failure_of(error) or CommandError(str(error), code=exits.UNAVAILABLE)
    if not failure.where:
        failure.where = f"{target.shown} (from {target.origin})"
    return failure
