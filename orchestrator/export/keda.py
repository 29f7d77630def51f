"""Export Kubernetes manifests in which KEDA scales the workers to our supervisor's numbers. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.config.pools import PoolSpec, bounds_of
from orchestrator.export.kubernetes import (
    CLIENT_LABEL,
    NAME,
    SECRET,
    Object,
    deployment,
    disruption_budget,
    made,
    queue_objects,
    variables_object,
    worker_name,
)
from orchestrator.export.request import ExportedFiles, ExportRequest, Findings, header, yaml_of
from orchestrator.export.settings import (
    PORT,
    ExportedSecret,
    Portable,
    check_command,
    check_placeholders,
    check_program,
    portable,
)

POLL_SECONDS: Final = 5
STEP_SECONDS: Final = 15
DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
FILE: Final = "towline-keda.yaml"
VARIABLES_FILE: Final = "towline-variables.yaml"
"""The Secrets with the pools' variables: apart, since manifests and charts are kept where others read them."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects of a cluster as plain values: of queue and supervisor, and of each pool by its name."""

    settings: Portable
    queue: Sequence[Object]
    pools: Mapping[str, Sequence[Object]]
    warnings: Sequence[str]


def manifests(request: ExportRequest) -> Manifests:
    """Return all objects. Raises `ExportRefusedError`."""
    found = Findings(request.document)
    pools = request.project.pools
    if not pools:
        found.wrong(("pools",), "there are no pools to scale")
    for pool in pools.values():
        _check(pool, request, found)
    settings = portable(request, found, runtimes=dict.fromkeys(pools, "external"), roles=("worker", "viewer"))
    found.check()
    queue = [*queue_objects(request, settings), _authentication(request, settings)]
    token = settings.token("worker")
    made = {
        name: [
            deployment(request, pool, image=str(request.image_of(pool)), token=token),
            scaled_object(request, pool),
            disruption_budget(request, pool),
        ]
        for name, pool in pools.items()
    }
    return Manifests(settings, queue, made, found.warnings)


def keda(request: ExportRequest) -> ExportedFiles:
    """Return one file of manifests. Raises `ExportRefusedError`."""
    made = manifests(request)
    objects = [*made.queue, *(one for objects in made.pools.values() for one in objects)]
    files = {FILE: header(_how(request, made.settings)) + yaml_of(*objects)}
    return ExportedFiles(files, made.warnings, variables_files(request))


def variables_files(request: ExportRequest) -> dict[str, str]:
    """Return the file of the Secrets with the pools' variables; none if no pool has any."""
    secrets = [variables_object(pool) for pool in request.project.pools.values() if pool.env]
    return {VARIABLES_FILE: yaml_of(*secrets)} if secrets else {}


def scaled_object(request: ExportRequest, pool: PoolSpec) -> Object:
    """Return a ScaledObject that follows the supervisor's number at once: the supervisor already damps it."""
    low, high = bounds_of(pool)
    high = max(1, high)  # KEDA requires a maximum of at least 1; the supervisor's number may still be 0
    at_once = {"policies": [{"type": "Pods", "value": high, "periodSeconds": STEP_SECONDS}]}
    behavior = {side: {"stabilizationWindowSeconds": 0, **at_once} for side in ("scaleUp", "scaleDown")}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": worker_name(pool.name)},
        "pollingInterval": POLL_SECONDS,
        "cooldownPeriod": 0,
        "minReplicaCount": low,
        "maxReplicaCount": high,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": [metrics_trigger(pool, server=f"http://{NAME}.{request.namespace}.svc:{PORT}")],
    }
    return made("keda.sh/v1alpha1", "ScaledObject", worker_name(pool.name), request, "worker", spec=spec)


