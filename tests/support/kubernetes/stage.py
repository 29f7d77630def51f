"""A namespace of a Kubernetes API, real or a stand-in, where a test plays the scheduler and the kubelet."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.eventually import eventually
from tests.support.kubernetes.cluster import MERGE, Cluster, Json, RefusedError, condition
from tests.support.kubernetes.objects import now_text
from tests.support.kubernetes.plane import Plane
from tests.support.kubernetes.server import StandIn

NODE: Final = "patched"
"""A node that is an object alone: a test reports for it."""
HEARTBEAT_SECONDS: Final = 2.0
ACCOUNT: Final = "supervisor"
RULES: Final = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["towline-fleet"], "verbs": ["get"]},
)
"""The rights of a supervisor, and nothing more: every test has them alone."""


@dataclass
class Stage:
    """One API with a namespace of its own.

    Attributes:
        kubeconfig: the access of a supervisor that has its rights alone, in that namespace.
        anchor_uid: the uid of the fleet's anchor.
        stand_in: the server, where it is no real one.
    """

    cluster: Cluster
    namespace: str
    kubeconfig: Path
    anchor_uid: str
    stand_in: StandIn | None = None
    plane: Plane | None = None

    def pods(self) -> list[Json]:
        return self.cluster.pods(self.namespace)

    def pod(self, worker: str) -> Json | None:
        """Return the Pod of a worker, or None."""
        return self.cluster.pod_of(worker, self.namespace)

    def pod_name(self, worker: str) -> str:
        """Return the name of a worker's Pod, which is there."""
        found = eventually(lambda: self.pod(worker))
        assert found is not None
        return str(found["metadata"]["name"])

    def schedule(self, worker: str, *, node: str = NODE) -> None:
        """Give a worker's Pod to the node."""
        self.cluster.bind(self.pod_name(worker), node, self.namespace)

    def report(self, worker: str, status: Json) -> None:
        """Report a status as the node's kubelet."""
        self.cluster.report(self.pod_name(worker), status, self.namespace)

    def run(self, worker: str) -> None:
        """Schedule a worker's Pod and report that it runs."""
        self.schedule(worker)
        self.report(worker, running())

    def end(self, worker: str, *, code: int = 0, reason: str = "", message: str = "") -> None:
        """Report that a worker's container has ended."""
        self.report(worker, ended(code, reason=reason, message=message))

    def remove(self, worker: str) -> None:
        """Remove the object of a worker's Pod, as the kubelet does once it has ended; it may be gone already."""
        found = self.pod(worker)
        if found is not None:
            self.cluster.remove(str(found["metadata"]["name"]), self.namespace)

    def is_leaving(self, worker: str) -> bool:
        """Return whether a worker's Pod was deleted, or is gone."""
        found = self.pod(worker)
        return found is None or "deletionTimestamp" in found["metadata"]

    def grace_of(self, worker: str) -> int | None:
        """Return the grace in seconds that a Pod was deleted with; None while it was not."""
        found = self.pod(worker)
        given = None if found is None else found["metadata"].get("deletionGracePeriodSeconds")
        return None if given is None else int(given)

    def set_quota(self, pods: int) -> None:
        """Let the namespace have so many Pods."""
        path = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
        self.cluster.call("POST", path, {"metadata": {"name": "quota"}, "spec": {"hard": {"pods": str(pods)}}})
        if self.plane is not None:  # it counts from the moment on that it has been counted
            eventually(lambda: (self.cluster.find(f"{path}/quota") or {}).get("status", {}).get("used"))

    def lift_quota(self) -> None:
        self.cluster.call("DELETE", f"/api/v1/namespaces/{self.namespace}/resourcequotas/quota")

    def delete_anchor(self) -> None:
        self.cluster.call("DELETE", f"/api/v1/namespaces/{self.namespace}/configmaps/towline-fleet")

    def stranger(self, name: str, *, labels: Json, spec: Json | None = None) -> Json:
        """Make a Pod that no supervisor made."""
        container = {"name": "worker", "image": "localhost/towline:1"}
        body: Json = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container], **(spec or {})}}
        return self.cluster.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)

    def clear(self) -> None:
        """Remove every Pod at once: there is no node that would end them."""
        for pod in self.pods():
            self.cluster.remove(str(pod["metadata"]["name"]), self.namespace)


# -- what a kubelet reports --------------------------------------------------------------------------------------------


def waiting(reason: str, message: str = "") -> Json:
    """The status of a Pod whose container can't start, or does not yet."""
    return _status("Pending", {"waiting": {"reason": reason, "message": message}}, is_ready=False)


def running() -> Json:
    """The status of a Pod that runs."""
    return _status("Running", {"running": {"startedAt": now_text()}}, is_ready=True)


def ended(code: int = 0, *, reason: str = "", message: str = "", phase: str = "") -> Json:
    """The status of a Pod whose container has ended; `phase`: of the Pod, which a sidecar may keep running."""
    given = reason or ("Completed" if code == 0 else "Error")
    terminated = {"exitCode": code, "reason": given, "message": message, "finishedAt": now_text()}
    return _status(phase or ("Succeeded" if code == 0 else "Failed"), {"terminated": terminated}, is_ready=False)


