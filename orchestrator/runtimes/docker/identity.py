"""Host files that containers need: the supervisor's identity, its lock, and files with secrets."""

import contextlib
import hashlib
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from orchestrator.state.private_files import make_folder
from queue_core.process.private_files import opener

_IDENTITY_FILE: Final = "containers.id"
_READABLE: Final = 0o644


def identity_of(state_dir: Path) -> str:
    """Return an identity of a state directory that is unique across hosts: `5f2c9a1b:/srv/app/.towline`.

    The path is not enough: two supervisors in containers may have the same path and share an engine.
    """
    make_folder(state_dir)
    path = state_dir / _IDENTITY_FILE
    with contextlib.suppress(FileExistsError), open(path, "x", encoding="ascii", opener=opener) as file:
        file.write(secrets.token_hex(4))
    return f"{identity_in(state_dir)}:{state_dir.resolve()}"


def identity_in(state_dir: Path) -> str:
    """Return the id that `identity_of` created there. Raises `OSError` if there is none."""
    return (state_dir / _IDENTITY_FILE).read_text(encoding="ascii").strip()


def host_id() -> str:
    """Return an id of this host; a container counts as a host of its own."""
    try:
        known = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        known = ""
    return hashlib.sha256((known or socket.gethostname()).encode()).hexdigest()[:12]


def readable_lock(lock: Path) -> Path:
    """Create the supervisor's lock if missing, and make it readable for any user in a container.

    Its folder stays closed to the host's other users.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, _READABLE)
    finally:
        os.close(descriptor)
    return lock


def owner_of_socket(url: str) -> int:
    """Return the user id of the owner of a `unix://` URL's socket; ours if unknown."""
    try:
        return Path(url.removeprefix("unix://")).stat().st_uid if url.startswith("unix://") else os.geteuid()
    except OSError:
        return os.geteuid()


def secret_file(state_dir: Path, secret: str) -> Path:
    """Write a secret to a file for containers and return its path; the folder is closed to the host's other users."""
    folder = state_dir / "tokens"
    folder.mkdir(exist_ok=True, mode=0o700)
    path = folder / hashlib.sha256(secret.encode()).hexdigest()[:12]
    if not path.exists():
        draft = folder / f".{path.name}.{secrets.token_hex(4)}"
        draft.write_text(secret, encoding="utf-8")
        draft.chmod(_READABLE)
        draft.replace(path)
    return path
