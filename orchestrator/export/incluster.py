"""Export the supervisor that makes and ends its workers' Pods itself: its Deployment, its rights, their bounds. Pure.

Creating Pods in a namespace means reading its Secrets, and more if nothing bounds it: so the namespace is the fleet's
own, it enforces the restricted standard, and an admission policy bounds which Pods the supervisor's token can create
(ADR 151).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.config.kubernetes import MAX_POOL_NAME_CHARS, WORKER_SECRET, KubernetesSettings
from orchestrator.config.pools import PoolSpec
from orchestrator.export.kubernetes import (
    CLIENT_LABEL,
    GRACE_MARGIN_SECONDS,
    NAME,
    SECRET,
    STOP_SECONDS,
    USER,
    Object,
    labels,
    made,
    network_policies,
    nobody,
    service,
    settings_object,
    supervisor_container,
    variables_object,
    variables_secret,
)
from orchestrator.export.request import ExportedFiles, ExportRequest, Findings, header, yaml_of
from orchestrator.export.settings import (
    PORT,
    SECRETS_FOLDER,
    ExportedSecret,
    Portable,
    check_command,
    check_program,
    portable,
)
from orchestrator.runtimes.kubernetes.body import ANCHOR, FLEET_LABEL, WORKER, merged
from queue_core.config.store_urls import scheme_of

FILE: Final = "towline-kubernetes.yaml"
VARIABLES_FILE: Final = "towline-variables.yaml"
TOKEN_KEY: Final = "token"  # noqa: S105  the key's name
SHARED_STORES: Final = frozenset({"postgresql", "postgres", "redis", "rediss"})
"""Stores that two supervisors can have: one leads, the other takes over."""
NODE_PATIENCE_SECONDS: Final = 30
"""How long the supervisor's Pod stays on a node that does not answer: its cluster starts another elsewhere."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects of a fleet whose supervisor runs in its cluster: those of the cluster, and of its namespace."""

    settings: Portable
    of_cluster: Sequence[Object]
    of_namespace: Sequence[Object]
    warnings: Sequence[str]


def kubernetes(request: ExportRequest) -> ExportedFiles:
    """Return one file of manifests. Raises `ExportRefusedError`."""
    found = cluster_objects(request)
    space, *others = [*found.of_cluster, *found.of_namespace]
    text = header(_how(request, found.settings)) + yaml_of(space, *others)
    return ExportedFiles({FILE: text}, found.warnings, variables_files(request))


def cluster_objects(request: ExportRequest) -> ClusterObjects:
    """Return all objects. Raises `ExportRefusedError`."""
    found = Findings(request.document)
    pools = request.project.pools
    if not pools:
        found.wrong(("pools",), "there are no pools to run")
    for pool in pools.values():
        _check(pool, request, found)
    settings = portable(
        request,
        found,
        runtimes={name: _runtime_of(pool, request) for name, pool in pools.items()},
        roles=("worker",),
    )
    found.check()
    accounts = sorted({one.service_account for one in _settings_of(request) if one.service_account is not None})
    return ClusterObjects(
        settings,
        [_namespace(request), *admission_policy(request, accounts=accounts)],
        [
            made("v1", "ConfigMap", ANCHOR, request, "fleet", data={"about": _ANCHOR_TEXT}),
            made("v1", "ServiceAccount", NAME, request, "queue", automountServiceAccountToken=False),
            _role(request),
            _role_binding(request),
            settings_object(request, settings),
            service(request),
            *_network_policies(request),
            *_deployment(request, settings),
        ],
        found.warnings,
    )


def variables_files(request: ExportRequest) -> dict[str, str]:
    """Return the file of the Secrets with the pools' variables; none if no pool has any."""
    secrets = [variables_object(pool) for pool in request.project.pools.values() if pool.env]
    return {VARIABLES_FILE: yaml_of(*secrets)} if secrets else {}


def has_two(request: ExportRequest) -> bool:
    """Return whether the store can have two supervisors, of which one leads."""
    return scheme_of(request.project.queue_file.store.url) in SHARED_STORES


