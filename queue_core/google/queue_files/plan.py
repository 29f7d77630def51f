"""Plans the changes that apply a queue.yaml or queue.xml. The file is definitive, as in App Engine. Pure.

A listed queue is created or updated, and resumed if it was paused; an unlisted queue is paused and keeps its tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.task import QueueSpec

ALWAYS_THERE: Final = "default"
"""The one queue that App Engine does not pause when a file leaves it out."""

Setting: TypeAlias = int | str | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SettingEdit:
    """A change of a setting; None: not set."""

    setting: str
    before: Setting
    after: Setting


_PAUSED: Final = SettingEdit("paused", before=False, after=True)
_RESUMED: Final = SettingEdit("paused", before=True, after=False)


@dataclass(frozen=True, slots=True)
class QueueChange:
    """The change of one queue.

    Args:
        spec: its new settings; None when they don't change.
        pausing: whether to pause or resume it afterwards; None: neither.
    """

    queue: str
    kind: Literal["create", "update", "resume", "pause"]
    edits: tuple[SettingEdit, ...]
    spec: QueueSpec | None = None
    pausing: Literal["pause", "resume"] | None = None


@dataclass(frozen=True, slots=True)
class QueueFilePlan:
    """Changes in the order of their application, and listed queues that were `moved` and don't change.

    `storage`: the change of the storage limit, applied first; None when it doesn't change.
    """

    changes: tuple[QueueChange, ...]
    moved: tuple[QueueSpec, ...] = ()
    storage: SettingEdit | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is no change."""
        return not self.changes and self.storage is None


def plan_of(
    entries: QueueFileEntries, queues: Sequence[QueueSpec], *, storage_limit_bytes: int | None = None
) -> QueueFilePlan:
    """Return the changes that bring all existing `queues` and the storage limit into line with the file.

    Settings that a file can't express, such as the length of a lease, don't change. A push queue of the file becomes a
    paused queue of mode `push`: its name is known, and nothing is leased from it.
    """
    known = {spec.name: spec for spec in queues}
    changes: list[QueueChange] = []
    moved: list[QueueSpec] = []
    for listed in entries.queues:
        found = known.pop(listed.name, None)
        if found is not None and found.moved_to:
            moved.append(found)
            continue
        change = _listed(listed, found, resume=entries.resume_paused_queues)
        if change is not None:
            changes.append(change)
    for name in entries.push_queues:
        found = known.pop(name, None)
        if found is not None and found.moved_to:
            moved.append(found)
        elif (change := _pushing(name, found)) is not None:
            changes.append(change)
    missing = [spec for spec in known.values() if spec.name != ALWAYS_THERE and not spec.is_closed]
    changes += [QueueChange(spec.name, "pause", (_PAUSED,), pausing="pause") for spec in missing]
    wanted = entries.total_storage_limit_bytes
    storage = (
        SettingEdit("total_storage_limit_bytes", storage_limit_bytes, wanted) if wanted != storage_limit_bytes else None
    )
    return QueueFilePlan(tuple(changes), tuple(moved), storage)


def _pushing(name: str, found: QueueSpec | None) -> QueueChange | None:
    wanted = replace(found or QueueSpec(name, on_exhausted="delete"), mode="push")
    if found is None:
        return QueueChange(name, "create", (SettingEdit("mode", None, "push"),), spec=wanted, pausing="pause")
    edits = () if found.mode == "push" else (SettingEdit("mode", found.mode, "push"),)
    paused = () if found.paused else (_PAUSED,)
    if not edits and not paused:
        return None
    pausing: Literal["pause"] | None = "pause" if paused else None
    return QueueChange(
        name, "update" if edits else "pause", edits + paused, spec=wanted if edits else None, pausing=pausing
    )


def _listed(listed: QueueSpec, found: QueueSpec | None, *, resume: bool) -> QueueChange | None:
    if found is None:
        return QueueChange(listed.name, "create", _edits(listed, None), spec=listed)
    wanted = replace(
        found,
        max_leases=listed.max_leases,
        on_exhausted=listed.on_exhausted,
        user_emails=listed.user_emails,
        writer_emails=listed.writer_emails,
        mode=listed.mode,
    )
    edits = _edits(wanted, found)
    resume = resume or found.mode == "push"  # it was paused for being a push queue
    pausing: Literal["resume"] | None = "resume" if found.paused and resume else None
    resumed = (_RESUMED,) if pausing else ()
    if edits:
        return QueueChange(found.name, "update", edits + resumed, spec=wanted, pausing=pausing)
    return QueueChange(found.name, "resume", resumed, pausing=pausing) if pausing else None


def _edits(after: QueueSpec, before: QueueSpec | None) -> tuple[SettingEdit, ...]:
    """Return the changed settings among those of a file; for a new queue those that are not default."""
    pairs: tuple[tuple[str, Setting, Setting], ...] = (
        ("max_leases", before.max_leases if before else None, after.max_leases),
        ("on_exhausted", before.on_exhausted if before else None, after.on_exhausted),
        ("user_emails", before.user_emails if before else (), after.user_emails),
        ("writer_emails", before.writer_emails if before else (), after.writer_emails),
        ("mode", before.mode if before else "pull", after.mode),
    )
    return tuple(SettingEdit(setting, old, new) for setting, old, new in pairs if old != new)
