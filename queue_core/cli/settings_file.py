"""Read the queue's half of a settings file, for commands that need no pools."""

import os
from pathlib import Path
from typing import Final

from queue_core.cli import exits
from queue_core.cli.credentials import read_secret
from queue_core.cli.failure import CommandError
from queue_core.config.settings import (
    Override,
    QueueFile,
    absolute_store,
    document_error,
    environment_overrides,
    overlay,
    parse_queue_file,
    refuse_empty,
)
from queue_core.config.store_urls import with_password
from queue_core.config.yaml_document import MAX_TEXT_BYTES, Document, DocumentError, read_document

DEFAULT_FILE: Final = "towline.yaml"
FLEET_KEYS: Final = ("pools", "supervisor")
"""Keys of the fleet's half, which are ignored here."""


def read_text(path: Path) -> str:
    """Return the text of a settings file. Raises `CommandError` when it is missing or not UTF-8."""
    if path.is_dir():
        inside = path / DEFAULT_FILE
        meant = f"did you mean {inside}?" if inside.is_file() else f"name the file in it, such as {inside}"
        raise CommandError(f"the settings file is a folder: {path}", code=exits.NO_INPUT, fix=meant)
    if not path.is_file():
        raise CommandError(
            f"no such settings file: {path}",
            code=exits.NO_INPUT,
            where=str(path.parent.absolute()),
            fix="name yours with -f; or `towline init` writes one, with comments",
        )
    raw = path.read_bytes()[: MAX_TEXT_BYTES + 1]
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8"
        raise CommandError(message, code=exits.BAD_CONFIG, fix="save the file as UTF-8") from None


def load_queue_file(path: Path, *, flags: tuple[Override, ...] = ()) -> tuple[QueueFile, Path]:
    """Return the queue's half of a file, changed by the environment and by flags; and the file's folder.

    Raises `CommandError` with all errors in it.
    """
    overrides = [*environment_overrides(os.environ), *flags]
    try:
        document = read_document(read_text(path), name=str(path), repeats="kept")
        refuse_empty(document)
        settings, messages = parse_queue_file(overlay(document.data, overrides), other_keys=FLEET_KEYS)
        if settings is None or messages or document.repeats:
            raise document_error(document, messages, overrides)
    except DocumentError as error:
        raise settings_failure(error, path) from None
    return settings, path.parent.absolute()


def settings_or_default(file: Path | None, *, flags: tuple[Override, ...]) -> tuple[QueueFile, Path]:
    """Return the queue's half of `file` or ./towline.yaml; without a file, settings with one queue, `default`.

    Raises `CommandError` with all errors in it.
    """
    path = file or Path(DEFAULT_FILE)
    if file is not None or path.is_file():
        return load_queue_file(path, flags=flags)
    overrides = [*environment_overrides(os.environ), *flags]
    document = Document("settings")
    settings, messages = parse_queue_file(overlay({"queues": {"default": {}}}, overrides))
    if settings is None or messages:
        raise CommandError(document_error(document, messages, overrides).lines, code=exits.BAD_CONFIG)
    return settings, Path.cwd()


def store_url(settings: QueueFile, directory: Path) -> str:
    """Return the store's URL, with an absolute path and with the password.

    Raises `CommandError` for a password that is missing.
    """
    store = settings.store
    url = absolute_store(store.url, directory)
    if store.password_env is not None:
        password = os.environ.get(store.password_env, "")
        place = f"store.password_env: {store.password_env}"
    elif store.password_file is not None:
        path = directory / store.password_file
        password = read_secret(path) if path.is_file() else ""
        place = f"store.password_file: {path}"
    else:
        return url
    if not password:
        message = f"{place} {'is not set' if store.password_env else 'is missing or empty'}"
        raise CommandError(message, code=exits.BAD_CONFIG, fix="put the store's password there")
    return with_password(url, password)


def settings_failure(error: DocumentError, path: Path) -> CommandError:
    """Return the failure of a command whose settings file is wrong."""
    count = len(error.lines)
    fix = f"fix {'it' if count == 1 else f'all {count}'}, then run `towline check {path}`"
    return CommandError(error.lines, code=exits.BAD_CONFIG, fix=fix)