# -- the pools --------------------------------------------------------------------------------------------------------


def _settings_of(request: ExportRequest) -> list[KubernetesSettings]:
    found = [pool.runtime.kubernetes for pool in request.project.pools.values()]
    return [one for one in found if one is not None]


def _runtime_of(pool: PoolSpec, request: ExportRequest) -> object:
    """Return the pool's runtime as the supervisor in the cluster reads it: Pods, unless others start its workers."""
    image = request.image_of(pool)
    if pool.runtime_kind == "external" and pool.name not in request.images:
        return "external"
    given = pool.runtime.kubernetes
    plain: dict[str, object] = {}
    if given is not None:
        plain = given.model_dump(mode="json", exclude_defaults=True, exclude={"template", "context", "namespace"})
    elif pool.containers is not None:
        plain = _as_pod(pool)
    template = dict(given.pod_template) if given is not None else {}
    if pool.env:  # any may be a secret: it is in a Secret, and not in these settings (ADR 127)
        source = {"secretRef": {"name": variables_secret(pool)}}
        container = {"name": WORKER, "envFrom": [source]}
        template = merged({"spec": {"containers": [container]}}, template)
    url = given.url if given is not None and given.url is not None else f"http://{NAME}:{PORT}"
    return {"kubernetes": {**plain, "image": image, "url": url, **({"template": template} if template else {})}}


def _as_pod(pool: PoolSpec) -> dict[str, object]:
    """Return a container's settings that mean the same for a Pod."""
    known = pool.containers
    assert known is not None
    plain: dict[str, object] = {"pull": known.pull, "python": known.python}
    if known.memory is not None:
        plain["memory"] = int(known.memory)
    if known.cpus is not None:
        plain |= {"cpus": known.cpus, "cpu_limit": known.cpus}
    if known.secrets:
        secret = f"{NAME}-{pool.name}-secrets"
        plain["secrets"] = {name: f"{secret}/{name}" for name in sorted(known.secrets)}
    return plain


def _check(pool: PoolSpec, request: ExportRequest, found: Findings) -> None:
    path = ("pools", pool.name)
    if pool.runtime_kind == "external" and pool.name not in request.images:
        found.warn((*path, "runtime"), "external: its workers are not started by this supervisor")
        return
    if len(pool.name) > MAX_POOL_NAME_CHARS or pool.name.endswith("-"):
        found.wrong(
            path, f"a Pod's name has room for {MAX_POOL_NAME_CHARS} characters of the pool's, without - at its end"
        )
    if request.image_of(pool) is None:
        why = f"which image? give runtime: {{kubernetes: {{image: NAME}}}}, or --image {pool.name}=NAME"
        found.wrong((*path, "runtime"), why)
    settings = pool.runtime.kubernetes
    if settings is not None:
        place = (*path, "runtime", "kubernetes")
        for name in ("context", "namespace"):
            given = getattr(settings, name)
            if given not in (None, request.namespace if name == "namespace" else None):
                found.wrong(
                    (*place, name), f"{given}: this supervisor has rights in its own namespace only: leave it out"
                )
    elif pool.containers is not None and pool.containers.volumes:
        found.warn(
            (*path, "runtime", pool.runtime_kind, "volumes"), "folders of a host are not exported: use a template"
        )
    check_program(pool, found)
    check_command(pool, found)


# -- the objects ------------------------------------------------------------------------------------------------------

_ANCHOR_TEXT: Final = (
    "The owner of this fleet's worker Pods; its uid is the fleet's identity. Deleting it ends all workers."
)


def _namespace(request: ExportRequest) -> Object:
    enforced = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    metadata = {"name": request.namespace, "labels": {**labels("fleet"), **enforced}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _role(request: ExportRequest) -> Object:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [ANCHOR], "verbs": ["get"]},
    ]
    return made("rbac.authorization.k8s.io/v1", "Role", NAME, request, "queue", rules=rules)


def _role_binding(request: ExportRequest) -> Object:
    return made(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        NAME,
        request,
        "queue",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
        subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": request.namespace}],
    )


