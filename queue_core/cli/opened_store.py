"""Open the store of a command directly, never through a server: for operations that a server does not offer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import click

from queue_core.cli import exits
from queue_core.cli.failure import CommandError, failure_of
from queue_core.cli.options import Function, file_option, json_option
from queue_core.cli.target import check_scheme
from queue_core.client.connect import SERVER_SCHEMES
from queue_core.errors import QueueError
from queue_core.store import Store
from queue_core.stores import open_store, sqlite_path
from queue_core.worker.functions.target import DEFAULT_FILE

Existing = Literal["existing", "existing or new"]

_FIX: Final = "give --store, or -f with the settings file that has it"


def store_options(function: Function) -> Function:
    """Add the options `--store`, `-f` and `--json`."""
    function = json_option(file_option(function))
    return click.option("--store", help="The store  [default: TOWLINE_STORE, or that of the settings file]")(function)


@contextmanager
def opened_store(url: str, *, origin: str, must: Existing, durability: str = "strict") -> Iterator[Store]:
    """Open a store by its URL; errors are raised as `CommandError` with its place and `origin`, what named it."""
    _check(url, origin=origin, must=must)
    shown = origin
    try:
        store = open_store(url, durability="relaxed" if durability == "relaxed" else "strict")
        try:
            shown = f"{store.url} (from {origin})"
            yield store
        finally:
            store.close()
    except QueueError as error:
        failure = failure_of(error) or CommandError(str(error), code=exits.UNAVAILABLE)
        failure.where = failure.where or shown
        raise failure from error


def store_named(store: str | None, file: Path | None) -> tuple[str, str, str]:
    """Return the URL of the options' store, its durability, and what named it. Raises `CommandError`."""
    if store:
        return store, "strict", "--store"
    if file is None and os.environ.get("TOWLINE_STORE"):
        return os.environ["TOWLINE_STORE"], "strict", "TOWLINE_STORE"
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.is_file():
        raise CommandError(f"no store named, and no {DEFAULT_FILE} in {Path.cwd()}", code=exits.USAGE, fix=_FIX)
    from queue_core.cli.settings_file import load_queue_file, store_url

    settings, directory = load_queue_file(path)
    return store_url(settings, directory), settings.durability, f"{path} (store)"


def _check(url: str, *, origin: str, must: Existing) -> None:
    check_scheme(url, origin=origin, meant="store")
    if url.startswith(SERVER_SCHEMES):
        raise CommandError(
            "a server does not offer held names and moves: this needs the store itself",
            code=exits.USAGE,
            where=origin,
            fix="give the URL of the store that the server uses; the server may keep running",
        )
    if url == "memory:":
        raise CommandError("a memory: store would be empty: it lives in one process", code=exits.USAGE, where=origin)
    if must == "existing" and url.startswith("sqlite:") and not sqlite_path(url).exists():
        raise CommandError(
            f"no such store: {sqlite_path(url)}", code=exits.NO_INPUT, where=origin, fix="check the path"
        )
