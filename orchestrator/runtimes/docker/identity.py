"""What a supervisor has on its host for its containers: who it is, the lock that shows it alive, the workers' token."""

import contextlib
import hashlib
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from orchestrator.private_files import make_folder

_IDENTITY_FILE: Final = "containers.id"
_READABLE: Final = 0o644


def identity_of(state_dir: Path) -> str:
    """Names a state directory among all of all hosts, for as long as it exists: `5f2c9a1b:/srv/app/.towline`.

    Not the path alone: two supervisors in containers may call their folders the same, and share an engine.
    """
    make_folder(state_dir)
    path = state_dir / _IDENTITY_FILE
    with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
        file.write(secrets.token_hex(4))
    return f"{identity_in(state_dir)}:{state_dir.resolve()}"


def identity_in(state_dir: Path) -> str:
    """What `identity_of` made there. Raises `OSError` where there is none."""
    return (state_dir / _IDENTITY_FILE).read_text(encoding="ascii").strip()


def host_id() -> str:
    """Names this host; a container is a host of its own."""
    try:
        known = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        known = ""
    return hashlib.sha256((known or socket.gethostname()).encode()).hexdigest()[:12]


def shown_lock(lock: Path) -> Path:
    """The supervisor's lock, such that a container's user can look at it whoever that is; made where there is none.

    Its folder stays closed to the users of the host.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, _READABLE)
    finally:
        os.close(descriptor)
    return lock


def owner_of_socket(url: str) -> int:
    """Return the number of the user that the socket of a `unix://` URL belongs to; ours where it can't be told."""
    try:
        return Path(url.removeprefix("unix://")).stat().st_uid if url.startswith("unix://") else os.geteuid()
    except OSError:
        return os.geteuid()


def secret_file(state_dir: Path, secret: str) -> Path:
    """A file with what only containers may read: the folder around it is closed to the users of the host."""
    folder = state_dir / "tokens"
    folder.mkdir(exist_ok=True, mode=0o700)
    path = folder / hashlib.sha256(secret.encode()).hexdigest()[:12]
    if not path.exists():
        draft = folder / f".{path.name}.{secrets.token_hex(4)}"
        draft.write_text(secret, encoding="utf-8")
        draft.chmod(_READABLE)
        draft.replace(path)
    return path