def admission_policy(request: ExportRequest, *, accounts: Sequence[str]) -> list[Object]:
    """Return the policy that bounds which Pods the supervisor's ServiceAccount can create, and its binding.

    `accounts`: the ServiceAccounts that workers may have; a Pod of another one has none, and no token.
    """
    name = f"{NAME}-{request.namespace}"
    user = f"system:serviceaccount:{request.namespace}:{NAME}"
    named = ", ".join(f"'{one}'" for one in accounts)
    all_containers = "(object.spec.containers + object.spec.?initContainers.orValue([]))"
    volumes = "object.spec.?volumes.orValue([])"
    validations = {
        "a Pod of this supervisor has its fleet's label": f"'{FLEET_LABEL}' in object.metadata.?labels.orValue({{}})",
        "a worker has one of the named ServiceAccounts, or default without a token": (
            f"object.spec.?serviceAccountName.orValue('default') in [{named}] || "
            "(object.spec.?serviceAccountName.orValue('default') == 'default' && "
            "!object.spec.?automountServiceAccountToken.orValue(true))"
        ),
        "a worker without a named ServiceAccount mounts no token": (
            f"object.spec.?serviceAccountName.orValue('default') in [{named}] || "
            f"!{volumes}.exists(v, v.?projected.?sources.orValue([]).exists(s, has(s.serviceAccountToken)))"
        ),
        "a worker mounts no folder of its node": f"!{volumes}.exists(v, has(v.hostPath))",
        "a worker does not use its node's network, processes or memory": (
            "!object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false) && "
            "!object.spec.?hostIPC.orValue(false)"
        ),
        "a worker uses no port of its node and is not privileged": (
            f"!{all_containers}.exists(c, c.?securityContext.?privileged.orValue(false) || "
            "c.?ports.orValue([]).exists(p, p.?hostPort.orValue(0) != 0))"
        ),
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["pods"],
                }
            ]
        },
        "matchConditions": [{"name": "of-the-supervisor", "expression": f"request.userInfo.username == '{user}'"}],
        "validations": [{"expression": rule, "message": message} for message, rule in validations.items()],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    api = "admissionregistration.k8s.io/v1"
    metadata = {"name": name, "labels": labels("fleet")}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": policy},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


