"""Our own container, if we run in one that the engine knows: its mounts tell where our files are on the engine's host.

The engine takes sources of mounts as paths of its host. A state directory on a volume has another path there.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import docker

from orchestrator.base.errors import SpawnError
from orchestrator.base.values import value
from orchestrator.runtimes.docker.container_state import at, mapping, text
from orchestrator.runtimes.docker.create import OWN_TARGETS
from orchestrator.runtimes.docker.engine import EngineApi

MOUNTS_FILE: Final = Path("/proc/self/mountinfo")
# An engine mounts these three files in every container, from a folder that is named after it.
_OF_ENGINE: Final = re.compile(r"/containers/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)$")
_MOUNTED_AT: Final = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})


@value
class ContainerMount:
    """A mount of a container: `target` is a path in it, `source` the same on the engine's host; "" if not known."""

    target: str
    source: str


@value
class OwnContainer:
    """A container in which we run, with all its mounts."""

    container: str
    places: tuple[ContainerMount, ...]

    def on_host(self, path: str) -> str | None:
        """Return the path on the engine's host of one in the container; None if it is on no mount."""
        inside = PurePosixPath(path)
        found = [place for place in self.places if place.source and inside.is_relative_to(place.target)]
        if not found:
            return None
        nearest = max(found, key=lambda place: len(PurePosixPath(place.target).parts))
        return str(PurePosixPath(nearest.source) / inside.relative_to(nearest.target))


def container_in(mountinfo: str) -> str | None:
    """Return the id of the container whose mounts these are, as the kernel writes them; None on a host."""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4 and fields[4] in _MOUNTED_AT and (found := _OF_ENGINE.search(fields[3])):
            return found[1]
    return None


def our_container(mounts_file: Path = MOUNTS_FILE) -> str | None:
    """Return the id of the container in which we run; None on a host."""
    try:
        return container_in(mounts_file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def own_container(api: EngineApi, *, mounts_file: Path = MOUNTS_FILE) -> OwnContainer | None:
    """Return our container; None on a host, and in a container of another engine. Raises what the engine raises."""
    known = our_container(mounts_file)
    if known is None:
        return None
    try:
        facts = api.inspect_container(known)
    except docker.errors.NotFound:
        return None
    mounts = at(facts, "Mounts")
    listed = mounts if isinstance(mounts, Sequence) and not isinstance(mounts, str) else ()
    return OwnContainer(
        known, tuple(ContainerMount(text(at(one, "Destination")), text(at(one, "Source"))) for one in listed)
    )


class OwnPlaces:
    """Remembers our container on one engine. Two threads may look for it at first, and find the same."""

    def __init__(self) -> None:
        self._known: list[OwnContainer | None] = []

    def placed(self, api: EngineApi, body: Mapping[str, object]) -> Mapping[str, object]:
        """See `placed`: the engine is asked once. Raises `SpawnError`, and what the engine raises."""
        if not self._known:
            self._known.append(own_container(api))
        return placed(body, self._known[0])


def placed(body: Mapping[str, object], own: OwnContainer | None) -> Mapping[str, object]:
    """Return a worker's body in which our own files are where the engine finds them; others are as they were.

    Raises `SpawnError` for a file that the engine can't find.
    """
    if own is None:
        return body
    host = mapping(body["HostConfig"])
    mounts = host["Mounts"]
    assert isinstance(mounts, list)
    return {**body, "HostConfig": {**host, "Mounts": [_placed(mapping(mount), own) for mount in mounts]}}


def _placed(mount: Mapping[str, object], own: OwnContainer) -> Mapping[str, object]:
    if mount["Target"] not in OWN_TARGETS:
        return mount
    path = str(mount["Source"])
    source = own.on_host(path)
    if source is None:
        raise SpawnError(not_mounted(path, own))
    return {**mount, "Source": source}


def not_mounted(path: str, own: OwnContainer) -> str:
    """Return the message for a file of ours that containers can't be given, with what to do."""
    return (
        f"containers need {path}, which is on no mount of the supervisor's own container {own.container[:12]}: "
        "give that container a volume there"
    )
