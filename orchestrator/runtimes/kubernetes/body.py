"""Build the Pod of one worker from the settings and the pool's template. Pure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from orchestrator.base.errors import SpawnError
from orchestrator.base.values import value
from orchestrator.config.kubernetes import NAME_PREFIX, KubernetesSettings
from orchestrator.runtime import SpawnRequest

ANCHOR: Final = "towline-fleet"
"""The ConfigMap whose uid is the fleet's identity, and which owns its Pods."""
WORKER: Final = "worker"
"""The name of the container that is the worker; others of a template are its helpers."""
FLEET_LABEL: Final = "towline.fleet"
POOL_LABEL: Final = "towline.pool"
WORKER_LABEL: Final = "towline.worker"
SPEC_LABEL: Final = "towline.spec"
SPAWNED_AT: Final = "towline.spawned-at"
"""The annotation with the second since the epoch at which it was asked for."""
CREATE: Final = "towline.create"
"""The annotation with a word of its own of each create, by which a repeated one is recognised."""
OWN_PREFIX: Final = "towline."
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
GRACE_MARGIN_SECONDS: Final = 5
"""Time between the worker's grace and the kubelet's SIGKILL, so that the worker's own end comes first."""
SECRETS_TARGET: Final = "/run/secrets"
TOKEN_FILE: Final = "towline-token"  # noqa: S105  the file's name
URL_FILE: Final = "towline-url"
APP_MODULE: Final = "queue_core.worker"
MAX_NAME_CHARS: Final = 63