def _network_policies(request: ExportRequest) -> list[Object]:
    """Let workers, clients, monitoring and the other replica reach the queue, and nobody reach workers."""
    workers: Object = {"matchExpressions": [{"key": FLEET_LABEL, "operator": "Exists"}]}
    allowed: list[Object] = [
        {"podSelector": workers},
        {"podSelector": {"matchLabels": labels("queue")}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {CLIENT_LABEL: "true"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    return network_policies(request, allowed=allowed, workers=workers)


def _deployment(request: ExportRequest, settings: Portable) -> list[Object]:
    """Return the supervisor's Deployment, and what goes with it: its disk, or a budget for its two replicas."""
    is_pair, has_file = has_two(request), scheme_of(request.project.queue_file.store.url) == "sqlite"
    container = supervisor_container(request, secrets=_secret_mounts(settings), limits={"memory": "512Mi"})
    state = {"persistentVolumeClaim": {"claimName": f"{NAME}-state"}} if has_file else {"emptyDir": {}}
    unreachable = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    pod: Object = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": STOP_SECONDS + GRACE_MARGIN_SECONDS,
        "securityContext": nobody(USER, USER) | {"fsGroup": USER},
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_PATIENCE_SECONDS}
            for key in unreachable
        ],
        "containers": [container],
        "volumes": [
            {"name": "state", **state},
            {"name": "settings", "configMap": {"name": f"{NAME}-settings"}},
            _secrets_volume(settings),
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if is_pair:
        spread = {"labelSelector": {"matchLabels": labels("queue")}, "topologyKey": "kubernetes.io/hostname"}
        preferred = [{"weight": 100, "podAffinityTerm": spread}]
        pod["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {
        "replicas": 2 if is_pair else 1,
        "strategy": rolling if is_pair else {"type": "Recreate"},
        "selector": {"matchLabels": labels("queue")},
        "template": {"metadata": {"labels": labels("queue")}, "spec": pod},
    }
    objects = [made("apps/v1", "Deployment", NAME, request, "queue", spec=spec)]
    if is_pair:
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": labels("queue")}}
        objects.append(made("policy/v1", "PodDisruptionBudget", NAME, request, "queue", spec=budget))
    if has_file:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
        objects.insert(0, made("v1", "PersistentVolumeClaim", f"{NAME}-state", request, "queue", spec=claim))
    return objects


def _secret_mounts(settings: Portable) -> list[Object]:
    """Return a mount for each secret: one of the folder would hide the ServiceAccount's token, which is below it."""
    return [
        {"name": "secrets", "mountPath": f"{SECRETS_FOLDER}/{one.name}", "subPath": one.name, "readOnly": True}
        for one in settings.secrets
    ]


def _secrets_volume(settings: Portable) -> Object:
    """Return the secrets of the server; the workers' token is from the Secret that workers mount, too."""
    worker = settings.token("worker")
    own = [{"key": one.name, "path": one.name} for one in settings.secrets if one is not worker]
    sources: list[object] = [{"secret": {"name": SECRET, "items": own}}] if own else []
    if worker is not None:
        sources.append({"secret": {"name": WORKER_SECRET, "items": [{"key": TOKEN_KEY, "path": worker.name}]}})
    return {"name": "secrets", "projected": {"sources": sources, "defaultMode": 0o440}}


# -- how it is used ---------------------------------------------------------------------------------------------------


def _how(request: ExportRequest, settings: Portable) -> list[str]:
    """Return the comments that say how to use the file."""
    space = f"--namespace {request.namespace}"
    return [
        "Queue and supervisor on Kubernetes 1.30 or later; the supervisor starts and stops its workers' Pods by name.",
        "From `towline export --to kubernetes`; change the settings file and export again rather than this file.",
        "",
        "Once: the namespace, and the secrets that it names:",
        f"  kubectl create namespace {request.namespace}",
        *secret_commands(request, settings, space),
        "Then, and after every change:",
        f"  kubectl apply --server-side --filename {FILE}",
        "The supervisor reads changed settings within about a minute, and replaces workers, new before old.",
        *watching_commands(request.namespace),
        f"End all workers, and remove the rest: kubectl delete --filename {FILE}",
    ]


def watching_commands(namespace: str) -> list[str]:
    """Return how to see what it does, and where tasks are added."""
    return [
        "See what it does:",
        f"  kubectl logs deployment/{NAME} --namespace {namespace} --follow",
        f"  kubectl get pods --namespace {namespace} --selector {FLEET_LABEL}",
        f'Pods that add tasks carry the label {CLIENT_LABEL}: "true" and use http://{NAME}.{namespace}.svc:{PORT}.',
    ]


def secret_commands(request: ExportRequest, settings: Portable, space: str) -> list[str]:
    """Return the command lines that make the secrets which the objects name."""
    worker = settings.token("worker")
    own = [one for one in settings.secrets if one is not worker]
    lines = []
    if own:
        given = [f"    {_option(one, one.name)}" for one in own]
        lines += [
            f"  kubectl create secret generic {SECRET} {space} \\",
            *[f"{one} \\" for one in given[:-1]],
            given[-1],
        ]
    if worker is not None:
        lines.append(f"  kubectl create secret generic {WORKER_SECRET} {space} {_option(worker, TOKEN_KEY)}")
    for pool in request.project.pools.values():
        if pool.containers and pool.containers.secrets:
            files = " ".join(f"--from-file={name}=..." for name in sorted(pool.containers.secrets))
            lines.append(f"  kubectl create secret generic {NAME}-{pool.name}-secrets {space} {files}")
    if variables_files(request):
        lines.append(f"  kubectl apply {space} --server-side --filename {VARIABLES_FILE}")
    return lines


def _option(secret: ExportedSecret, key: str) -> str:
    if secret.file is not None:
        return f"--from-file={shlex.quote(f'{key}={secret.file}')}"
    return f'--from-literal={key}="${secret.env}"'
