"""Calls on a Kubernetes API as a test makes them: of a person, of the scheduler, of a node that isn't there.

Nothing here is the product's: what is tested is not to be asked whether it is right.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import urllib3

NAMESPACE: Final = "fleet"
ANCHOR: Final = "towline-fleet"
Json = dict[str, Any]
MERGE: Final = "application/merge-patch+json"
CALL_SECONDS: Final = 30.0


class RefusedError(Exception):
    """The API refused a call; `status` says how, `reason` and the message are its own."""

    def __init__(self, status: int, body: Json) -> None:
        self.status = status
        self.reason = str(body.get("reason", ""))
        super().__init__(f"{status} {self.reason}: {body.get('message', '')}")


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where an API is, and who calls it."""

    url: str
    token: str = field(default="", repr=False)
    authority: str = ""

    @classmethod
    def of_kubeconfig(cls, file: Path) -> Self:
        """Return the access that one of our own files gives."""
        content = json.loads(file.read_text())
        cluster = content["clusters"][0]["cluster"]
        return cls(cluster["server"], content["users"][0]["user"]["token"], cluster.get("certificate-authority", ""))


class Cluster:
    """Calls on one API."""

    def __init__(self, access: ApiAccess) -> None:
        self.access = access
        self._http = urllib3.PoolManager(ca_certs=access.authority or None, timeout=CALL_SECONDS, retries=False)

    def call(self, method: str, path: str, body: Json | None = None, *, kind: str = "application/json") -> Json:
        """Return the answer to a call. Raises `RefusedError`, and `ConnectionError` while nothing answers."""
        headers = {"Content-Type": kind, "Accept": "application/json"}
        if self.access.token:
            headers["Authorization"] = f"Bearer {self.access.token}"
        try:
            answer = self._http.request(
                method, self.access.url + path, body=None if body is None else json.dumps(body), headers=headers
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(str(error)) from error
        content: Json = json.loads(answer.data) if answer.data.startswith(b"{") else {"text": answer.data.decode()}
        if not 200 <= answer.status < 300:
            raise RefusedError(answer.status, content)
        return content

    def find(self, path: str) -> Json | None:
        """Return an object, or None where there is none."""
        try:
            return self.call("GET", path)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    def ensure(self, path: str, body: Json) -> Json:
        """Make an object unless it is there, and return it."""
        found = self.find(f"{path}/{body['metadata']['name']}")
        return found or self.call("POST", path, body)

    # -- the fleet's namespace -----------------------------------------------------------------------------------------

    def make_namespace(self, name: str = NAMESPACE, *, labels: Mapping[str, str] | None = None) -> str:
        """Make a namespace with the fleet's anchor, and return the anchor's uid."""
        self.ensure("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        anchor = self.ensure(f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": ANCHOR}})
        return str(anchor["metadata"]["uid"])

    def pods(self, namespace: str = NAMESPACE) -> list[Json]:
        """Return the Pods of a namespace by name."""
        found: list[Json] = self.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def pod(self, name: str, namespace: str = NAMESPACE) -> Json | None:
        """Return a Pod, or None where there is none."""
        return self.find(pod_path(name, namespace))

    def pod_of(self, worker: str, namespace: str = NAMESPACE) -> Json | None:
        """Return the Pod of a worker, or None."""
        return next((pod for pod in self.pods(namespace) if worker_of(pod) == worker), None)

    def delete(self, name: str, namespace: str = NAMESPACE, *, grace_seconds: int | None = None) -> None:
        """Delete a Pod as a person does (`kubectl delete pod`)."""
        options: Json = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self.call("DELETE", pod_path(name, namespace), options)

    def evict(self, name: str, namespace: str = NAMESPACE) -> None:
        """Evict a Pod as `kubectl drain` does. Raises `RefusedError` while a disruption budget forbids it."""
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        self.call("POST", f"{pod_path(name, namespace)}/eviction", body)

    def log_of(self, name: str, namespace: str = NAMESPACE) -> str:
        """Return what the container of a Pod wrote."""
        return str(self.call("GET", f"{pod_path(name, namespace)}/log").get("text", ""))

    # -- what a scheduler and a kubelet do, of a node that isn't there -------------------------------------------------

    def bind(self, name: str, node: str, namespace: str = NAMESPACE) -> None:
        """Give a Pod to a node, as the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.call("POST", f"{pod_path(name, namespace)}/binding", body)

    def report(self, name: str, status: Json, namespace: str = NAMESPACE) -> Json:
        """Report the status of a Pod, as its kubelet does."""
        return self.call("PATCH", f"{pod_path(name, namespace)}/status", {"status": status}, kind=MERGE)

    def remove(self, name: str, namespace: str = NAMESPACE) -> None:
        """Remove the object of a Pod that has ended, as its kubelet does."""
        try:
            self.delete(name, namespace, grace_seconds=0)
        except RefusedError as error:
            if error.status != 404:
                raise

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def is_ready(self, node: str) -> bool:
        """Return whether a node says that it is ready."""
        return self.condition_of_node(node) == "True"

    def condition_of_node(self, node: str) -> str:
        """Return the state of a node's condition `Ready`: "True", "False", "Unknown", or "" without any."""
        found = self.find(f"/api/v1/nodes/{node}") or {}
        return str(condition(found, "Ready").get("status", ""))

    def cordon(self, node: str, *, is_wanted: bool = True) -> None:
        """Keep new Pods off a node, or let them in again."""
        self.call("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": is_wanted}}, kind=MERGE)


def pod_path(name: str, namespace: str = NAMESPACE) -> str:
    """Return the path of a Pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def worker_of(pod: Json) -> str:
    """Return the name of a Pod's worker; "" of a Pod that is no worker."""
    return str(pod["metadata"].get("labels", {}).get("towline.worker", ""))


def condition(found: Json, kind: str) -> Json:
    """Return a condition of a Pod or node; an empty one where it has none of this kind."""
    conditions: list[Json] = found.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})


def names(pods: list[Json]) -> Iterator[str]:
    """Return the names of Pods."""
    return (str(pod["metadata"]["name"]) for pod in pods)