_UNREACHABLE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104  compared with, not bound
_PULL: Final = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}
# Variables that a Pod gets in another way, or must not have: anyone who may read Pods can read them, and a lock and a
# state folder are the host's.
_NOT_PASSED: Final = frozenset(
    {"TOWLINE_TOKEN", "TOWLINE_SUPERVISOR_LOCK", "TOWLINE_STATE_DIR", "TOWLINE_STATE_ID", "TOWLINE_URL"}
)
_MERGED_BY: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""The lists that a strategic merge patch of Kubernetes merges, each by the key of its entries."""
_APPENDED: Final = frozenset({"tolerations"})
_NOT_OF_A_NAME: Final = re.compile(r"[^a-z0-9-]+")

Json: TypeAlias = Mapping[str, object]


@value
class PodMarks:
    """The identity of one Pod: its name, its fleet, the word of its create, and when it was asked for."""

    name: str
    fleet: str
    nonce: str
    spawned_at: float


def pod_name(worker: str) -> str:
    """Return the name of a worker's Pod: a DNS label that is never used again, as the worker's is not."""
    clean = _NOT_OF_A_NAME.sub("-", worker.lower()).strip("-")
    return (
        f"{NAME_PREFIX}{clean}"
        if len(clean) <= MAX_NAME_CHARS - len(NAME_PREFIX)
        else (f"{NAME_PREFIX}{clean[-(MAX_NAME_CHARS - len(NAME_PREFIX)) :].strip('-')}")
    )


def pod_body(request: SpawnRequest, settings: KubernetesSettings, marks: PodMarks) -> Json:
    """Return the Pod of a worker. Raises `SpawnError` if it could never reach the queue.

    The settings win over the template, the template over the defaults; what makes it ours is not the template's.
    """
    url = settings.url or request.environment.get("TOWLINE_URL", "")
    check_url(url, pool=request.pool.name)
    template = _without_ours(settings.pod_template)
    pod = merged(merged(_defaults(request, settings), template), _settled(request, settings, url=url))
    return merged(pod, _ours(request, settings, marks))


def check_url(url: str, *, pool: str) -> None:
    """Raise `SpawnError` for a queue that is on this host alone."""
    if is_out_of_reach(url):
        raise SpawnError(unreachable(url, pool=pool))


def is_out_of_reach(url: str) -> bool:
    """Return whether no Pod can reach this URL: a loopback address, a socket or a file."""
    where = urlsplit(url)
    if where.scheme in {"http", "https"}:
        return where.hostname in _LOOPBACK
    return where.scheme in {"unix", "sqlite", "memory"}


def unreachable(url: str, *, pool: str) -> str:
    """Return the message for a URL that is out of reach, with what to do."""
    return (
        f"a Pod of pool {pool} can't reach the queue at {url}, which is on this host alone: let the queue listen on an"
        " address that Pods reach, or give the pool's kubernetes settings its own url"
    )


def merged(base: Json, over: Json) -> dict[str, object]:
    """Return `base` with `over` merged into it, as a strategic merge patch of Kubernetes does.

    Mappings are merged by key, named lists by the key of their entries; any other value replaces, and null removes.
    """
    result = dict(base)
    for key, change in over.items():
        known = result.get(key)
        if change is None:
            result.pop(key, None)
        elif isinstance(known, Mapping) and isinstance(change, Mapping):
            result[key] = merged(known, change)
        elif isinstance(known, list) and isinstance(change, list) and key in _MERGED_BY:
            result[key] = _merged_entries(known, change, by=_MERGED_BY[key])
        elif isinstance(known, list) and isinstance(change, list) and key in _APPENDED:
            result[key] = [*known, *(one for one in change if one not in known)]
        else:
            result[key] = change
    return result


def _merged_entries(base: Sequence[object], over: Sequence[object], *, by: str) -> list[object]:
    entries: list[object] = list(base)
    for change in over:
        name = change.get(by) if isinstance(change, Mapping) else None
        for index, known in enumerate(entries):
            if isinstance(known, Mapping) and isinstance(change, Mapping) and known.get(by) == name:
                entries[index] = merged(known, change)
                break
        else:
            entries.append(change)
    return entries


def _defaults(request: SpawnRequest, settings: KubernetesSettings) -> Json:
    """Return what a template may change: the security of its processes, tolerations, what autoscalers may do."""
    patience = math.ceil(settings.node_patience)
    protected = {SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"} if settings.protect == "always" else {}
    worker = {
        "name": WORKER,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {
            "labels": {
                "app.kubernetes.io/name": request.pool.name,
                "app.kubernetes.io/part-of": "towline",
                "app.kubernetes.io/managed-by": "towline",
            },
            "annotations": protected,
        },
        "spec": {
            "automountServiceAccountToken": settings.service_account is not None,
            "enableServiceLinks": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": patience}
                for key in _UNREACHABLE
            ],
            "containers": [worker],
        },
    }


def _settled(request: SpawnRequest, settings: KubernetesSettings, *, url: str) -> Json:
    """Return what the pool's settings say."""
    environment = {name: literal(text) for name, text in request.variables.items()}
    worker: dict[str, object] = {"name": WORKER, "imagePullPolicy": _PULL[settings.pull]}
    if request.pool.cwd is not None:
        worker["workingDir"] = request.pool.cwd
    if resources := _resources(settings):
        worker["resources"] = resources
    if environment:
        worker["env"] = [{"name": name, "value": text} for name, text in sorted(environment.items())]
    spec: dict[str, object] = {"containers": [worker]}
    mounts, volumes = _secrets(request, settings, url=url)
    if mounts:
        worker["volumeMounts"], spec["volumes"] = mounts, volumes
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    if settings.priority_class is not None:
        spec["priorityClassName"] = settings.priority_class
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [one.model_dump(exclude_none=True) for one in settings.tolerations]
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return {"metadata": {"labels": dict(settings.labels)}, "spec": spec}


