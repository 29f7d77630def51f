"""Read the secrets of commands from the environment and from files."""

import os
from pathlib import Path

from queue_core.cli import exits
from queue_core.cli.failure import CommandError


def bearer_token(path: Path | None = None) -> str | None:
    """Return the token for a server: from `path`, else TOWLINE_TOKEN, else the file that TOWLINE_TOKEN_FILE names.

    Raises `OSError` for a file that can't be read, and `CommandError` for one without a token.
    """
    if path is None and os.environ.get("TOWLINE_TOKEN"):
        return os.environ["TOWLINE_TOKEN"]
    named = path or os.environ.get("TOWLINE_TOKEN_FILE")
    if not named:
        return None
    token = read_secret(Path(named)).strip()
    if not token:
        raise CommandError("holds no token", code=exits.BAD_CONFIG, where=str(named), fix="write the token there")
    return token


def read_secret(path: Path) -> str:
    """Return the token or password in a file, without the line's end.

    Raises `OSError` for a file that can't be read, and `CommandError` for one that is not text.
    """
    try:
        return path.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        message = "is not UTF-8 text, as a token or a password is"
        raise CommandError(message, code=exits.BAD_CONFIG, where=str(path), fix="name the file that holds it") from None
