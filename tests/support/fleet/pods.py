"""A Pod as an apiserver sends it, so that a test names only what it is about."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrator.runtimes.kubernetes import body

FLEET: Final = "0b1c7f9e-8d1a-4a57-9d5e-5a1f0c7e1a11"
CREATED: Final = "2026-11-29T12:00:00Z"
LATER: Final = "2026-11-29T12:00:02Z"


def a_condition(kind: str, status: str, reason: str = "", message: str = "", *, at: str = LATER) -> dict[str, Any]:
    """Return a condition of a Pod."""
    said = {"reason": reason, "message": message}
    known = {name: text for name, text in said.items() if text}
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": at, **known}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """Return the state of a container that waits."""
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def running() -> dict[str, Any]:
    """Return the state of a container that runs."""
    return {"running": {"startedAt": LATER}}


def terminated(code: int, reason: str = "", message: str = "", *, started: str = LATER) -> dict[str, Any]:
    """Return the state of a container that has ended."""
    found = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "startedAt": started}
    return {"terminated": {**found, **({"message": message} if message else {})}}


def a_status(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's status."""
    return {"name": name, "state": state, "ready": "running" in state, "restartCount": 0, "image": "thumbs:1"}


def a_pod_seen(
    state: Mapping[str, Any] | None = None,
    *,
    worker: str = "resize-7f3k2q",
    pool: str = "resize",
    spec: str = "d1",
    uid: str = "u1",
    version: str = "1",
    phase: str = "",
    node: str | None = "node-1",
    conditions: Sequence[Mapping[str, Any]] = (),
    helpers: Sequence[Mapping[str, Any]] = (),
    inits: Sequence[Mapping[str, Any]] = (),
    reason: str = "",
    message: str = "",
    leaving: bool = False,
    nonce: str = "n1",
    memory: str = "",
    gates: Sequence[str] = (),
    **metadata: Any,
) -> dict[str, Any]:
    """Return a worker's Pod whose container is in this state; None: the kubelet has reported none yet."""
    about: dict[str, Any] = {
        "name": body.pod_name(worker),
        "namespace": "fleet",
        "uid": uid,
        "resourceVersion": version,
        "creationTimestamp": CREATED,
        "labels": {
            body.FLEET_LABEL: FLEET,
            body.POOL_LABEL: pool,
            body.WORKER_LABEL: worker,
            body.SPEC_LABEL: spec,
        },
        "annotations": {body.SPAWNED_AT: "1700000000.000000", body.CREATE: nonce},
        **metadata,
    }
    if leaving:
        about |= {"deletionTimestamp": LATER, "deletionGracePeriodSeconds": 35}
    status: dict[str, Any] = {"phase": phase or _phase(state)}
    if state is not None:
        status["containerStatuses"] = [*helpers, a_status(body.WORKER, state)]
    if inits:
        status["initContainerStatuses"] = list(inits)
    if conditions:
        status["conditions"] = list(conditions)
    status |= {name: text for name, text in (("reason", reason), ("message", message)) if text}
    container: dict[str, Any] = {
        "name": body.WORKER,
        "image": "thumbs:1",
        "command": ["python3", "-m", "queue_core.worker"],
    }
    if memory:
        container["resources"] = {"limits": {"memory": memory}}
    found: dict[str, Any] = {"terminationGracePeriodSeconds": 35, "containers": [container]}
    if node is not None:
        found["nodeName"] = node
    if gates:
        found["schedulingGates"] = [{"name": name} for name in gates]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": found, "status": status}


def _phase(state: Mapping[str, Any] | None) -> str:
    if state is None or "waiting" in state:
        return "Pending"
    return "Running" if "running" in state else "Succeeded" if state["terminated"]["exitCode"] == 0 else "Failed"
