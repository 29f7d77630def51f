"""The objects of a stand-in for Kubernetes' API, as its documentation says that they come, change and go.

In memory, without a wire: `tests.support.kubernetes.server` has that. Versions are words without an order, as clients
are told not to compare them.
"""

import copy
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tests.support.kubernetes.cluster import Json

ENDED: Final = frozenset({"Succeeded", "Failed"})
_NO_NODES: Final = "no nodes available to schedule pods"


class Key(NamedTuple):
    """Where an object is; a cluster's own object has the namespace ""."""

    resource: str
    namespace: str
    name: str


class RefusalError(Exception):
    """A call is refused with this status and reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object: ADDED, MODIFIED or DELETED, what it became, and what it was."""

    number: int
    kind: str
    key: Key
    became: Json
    was: Json | None = None


@dataclass
class Objects:
    """All objects, and every change since the last that was forgotten; `changed` wakes who waits for one."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    changes: list[Change] = field(default_factory=list)
    forgotten: int = 0
    _held: dict[Key, Json] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _version: str = ""

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)
        self._next_version()

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The version of the whole, which a list has."""
        return self._version

    def number_of(self, version: str) -> int | None:
        """Return the number of the last change that a version has seen; None of a version never given."""
        return self._numbers.get(version)

    def find(self, key: Key) -> Json:
        """Return an object. Raises `RefusalError`."""
        with self.lock:
            if key not in self._held:
                raise RefusalError(404, "NotFound", f'{key.resource} "{key.name}" not found')
            return copy.deepcopy(self._held[key])

    def all_of(self, resource: str, namespace: str) -> list[Json]:
        """Return the objects of a kind, of every namespace where that is ""."""
        with self.lock:
            found = [key for key in self._held if key.resource == resource and namespace in ("", key.namespace)]
            return [copy.deepcopy(self._held[key]) for key in sorted(found)]

    def since(self, number: int) -> list[Change]:
        """Return the changes after this one."""
        with self.lock:
            return [change for change in self.changes if change.number > number]

    # -- writing -------------------------------------------------------------------------------------------------------

    def create(self, key: Key, body: Json, *, is_dry: bool = False) -> Json:
        """Make an object. Raises `RefusalError`."""
        with self.lock:
            if key in self._held:
                raise RefusalError(409, "AlreadyExists", f'{key.resource} "{key.name}" already exists')
            if key.resource == "pods":
                self._ask_quota(key)
            made = copy.deepcopy(body)
            made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now_text(), "name": key.name}
            if key.namespace:
                made["metadata"]["namespace"] = key.namespace
            if key.resource == "pods":
                made["status"] = {"phase": "Pending", "qosClass": "Burstable"}
            if is_dry:
                return made
            self._put("ADDED", key, made)
            if key.resource == "pods":
                self._schedule(key)
            return copy.deepcopy(made)

    def change(self, key: Key, change: Callable[[Json], None]) -> Json:
        """Change an object. Raises `RefusalError`."""
        with self.lock:
            found = self.find(key)
            change(found)
            self._put("MODIFIED", key, found)
            return copy.deepcopy(found)

    def delete(self, key: Key, *, grace_seconds: int | None = None, uid: str = "") -> Json:
        """Delete an object: a Pod on a node is marked, and goes when its node says so. Raises `RefusalError`."""
        with self.lock:
            found = self.find(key)
            if uid and uid != found["metadata"]["uid"]:
                message = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
                raise RefusalError(409, "Conflict", message + str(found["metadata"]["uid"]))
            if key.resource != "pods" or self._goes_at_once(found, grace_seconds):
                self._remove(key)
                return found
            metadata = found["metadata"]
            given = found["spec"].get("terminationGracePeriodSeconds", 30) if grace_seconds is None else grace_seconds
            before = metadata.get("deletionGracePeriodSeconds")
            if before is None or given < before:
                metadata |= {"deletionTimestamp": now_text(), "deletionGracePeriodSeconds": given}
                self._put("MODIFIED", key, found)
            return copy.deepcopy(found)

    def forget(self) -> None:
        """Forget every change so far, as a store does after five minutes: no watch can begin before now."""
        with self.lock:
            self.forgotten = self._numbers[self._version]

    def _goes_at_once(self, pod: Json, grace_seconds: int | None) -> bool:
        if grace_seconds is None and "deletionTimestamp" in pod["metadata"]:
            return False  # it leaves already, and its node will say when it has gone
        return grace_seconds == 0 or not pod["spec"].get("nodeName") or pod["status"].get("phase") in ENDED

    def _remove(self, key: Key) -> None:
        found = self._held.pop(key)
        was = copy.deepcopy(found)
        found["metadata"]["resourceVersion"] = self._next_version()
        self._tell("DELETED", key, found, was)
        for owned, pod in list(self._held.items()):
            owners = [owner["uid"] for owner in pod["metadata"].get("ownerReferences", ())]
            if found["metadata"]["uid"] in owners:
                self.delete(owned)

    def collect_orphans(self) -> None:
        """Delete what belongs to an object that is gone, as the garbage collector does."""
        with self.lock:
            uids = {held["metadata"]["uid"] for held in self._held.values()}
            for key, held in list(self._held.items()):
                owners = [owner["uid"] for owner in held["metadata"].get("ownerReferences", ())]
                if owners and not uids.intersection(owners) and "deletionTimestamp" not in held["metadata"]:
                    self.delete(key)

    def _schedule(self, key: Key) -> None:
        """Say what a scheduler without nodes says."""
        gates = self._held[key].get("spec", {}).get("schedulingGates")
        reason = "SchedulingGated" if gates else "Unschedulable"
        said = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": now_text()}
        if not gates:
            said["message"] = _NO_NODES

        def add(pod: Json) -> None:
            pod["status"]["conditions"] = [said]

        self.change(key, add)

    def _ask_quota(self, key: Key) -> None:
        used = sum(pod["status"].get("phase") not in ENDED for pod in self.all_of("pods", key.namespace))
        for quota in self.all_of("resourcequotas", key.namespace):
            limit = quota["spec"]["hard"].get("pods")
            if limit is not None and used >= int(limit):
                name = quota["metadata"]["name"]
                message = f"exceeded quota: {name}, requested: pods=1, used: pods={used}, limited: pods={limit}"
                raise RefusalError(403, "Forbidden", f'pods "{key.name}" is forbidden: {message}')

    def _put(self, kind: str, key: Key, became: Json) -> None:
        was = self._held.get(key)
        became["metadata"]["resourceVersion"] = self._next_version()
        self._held[key] = copy.deepcopy(became)
        self._tell(kind, key, became, was)

    def _tell(self, kind: str, key: Key, became: Json, was: Json | None) -> None:
        self.changes.append(Change(self._numbers[self._version], kind, key, copy.deepcopy(became), was))
        self.changed.notify_all()

    def _next_version(self) -> str:
        self._version = uuid.uuid4().hex[:12]
        self._numbers[self._version] = len(self._numbers)
        return self._version


def now_text() -> str:
    """Return the time as the API writes it, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(into: Json, patch: Json) -> None:
    """Apply a JSON merge patch."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            merged(into[name], value)
        else:
            into[name] = copy.deepcopy(value)


def is_selected(found: Json, selector: str) -> bool:
    """Return whether an object has the labels of a selector of the forms `a=b`, `a==b`, `a!=b`, `a` and `!a`."""
    labels = found["metadata"].get("labels") or {}
    return all(_holds(labels, term.strip()) for term in selector.split(",") if term.strip())


def _holds(labels: Json, term: str) -> bool:
    for operator in ("!=", "==", "="):
        name, found, value = term.partition(operator)
        if found:
            return bool((labels.get(name) == value) is (operator != "!="))
    return (term.removeprefix("!") in labels) is not term.startswith("!")


def pages(found: list[Json], *, limit: int) -> Iterator[list[Json]]:
    """Return what was found in pages."""
    size = limit or max(len(found), 1)
    return (found[first : first + size] for first in range(0, max(len(found), 1), size))