def _ours(request: SpawnRequest, settings: KubernetesSettings, marks: PodMarks) -> Json:
    """Return what makes a Pod a worker of this fleet, whatever its template says."""
    environment = request.environment
    program = request.program(settings.python, app=(settings.python, "-m", APP_MODULE))
    variables: list[Json] = [
        {"name": name, "value": literal(text)} for name, text in sorted(_environment(request, settings).items())
    ]
    variables.append({"name": "TOWLINE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    worker = {
        "name": WORKER,
        "image": settings.image,
        "command": [literal(argument) for argument in program],
        "args": None,
        "env": variables,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": marks.name,
            "generateName": None,
            "namespace": None,
            "finalizers": None,
            "labels": {
                FLEET_LABEL: marks.fleet,
                POOL_LABEL: request.pool.name,
                WORKER_LABEL: request.worker,
                SPEC_LABEL: environment["TOWLINE_SPEC"],
            },
            "annotations": {CREATE: marks.nonce, SPAWNED_AT: f"{marks.spawned_at:.6f}"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": ANCHOR,
                    "uid": marks.fleet,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil(request.pool.grace) + GRACE_MARGIN_SECONDS,
            "containers": [worker],
        },
    }


def _environment(request: SpawnRequest, settings: KubernetesSettings) -> dict[str, str]:
    """Return the variables by which a worker knows itself and finds its queue."""
    environment = {name: text for name, text in request.environment.items() if name not in _NOT_PASSED}
    url = settings.url or request.environment.get("TOWLINE_URL", "")
    if urlsplit(url).password:
        environment["TOWLINE_URL_FILE"] = f"{SECRETS_TARGET}/{URL_FILE}"
    elif url:
        environment["TOWLINE_URL"] = url
    if request.environment.get("TOWLINE_TOKEN"):
        environment["TOWLINE_TOKEN_FILE"] = f"{SECRETS_TARGET}/{TOKEN_FILE}"
    return environment


def _secrets(request: SpawnRequest, settings: KubernetesSettings, *, url: str) -> tuple[list[Json], list[Json]]:
    """Return the mounts and volumes of the pool's secrets and of the worker's own.

    Each is a file of its own: a mount of the folder would hide the token of a ServiceAccount, which is below it.
    """
    given = {name: place.split("/", 1) for name, place in settings.secrets.items()}
    if request.environment.get("TOWLINE_TOKEN"):
        given[TOKEN_FILE] = [settings.worker_secret, "token"]
    if urlsplit(url).password:
        given[URL_FILE] = [settings.worker_secret, "url"]
    sources = [
        {"secret": {"name": secret, "items": [{"key": key, "path": name}]}}
        for name, (secret, key) in sorted(given.items())
    ]
    mounts: list[Json] = [
        {"name": "towline-secrets", "mountPath": f"{SECRETS_TARGET}/{name}", "subPath": name, "readOnly": True}
        for name in sorted(given)
    ]
    return mounts, [{"name": "towline-secrets", "projected": {"sources": sources, "defaultMode": 0o444}}]


def _resources(settings: KubernetesSettings) -> Json:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if settings.memory is not None:
        requests["memory"] = limits["memory"] = str(int(settings.memory))
    if settings.cpus is not None:
        requests["cpu"] = _millis(settings.cpus)
    if settings.cpu_limit is not None:
        limits["cpu"] = _millis(settings.cpu_limit)
    if settings.gpus is not None:  # of a device the two must be equal
        requests[settings.gpus.resource] = limits[settings.gpus.resource] = str(settings.gpus.count)
    return {name: found for name, found in (("requests", requests), ("limits", limits)) if found}


def _millis(cpus: float) -> str:
    return f"{max(1, round(cpus * 1_000))}m"


def _without_ours(template: Json) -> Json:
    """Return a template without labels, annotations and variables that are the supervisor's own."""
    copied: dict[str, object] = json.loads(json.dumps(template))
    metadata = copied.get("metadata")
    if isinstance(metadata, dict):
        for key in ("labels", "annotations"):
            known = metadata.get(key)
            if isinstance(known, Mapping):
                metadata[key] = {name: text for name, text in known.items() if not str(name).startswith(OWN_PREFIX)}
        for key in ("name", "ownerReferences", "uid", "resourceVersion", "creationTimestamp"):
            metadata.pop(key, None)
    spec = copied.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for one in containers if isinstance(containers, list) else []:
        variables = one.get("env") if one.get("name") == WORKER else None
        if isinstance(variables, list):
            one["env"] = [each for each in variables if not str(each.get("name", "")).startswith("TOWLINE_")]
    return copied


def literal(text: str) -> str:
    """Escape `$`: Kubernetes expands $(NAME) in values and arguments, and turns $$ into $. So every one is doubled."""
    return text.replace("$", "$$")
