"""Secrets that commands are given by the environment, or in files that it or the settings name."""

import os
from pathlib import Path

from queue_core.cli import exits
from queue_core.cli.failure import CommandError


def bearer_token(path: Path | None = None) -> str | None:
    """What to present to a server: from `path`, else TOWLINE_TOKEN, else the file that TOWLINE_TOKEN_FILE names.

    Raises `OSError` for a file that can't be read, and `CommandError` for one without a token.
    """
    if path is None and os.environ.get("TOWLINE_TOKEN"):
        return os.environ["TOWLINE_TOKEN"]
    named = path or os.environ.get("TOWLINE_TOKEN_FILE")
    if not named:
        return None
    token = secret_in(Path(named)).strip()
    if not token:
        raise CommandError("holds no token", code=exits.BAD_CONFIG, where=str(named), fix="write the token there")
    return token


def secret_in(path: Path) -> str:
    """Return the token or password that a file holds, without the line's end.

    Raises `OSError` for a file that can't be read, and `CommandError` for one that holds no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        told = "is not a text in UTF-8, as a token or a password is"
        raise CommandError(told, code=exits.BAD_CONFIG, where=str(path), fix="name the file that holds it") from None
