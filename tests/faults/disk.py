"""A disk model for power cuts: unsynced writes of files survive in any mixture. Pure.

A sector of 512 bytes is written whole or not at all. Each unsynced sector, size and directory entry independently ends
up in any state it had since its last sync. Synced data is never harmed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

SECTOR_BYTES = 512
PAGE_BYTES = 4096

Survival = Literal["none", "all", "prefix", "pages", "sectors"]
"""Which unsynced changes survive: none; all; those up to some moment, the last one torn; each 4 KiB page as of
its own moment; each sector as of its own moment.
"""

SURVIVALS: tuple[Survival, ...] = ("none", "all", "prefix", "pages", "sectors")


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A size that was set; the rest reads as zeros when the file grows again."""

    size: int


Change = Write | Truncate


@dataclass(slots=True)
class Inode:
    """One file's durable bytes and later changes. `settled` counts the changes that are no longer pending."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    settled: int = 0

    @property
    def changes(self) -> int:
        """The number of changes so far: a mark for `sync` and `lose`."""
        return self.settled + len(self.pending)

    def sync(self, mark: int) -> None:
        """Make everything up to the mark durable."""
        for change in self._take(mark):
            apply(self.durable, change)

    def lose(self, mark: int) -> None:
        """Drop everything up to the mark after a failed sync: it is never written, though the page cache shows it."""
        self._take(mark)

    def _take(self, mark: int) -> list[Change]:
        number = max(0, mark - self.settled)
        taken = self.pending[:number]
        del self.pending[:number]
        self.settled += len(taken)
        return taken


@dataclass(frozen=True, slots=True)
class Remains:
    """One name that may be in the directory after the cut: the inodes it named since the last sync."""

    name: str
    inodes: tuple[tuple[bytes, tuple[Change, ...]] | None, ...]


@dataclass(frozen=True, slots=True)
class Wreck:
    """The disk at the moment of the cut; `materialise` draws one possible state."""

    remains: tuple[Remains, ...]

    def materialise(self, survival: Survival, random: Random) -> dict[str, bytes]:
        """Return file contents by name after the power is back."""
        files: dict[str, bytes] = {}
        for remains in self.remains:
            inode = _drawn_inode(remains, survival, random)
            if inode is not None:
                files[remains.name] = survivor(*inode, survival, random)
        return files

    @property
    def unsynced_bytes(self) -> int:
        """Return how many bytes the cut put at risk."""
        return sum(
            len(change.data)
            for remains in self.remains
            for inode in remains.inodes[-1:]
            if inode is not None
            for change in inode[1]
            if isinstance(change, Write)
        )


class Directory:
    """Names and inodes of one folder, as programs see them now and as last synced."""

    def __init__(self) -> None:
        self._names: dict[str, list[Inode | None]] = {}

    def open(self, name: str) -> Inode:
        """Return the inode of a name; make it if needed."""
        history = self._names.setdefault(name, [None])
        if history[-1] is None:
            history.append(Inode())
        inode = history[-1]
        assert inode is not None, "it was made a line above"
        return inode

    def delete(self, name: str) -> None:
        """Remove the name; until the folder is synced it may come back."""
        history = self._names.get(name)
        if history is not None and history[-1] is not None:
            history.append(None)

    def find(self, name: str) -> Inode | None:
        """Return the inode that a name has now."""
        return self._names.get(name, [None])[-1]

    def sync(self) -> None:
        """Make all names durable."""
        for history in self._names.values():
            del history[:-1]

    def wreck(self) -> Wreck:
        """Return the state that a cut leaves now."""
        return Wreck(
            tuple(
                Remains(
                    name,
                    tuple(None if inode is None else (bytes(inode.durable), tuple(inode.pending)) for inode in history),
                )
                for name, history in self._names.items()
            )
        )


def apply(content: bytearray, change: Change) -> None:
    """Apply one change."""
    if isinstance(change, Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    end = change.offset + len(change.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[change.offset : end] = change.data


def survivor(durable: bytes, pending: tuple[Change, ...], survival: Survival, random: Random) -> bytes:
    """Return one content that a file with these unsynced changes may have after the cut."""
    if survival == "none" or not pending:
        return durable
    if survival == "all":
        return _after(durable, pending)
    if survival == "prefix":
        kept = random.randrange(len(pending) + 1)
        return _after(durable, (*pending[:kept], *_torn(pending[kept:], random)))
    return _patchwork(durable, pending, SECTOR_BYTES if survival == "sectors" else PAGE_BYTES, random)


def _after(durable: bytes, changes: tuple[Change, ...]) -> bytes:
    content = bytearray(durable)
    for change in changes:
        apply(content, change)
    return bytes(content)


def _torn(rest: tuple[Change, ...], random: Random) -> Iterator[Change]:
    """Return the first whole sectors of the write in progress."""
    if rest and isinstance(rest[0], Write):
        boundary = rest[0].offset // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES * random.randrange(9)
        data = rest[0].data[: max(0, boundary - rest[0].offset)]
        if data:
            yield Write(rest[0].offset, data)


def _patchwork(durable: bytes, pending: tuple[Change, ...], unit: int, random: Random) -> bytes:
    """Return each unit of the file, and its size, as of a moment of its own."""
    content = bytearray(durable)
    versions: dict[int, list[bytes]] = {}
    sizes = [len(content)]
    for change in pending:
        touched = _units(change, len(content), unit)
        for index in touched:
            versions.setdefault(index, [_cut(content, index, unit)])
        apply(content, change)
        sizes.append(len(content))
        for index in touched:
            versions[index].append(_cut(content, index, unit))
    result = bytearray(max(sizes))
    result[: len(durable)] = durable
    for index, seen in versions.items():
        chosen = random.choice(seen)
        result[index * unit : index * unit + unit] = chosen[: max(0, len(result) - index * unit)]
    return bytes(result[: random.choice(sizes)])


def _units(change: Change, size: int, unit: int) -> range:
    if isinstance(change, Write):
        return range(change.offset // unit, (change.offset + len(change.data) - 1) // unit + 1)
    first, last = sorted((change.size, size))
    return range(first // unit, (last + unit - 1) // unit)


def _cut(content: bytearray, index: int, unit: int) -> bytes:
    return bytes(content[index * unit : index * unit + unit]).ljust(unit, b"\0")


def _drawn_inode(remains: Remains, survival: Survival, random: Random) -> tuple[bytes, tuple[Change, ...]] | None:
    if survival == "none":
        return remains.inodes[0]
    return remains.inodes[-1] if survival == "all" else random.choice(remains.inodes)
