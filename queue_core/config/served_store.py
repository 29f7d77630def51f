"""Digests of the store that a server serves, by which a client with a settings file knows another project's server.

Two projects may keep the same address: a command of one of them would change the queues of the other.
"""

import os
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

from queue_core.clock import boot_id
from queue_core.config.store_urls import scheme_of

DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class ServedStore:
    """Digests that are equal for equal places; no place can be read from them.

    `host` is one host's, and one view of its files: containers have others, and what is said of them is never certain.
    `folder` is the settings file's. `engine` and `place` are parts of the store's URL, `name` is its file or database.
    """

    host: str
    folder: str
    engine: str
    place: str
    name: str

    def to_text(self) -> str:
        """Return the digests as one word."""
        return ":".join(astuple(self))

    def is_surely_another(self, served: str) -> bool:
        """Return whether a server that says it serves `served` has another store than this one.

        False where that can't be known: on another host, or where two addresses may mean one engine.
        """
        parts = served.split(":")
        if len(parts) != len(astuple(self)) or not self.host:
            return False
        other = ServedStore(*parts)
        if other.host != self.host or other.folder == self.folder:
            return False
        return (other.engine, other.name) != (self.engine, self.name) and (
            other.engine != self.engine or other.place == self.place
        )


def here() -> str:
    """Return a name for this boot of the host and this view of its files; "" where there is none."""
    boot = boot_id()
    try:
        return f"{boot}/{Path('/proc/self/ns/mnt').readlink()}" if boot else ""
    except OSError:
        return ""


def served_store(url: str, folder: Path, *, host: str) -> ServedStore:
    """Return what is said of a store.

    Args:
        url: the store's URL, whose path is absolute.
        folder: the settings file's folder.
        host: what `here` returned.
    """

    def digest(text: str) -> str:
        return blake2b(text.encode(), key=blake2b(host.encode()).digest(), digest_size=DIGEST_BYTES).hexdigest()

    parts = urlsplit(url)
    engine, place, name = scheme_of(url), parts.netloc.rpartition("@")[2], parts.path
    if engine == "sqlite":
        place, name = "", os.path.realpath(url.removeprefix("sqlite://"))
    elif engine == "memory":  # it has no name but its server's folder
        name = os.path.realpath(folder)
    return ServedStore(
        digest(host) if host else "", digest(os.path.realpath(folder)), digest(engine), digest(place), digest(name)
    )
