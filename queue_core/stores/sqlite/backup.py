"""Back up a store that is in use: copy it to another file, whole or not at all, and check the copy."""

import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from queue_core.errors import InvalidRequestError, StoreCorruptError
from queue_core.stores.sqlite.driver import Progress
from queue_core.stores.sqlite.file import create_file, real_path
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.wal import sync_folder

OWN_SUFFIXES = ("", "-wal", "-shm", "-lock", "-wake", "-reserve")


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy that passed its check."""

    file: Path
    size_bytes: int
    tasks: int


def back_up(store: SqliteStore, to: Path, *, overwrite: bool, progress: Progress) -> Backup:
    """Copy a snapshot of the store to the file `to`, which only its owner can read; servers go on meanwhile.

    Args:
        overwrite: replace an existing file, once the copy is whole.
        progress: called with the pages that were copied and all pages.

    Raises `FileExistsError`, `OSError`, `StoreError`; then `to` is unchanged.
    """
    target = real_path(to)
    own = {store.path.with_name(store.path.name + suffix) for suffix in OWN_SUFFIXES}
    if target.is_dir() or target in own:
        raise InvalidRequestError(f"{target} can't be the copy: name another file")
    if target.exists() and not overwrite:
        raise FileExistsError(target)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        draft = Path(folder) / target.name
        create_file(draft)
        store.copy_to(draft, progress)
        copy = SqliteStore(draft, durability="relaxed")
        try:
            checked = copy.check()
        finally:
            copy.close()
        if checked.problems:
            raise StoreCorruptError(f"the copy of {store.path} failed its check and was removed: {checked.problems[0]}")
        descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if overwrite:
            draft.replace(target)
        else:
            target.hardlink_to(draft)
    sync_folder(target.parent)
    return Backup(target, target.stat().st_size, checked.tasks)


def back_up_beside(store: SqliteStore) -> Backup:
    """Back up into the store's own folder, under a random name; for a server, whose callers can't name files."""
    name = f"{store.path.name}-backup-{secrets.token_hex(6)}"
    return back_up(store, store.path.with_name(name), overwrite=False, progress=lambda _done, _pages: None)