def metrics_trigger(pool: PoolSpec, *, server: str) -> Object:
    """Return the trigger that reads the supervisor's number for a pool at a server's URL."""
    return {
        "type": "metrics-api",
        "metricType": "AverageValue",
        "metadata": {
            "url": f"{server}/v1/pools/{pool.name}/stats",
            "valueLocation": "desired_workers",
            "targetValue": "1",
            "activationTargetValue": "0",
            "authMode": "bearer",
        },
        "authenticationRef": {"name": NAME},
    }


def _authentication(request: ExportRequest, settings: Portable) -> Object:
    token = settings.token("viewer")
    assert token is not None
    target = {"parameter": "token", "name": SECRET, "key": token.name}
    return made("keda.sh/v1alpha1", "TriggerAuthentication", NAME, request, "queue", spec={"secretTargetRef": [target]})


def _check(pool: PoolSpec, request: ExportRequest, found: Findings) -> None:
    path = ("pools", pool.name)
    name = worker_name(pool.name)
    if not DNS_LABEL.fullmatch(name):
        most = 63 - len(NAME) - 1
        why = f"{name} is not a valid Kubernetes name: the pool's may have at most {most} characters and not end in -"
        found.wrong(path, why)
    if request.image_of(pool) is None:
        why = f"which image? give runtime: {{docker: {{image: NAME}}}}, or --image {pool.name}=NAME"
        found.wrong((*path, "runtime"), why)
    check_program(pool, found)
    check_placeholders(pool, found)
    check_command(pool, found)
    if settings := pool.containers:
        place = (*path, "runtime", pool.runtime_kind)
        if settings.volumes:
            found.warn((*place, "volumes"), "folders of a host are not exported: give the Deployment volumes")
        if settings.network is not None:
            found.warn((*place, "network"), "is not exported: pods have their own network")
        if settings.stop_signal != "SIGTERM":
            found.warn((*place, "stop_signal"), f"{settings.stop_signal}: Kubernetes sends the image's STOPSIGNAL")
        if settings.user is not None and not all(part.isdigit() for part in settings.user.split(":")):
            found.warn((*place, "user"), f"{settings.user}: write numbers for Kubernetes; the image's user is kept")


def _how(request: ExportRequest, settings: Portable) -> list[str]:
    """Return the comments that say how to use the file."""
    space = f"--namespace {request.namespace}"
    return [
        "Queue, supervisor and workers on Kubernetes, scaled by KEDA (2.13 or later) as the supervisor says.",
        "From `towline export --to keda`; change the settings file and export again rather than this file.",
        "",
        "Once, the secrets that it names:",
        *secret_commands(request, settings, space),
        "Then, and after every change:",
        f"  kubectl apply --server-side --filename {FILE}",
        "See what it does:",
        f"  kubectl exec {space} statefulset/{NAME} -- towline pools",
        f"  kubectl get scaledobject,hpa,deployment {space} --selector app.kubernetes.io/part-of={NAME}",
        f'Pods that add tasks carry the label {CLIENT_LABEL}: "true" and use http://{NAME}.{request.namespace}.svc:{PORT}.',
    ]


def secret_commands(request: ExportRequest, settings: Portable, space: str) -> list[str]:
    """Return the command lines that make the secrets which the objects name."""
    lines = [f"  kubectl create secret generic {SECRET} {space} \\"]
    given = [f"    {_secret_option(secret)}" for secret in settings.secrets]
    lines += [*[f"{one} \\" for one in given[:-1]], *given[-1:]]
    for pool in request.project.pools.values():
        if pool.containers and pool.containers.secrets:
            files = " ".join(f"--from-file={name}=..." for name in sorted(pool.containers.secrets))
            lines.append(f"  kubectl create secret generic {worker_name(pool.name)}-secrets {space} {files}")
    if variables_files(request):
        lines.append(f"  kubectl apply {space} --server-side --filename {VARIABLES_FILE}")
    return lines


def _secret_option(secret: ExportedSecret) -> str:
    if secret.file is not None:
        return f"--from-file={shlex.quote(f'{secret.name}={secret.file}')}"
    return f'--from-literal={secret.name}="${secret.env}"'
