"""Find the queues that an app adds to: by its URL or settings file, and the environment, as commands find theirs."""

import os
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from queue_core.config.store_urls import SCHEMES, masked, scheme_of, with_password
from queue_core.errors import AppError, InvalidSettingError
from queue_core.process.own_addresses import is_of_this_machine
from queue_core.task import QueueSpec
from queue_core.worker.settings import DEFAULT_URL

if TYPE_CHECKING:
    from queue_core.config.settings import QueueFile

DEFAULT_FILE: Final = "towline.yaml"
LIKE_A_SETTING: Final = 0.8
"""Least likeness of a key to a setting's name that makes it a misspelt one: `supervisor` and `server` have less."""
_SERVER_SCHEMES: Final = ("http", "https", "unix")


@dataclass(frozen=True, slots=True)
class AppTarget:
    """A server or a store. `url` may contain a password, and is never shown."""

    url: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    durability: Literal["strict", "relaxed"] = "strict"
    specs: tuple[QueueSpec, ...] = ()


def checked_place(place: str | Path) -> str | Path:
    """Return a URL as it is, a settings file as an absolute path. Raises `AppError` for any other text."""
    if isinstance(place, str):
        if scheme_of(place) in (*SCHEMES, *_SERVER_SCHEMES):
            return place
        if not place.endswith((".yaml", ".yml")):
            raise AppError(
                f"neither a URL nor a settings file: {masked(place)!r}; write App('towline.yaml'), "
                "App('sqlite:///towline.db') or App('http://127.0.0.1:7878')"
            )
    return Path(place).absolute()


def find_app_target(place: str | Path | None) -> AppTarget:
    """Return the target of an app: its URL; else TOWLINE_URL, TOWLINE_STORE, its file, ./towline.yaml, a local server.

    Raises `InvalidSettingError` when there is none, or for a file that can't be used.
    """
    if isinstance(place, str):
        return AppTarget(place, _token(), _durability())
    url = os.environ.get("TOWLINE_URL") or _secret("TOWLINE_URL_FILE")
    if url:
        return AppTarget(url, _token(), _durability())
    if store := os.environ.get("TOWLINE_STORE"):
        return AppTarget(store, durability=_durability())
    path = place or (Path(DEFAULT_FILE).absolute() if Path(DEFAULT_FILE).is_file() else None)
    from queue_core.client.http.probe import is_listening, is_of_another_store

    if path is None:
        if is_listening(DEFAULT_URL):
            return AppTarget(DEFAULT_URL, _token())
        raise InvalidSettingError(
            f"no queues found: no {DEFAULT_FILE} in {Path.cwd()}, and no server answers at {DEFAULT_URL}; "
            "name a settings file or a URL by App(...), or set TOWLINE_URL"
        )
    settings = _read(path)
    server = settings.server.url(path.parent)
    if is_listening(server):
        store = _absolute_store(settings, path)
        if is_of_another_store(server, store=store, folder=path.parent):
            raise InvalidSettingError(
                f"{path}: another project's server answers at server.listen ({server}): its store is not "
                f"{masked(store)}; give this file an address of its own, or stop that server"
            )
        token = _token()
        if token is not None and not is_of_this_machine(server):
            raise InvalidSettingError(
                f"{path}: TOWLINE_TOKEN is not sent to {server}, as that is no address of this machine; if you trust "
                f"that server, name it yourself: App({server!r}), or TOWLINE_URL={server}"
            )
        return AppTarget(server, token)
    if settings.store.url == "memory:":
        raise InvalidSettingError(f"the tasks of a memory: store live in its server, which does not answer at {server}")
    return _store_of(settings, path)


def store_target(place: str | Path | None) -> AppTarget | None:
    """Return the store of the settings file or of TOWLINE_STORE; None where only a server is known."""
    if isinstance(place, str):
        return None
    if store := os.environ.get("TOWLINE_STORE"):
        return AppTarget(store, durability=_durability())
    path = place or Path(DEFAULT_FILE).absolute()
    if not path.is_file():
        return None
    settings = _read(path)
    return None if settings.store.url == "memory:" else _store_of(settings, path)


def _store_of(settings: "QueueFile", path: Path) -> AppTarget:
    store = settings.store
    url = _absolute_store(settings, path)
    if store.password_env is not None or store.password_file is not None:
        password = _password(store.password_env, store.password_file, path)
        url = with_password(url, password)
    return AppTarget(url, durability=settings.durability, specs=tuple(settings.specs()))


def _absolute_store(settings: "QueueFile", path: Path) -> str:
    from queue_core.config.settings import absolute_store

    return absolute_store(settings.store.url, path.parent)


def _password(variable: str | None, file: str | None, path: Path) -> str:
    if variable is not None:
        password, origin = os.environ.get(variable, ""), f"variable {variable}"
    else:
        place = path.parent / (file or "")
        password, origin = _text(place).rstrip("\r\n") if place.is_file() else "", f"file {place}"
    if not password:
        raise InvalidSettingError(f"{path}: store: its password's {origin} is missing or empty")
    return password


def _read(path: Path) -> "QueueFile":
    """Return the queue's half of a settings file; what else is in it, `towline check` looks at.

    A misspelt setting is an error all the same: `queuees:` would create the queues with default settings.
    """
    from queue_core.config.settings import (
        QueueFile,
        document_error,
        environment_overrides,
        overlay,
        parse_queue_file,
        refuse_empty,
    )
    from queue_core.config.yaml_document import DocumentError, read_document

    if not path.is_file():
        raise InvalidSettingError(f"no such settings file: {path}; `towline init` writes one")
    overrides = environment_overrides(os.environ)
    try:
        document = read_document(_text(path), name=str(path), repeats="kept")
        refuse_empty(document)
        data = overlay(document.data, overrides)
        mine = QueueFile.model_fields
        keys = list(data) if isinstance(data, dict) else []
        others = [key for key in keys if not get_close_matches(str(key), mine, cutoff=LIKE_A_SETTING)]
        settings, problems = parse_queue_file(data, other_keys=others)
        if settings is None or problems:
            raise document_error(document, problems, overrides)
    except DocumentError as error:
        raise InvalidSettingError("; ".join(error.lines) + f"; `towline check {path}` shows all of it") from None
    return settings


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError(f"{path} can't be read: {type(error).__name__}") from None


def _secret(variable: str) -> str | None:
    """Return the content of the file that a variable names."""
    path = os.environ.get(variable)
    return _text(Path(path)).strip() or None if path else None


def _token() -> str | None:
    return os.environ.get("TOWLINE_TOKEN") or _secret("TOWLINE_TOKEN_FILE")


def _durability() -> Literal["strict", "relaxed"]:
    match os.environ.get("TOWLINE_DURABILITY") or "strict":
        case "strict":
            return "strict"
        case "relaxed":
            return "relaxed"
        case other:
            raise InvalidSettingError(f"TOWLINE_DURABILITY must be strict or relaxed: {other!r}")
