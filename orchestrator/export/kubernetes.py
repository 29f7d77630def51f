"""Kubernetes objects as plain values: the queue server with its supervisor, and the workers of a pool. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.export.request import ExportRequest, yaml_of
from orchestrator.export.settings import (
    PORT,
    SECRETS_FOLDER,
    STATE_FOLDER,
    ExportedSecret,
    Portable,
    arguments_of,
    environment_of,
    variables_of,
)

Object = dict[str, object]

NAME: Final = "towline"
SECRET: Final = "towline-secrets"  # noqa: S105  the object's name
CONFIG_FOLDER: Final = "/etc/towline"
CLIENT_LABEL: Final = "towline.client"
USER: Final = 10001
GRACE_MARGIN_SECONDS: Final = 5
STOP_SECONDS: Final = 30


def labels(component: str) -> dict[str, str]:
    """Return the labels that name an object's component."""
    return {"app.kubernetes.io/part-of": NAME, "app.kubernetes.io/component": component}


def made(api: str, kind: str, name: str, request: ExportRequest, component: str, **more: object) -> Object:
    """Return an object with its kind and metadata."""
    metadata = {"name": name, "namespace": request.namespace, "labels": labels(component)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


def worker_name(pool: str) -> str:
    """Return the name of all objects of a pool."""
    return f"{NAME}-{pool}"


def queue_objects(request: ExportRequest, settings: Portable) -> list[Object]:
    """Return the objects of queue server and supervisor: settings, pod with volume, service and network policies."""
    allowed: list[Object] = [
        {"podSelector": {"matchLabels": {CLIENT_LABEL: "true"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    return [
        settings_object(request, settings),
        _queue(request, settings),
        service(request),
        *network_policies(request, allowed=allowed, workers={"matchLabels": labels("worker")}),
    ]


def settings_object(request: ExportRequest, settings: Portable) -> Object:
    """Return the ConfigMap with the settings file."""
    return made("v1", "ConfigMap", f"{NAME}-settings", request, "queue", data={"towline.yaml": yaml_of(settings.data)})


def service(request: ExportRequest) -> Object:
    """Return the Service by which the queue is called."""
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    return made("v1", "Service", NAME, request, "queue", spec={"selector": labels("queue"), "ports": ports})


def network_policies(request: ExportRequest, *, allowed: Sequence[Object], workers: Object) -> list[Object]:
    """Let those that are `allowed` reach the queue, and nobody the workers, which only call it."""
    queue = {
        "podSelector": {"matchLabels": labels("queue")},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": list(allowed), "ports": [{"port": "http", "protocol": "TCP"}]}],
    }
    none = {"podSelector": workers, "policyTypes": ["Ingress"]}
    api = "networking.k8s.io/v1"
    return [
        made(api, "NetworkPolicy", NAME, request, "queue", spec=queue),
        made(api, "NetworkPolicy", f"{NAME}-workers", request, "worker", spec=none),
    ]


def supervisor_container(request: ExportRequest, *, secrets: Sequence[Object], limits: Object | None = None) -> Object:
    """Return the container of queue server and supervisor. `secrets`: the mounts of its secrets."""
    requests: Object = {"cpu": "100m", "memory": "128Mi"}
    return {
        "name": NAME,
        "image": request.server_image,
        "args": ["up", "--json"],
        "env": [{"name": "TOWLINE_FILE", "value": f"{CONFIG_FOLDER}/towline.yaml"}],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        # A hanging supervisor is restarted; an unavailable store is no reason for a restart.
        "livenessProbe": _probe("/v1/supervisor/livez", failures=3),
        "readinessProbe": _probe("/readyz", failures=2),
        "startupProbe": _probe("/livez", failures=30, period=2),
        "resources": {"requests": requests, "limits": limits} if limits else {"requests": requests},
        "securityContext": locked_down(is_read_only=True),
        "volumeMounts": [
            {"name": "state", "mountPath": STATE_FOLDER},
            {"name": "settings", "mountPath": CONFIG_FOLDER, "readOnly": True},
            *secrets,
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  a mount of its own
        ],
    }


def _queue(request: ExportRequest, settings: Portable) -> Object:
    secrets: list[Object] = [{"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True}]
    container = supervisor_container(request, secrets=secrets)
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": STOP_SECONDS,
        "securityContext": nobody(USER, USER) | {"fsGroup": USER},
        "containers": [container],
        "volumes": [
            {"name": "settings", "configMap": {"name": f"{NAME}-settings"}},
            _secret_volume("secrets", settings.secrets),
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    claim = {
        "metadata": {"name": "state"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    }
    spec = {
        "replicas": 1,
        "serviceName": NAME,
        "selector": {"matchLabels": labels("queue")},
        "template": {"metadata": {"labels": labels("queue")}, "spec": pod},
        "volumeClaimTemplates": [claim],
    }
    return made("apps/v1", "StatefulSet", NAME, request, "queue", spec=spec)


def deployment(request: ExportRequest, pool: PoolSpec, *, image: str, token: ExportedSecret | None) -> Object:
    """Return the Deployment of a pool's workers, without a number of replicas: KEDA sets it."""
    settings = pool.containers
    mounts: list[Object] = []
    volumes: list[Object] = []
    environment = dict(environment_of(pool, url=f"http://{NAME}:{PORT}"))
    if token is not None:
        environment["TOWLINE_TOKEN_FILE"] = f"/run/towline/{token.name}"
        mounts.append({"name": "token", "mountPath": "/run/towline", "readOnly": True})
        volumes.append(_secret_volume("token", [token]))
    if settings and settings.secrets:
        mounts.append({"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True})
        volumes.append({"name": "secrets", "secret": {"secretName": f"{worker_name(pool.name)}-secrets"}})
    if settings and settings.read_only:
        mounts.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108
        volumes.append({"name": "tmp", "emptyDir": {}})
    container: Object = {
        "name": "worker",
        "image": image,
        "command": [literal(argument) for argument in arguments_of(pool)],
        "env": [
            *({"name": name, "value": literal(text)} for name, text in sorted(environment.items())),
            *(_from_secret(name, pool) for name in variables_of(pool)),
        ],
        "resources": _resources(pool),
        "securityContext": locked_down(is_read_only=bool(settings and settings.read_only)),
    }
    if settings:
        container["imagePullPolicy"] = {"missing": "IfNotPresent", "always": "Always", "never": "Never"}[settings.pull]
    if pool.cwd is not None and settings is not None:
        container["workingDir"] = pool.cwd
    pod: Object = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": math.ceil(pool.grace) + GRACE_MARGIN_SECONDS,
        "securityContext": _worker_user(settings.user if settings else None),
        "containers": [container],
    }
    if mounts:
        container["volumeMounts"], pod["volumes"] = mounts, volumes
    component = worker_labels(pool)
    spec = {
        "selector": {"matchLabels": component},
        "template": {"metadata": {"labels": component}, "spec": pod},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
    }
    return made("apps/v1", "Deployment", worker_name(pool.name), request, "worker", spec=spec)


def variables_secret(pool: PoolSpec) -> str:
    """Return the name of the Secret with the pool's variables."""
    return f"{worker_name(pool.name)}-env"


def variables_object(pool: PoolSpec) -> Object:
    """Return the Secret with the pool's variables, for any namespace."""
    metadata = {"name": variables_secret(pool), "labels": labels("worker")}
    values = dict(variables_of(pool))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": values}


def _from_secret(name: str, pool: PoolSpec) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": variables_secret(pool), "key": name}}}


def disruption_budget(request: ExportRequest, pool: PoolSpec) -> Object:
    """Allow one worker of the pool at a time to be evicted; its tasks are released."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": worker_labels(pool)}}
    return made("policy/v1", "PodDisruptionBudget", worker_name(pool.name), request, "worker", spec=spec)


def worker_labels(pool: PoolSpec) -> dict[str, str]:
    """Return the labels of a pool's pods."""
    return {**labels("worker"), "app.kubernetes.io/name": worker_name(pool.name), CLIENT_LABEL: "true"}


def _probe(path: str, *, failures: int, period: int = 10) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(pool: PoolSpec) -> Object:
    settings = pool.containers
    limits: dict[str, str] = {}
    if settings and settings.memory is not None:
        limits["memory"] = str(int(settings.memory))
    if settings and settings.cpus is not None:
        limits["cpu"] = f"{max(1, round(settings.cpus * 1000))}m"
    return {"requests": dict(limits), "limits": limits} if limits else {}


def locked_down(*, is_read_only: bool) -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": is_read_only,
        "capabilities": {"drop": ["ALL"]},
    }


def nobody(user: int | None, group: int | None) -> Object:
    ids = {"runAsUser": user, "runAsGroup": group}
    known = {key: value for key, value in ids.items() if value is not None}
    return {"runAsNonRoot": user != 0, **known, "seccompProfile": {"type": "RuntimeDefault"}}


def _worker_user(user: str | None) -> Object:
    """Return the pod's security context for a numeric user; for a name the image's own user is kept."""
    if user is None or not all(part.isdigit() for part in user.split(":")):
        return {"seccompProfile": {"type": "RuntimeDefault"}}
    name, _, group = user.partition(":")
    return nobody(int(name), int(group) if group else None)


def _secret_volume(name: str, secrets: Sequence[ExportedSecret]) -> Object:
    items = [{"key": one.name, "path": one.name} for one in secrets]
    return {"name": name, "secret": {"secretName": SECRET, "items": items, "defaultMode": 0o444}}


def literal(text: str) -> str:
    """Escape `$`: Kubernetes expands $(NAME) in values and arguments, and turns $$ into $. So every one is doubled."""
    return text.replace("$", "$$")