def failed(reason: str, message: str = "", *, disrupted_by: str = "") -> Json:
    """The status of a Pod that its node gave up, or refused: there is nothing of its container."""
    status: Json = {"phase": "Failed", "reason": reason, "message": message}
    if disrupted_by:
        status["conditions"] = [disruption(disrupted_by, message)]
    return status


def disruption(reason: str, message: str = "") -> Json:
    """The condition of a Pod that the cluster takes away."""
    said = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {**said, "lastTransitionTime": now_text()}


def _status(phase: str, state: Json, *, is_ready: bool) -> Json:
    container = {"name": "worker", "image": "localhost/towline:1", "imageID": "", "restartCount": 0, "ready": is_ready}
    now = now_text()
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
        {"type": "Initialized", "status": "True", "lastTransitionTime": now},
        {"type": "Ready", "status": "True" if is_ready else "False", "lastTransitionTime": now},
    ]
    return {"phase": phase, "conditions": conditions, "containerStatuses": [{**container, "state": state}]}


# -- stages ------------------------------------------------------------------------------------------------------------


def a_namespace() -> str:
    """Return a name that no test has used."""
    return f"fleet-{secrets.token_hex(3)}"


def stand_in_stage(server: StandIn, folder: Path) -> Stage:
    """Return a stage on a stand-in."""
    namespace = a_namespace()
    anchor = server.cluster.make_namespace(namespace)
    file = server.kubeconfig(folder / "kubeconfig.json", namespace=namespace)
    return Stage(server.cluster, namespace, file, anchor, stand_in=server)


def plane_stage(plane: Plane, *, labels: Json | None = None) -> Stage:
    """Return a stage on a real control plane, whose supervisor's token is that of a service account."""
    namespace = a_namespace()
    cluster = plane.cluster
    anchor = cluster.make_namespace(namespace, labels=labels)
    at = f"/api/v1/namespaces/{namespace}"
    eventually(lambda: cluster.find(f"{at}/serviceaccounts/default"))
    file = plane.access_file(namespace, _token(cluster, namespace), namespace=namespace)
    return Stage(cluster, namespace, file, anchor, plane=plane)


def _token(cluster: Cluster, namespace: str) -> str:
    at = f"/api/v1/namespaces/{namespace}"
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    cluster.call("POST", f"{at}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    cluster.call("POST", f"{rights}/roles", {"metadata": {"name": ACCOUNT}, "rules": list(RULES)})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
    binding: Json = {"metadata": {"name": ACCOUNT}, "subjects": [subject], "roleRef": role}
    cluster.call("POST", f"{rights}/rolebindings", binding)
    asked: Json = {"spec": {"expirationSeconds": 7200}}
    answer = cluster.call("POST", f"{at}/serviceaccounts/{ACCOUNT}/token", asked)
    return str(answer["status"]["token"])


@contextmanager
def patched_node(plane: Plane, name: str = NODE) -> Iterator["PatchedNode"]:
    """Keep a node alive that is an object alone; the scheduler gives it nothing."""
    node = PatchedNode(plane.cluster, name)
    node.start()
    try:
        yield node
    finally:
        node.end()


class PatchedNode:
    """A node that says that it is well until it is silenced."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._over = threading.Event()
        self._silent = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def start(self) -> None:
        body: Json = {"metadata": {"name": self.name}, "spec": {"unschedulable": True}}
        self._cluster.ensure("/api/v1/nodes", body)
        self._report()
        self._thread.start()

    def silence(self) -> None:
        """Report no more, as a node that is gone."""
        self._silent.set()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(HEARTBEAT_SECONDS):
            if not self._silent.is_set():
                try:
                    self._report()
                except (RefusedError, OSError):
                    continue  # the plane is being ended

    def _report(self) -> None:
        now = now_text()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now}
        body: Json = {"status": {"conditions": [{**ready, "lastTransitionTime": now}]}}
        self._cluster.call("PATCH", f"/api/v1/nodes/{self.name}/status", body, kind=MERGE)


def scheduler_says(pod: Json) -> str:
    """Return what the scheduler says of a Pod that has no node."""
    return str(condition(pod, "PodScheduled").get("message", ""))


def audited_deletes(records: Sequence[Json], user: str) -> list[Json]:
    """Return the DELETEs of Pods by a user whose name ends like this."""
    return [
        record
        for record in records
        if record["verb"] in ("delete", "deletecollection")
        and record["objectRef"].get("subresource", "") == ""
        and str(record["user"]["username"]).endswith(user)
    ]


__all__ = [
    "ACCOUNT",
    "NODE",
    "PatchedNode",
    "Stage",
    "audited_deletes",
    "disruption",
    "ended",
    "failed",
    "patched_node",
    "plane_stage",
    "running",
    "scheduler_says",
    "stand_in_stage",
    "waiting",
]
