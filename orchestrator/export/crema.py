"""Export Cloud Run worker pools, which Google's CREMA scales to our supervisor's numbers. Pure.

CREMA (Cloud Run External Metrics Autoscaling) runs KEDA's scalers outside of Kubernetes and sets a worker pool's number
of instances. Its configuration is strict: a member that it does not know is an error.
"""

import math
import re
import shlex
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from orchestrator.config.pools import PoolSpec, bounds_of
from orchestrator.export.keda import DNS_LABEL, STEP_SECONDS, metrics_trigger
from orchestrator.export.kubernetes import NAME, Object, worker_name
from orchestrator.export.request import CloudRunPlace, ExportedFiles, ExportRequest, Findings, header, yaml_of
from orchestrator.export.settings import (
    PORT,
    ExportedSecret,
    Portable,
    arguments_of,
    check_command,
    check_placeholders,
    check_program,
    environment_of,
    portable,
    variables_of,
)
from queue_core.config.store_urls import scheme_of

SETTINGS: Final = "towline.yaml"
SERVER: Final = "server.yaml"
CONFIG: Final = "crema.yaml"
POLL_SECONDS: Final = 10
GRACE_SECONDS: Final = 8.0
"""The part that a worker has of the 10 s between Cloud Run's SIGTERM and its SIGKILL."""
LEAST_MEMORY_MIB: Final = 512
"""The least that Cloud Run gives an instance of a worker pool."""
IMAGE: Final = "us-central1-docker.pkg.dev/cloud-run-oss-images/crema-v1/autoscaler:1.2"
BASE_IMAGE: Final = "us-central1-docker.pkg.dev/serverless-runtimes/google-24/runtimes/java25"
_PROJECT: Final = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION: Final = re.compile(r"[a-z]+-[a-z]+[0-9]+")


def crema(request: ExportRequest) -> ExportedFiles:
    """Return the settings, a service, a worker pool for each pool, and CREMA's file. Raises `ExportRefusedError`."""
    found = Findings(request.document)
    pools = request.project.pools
    if not pools:
        found.wrong(("pools",), "there are no pools to scale")
    _check_store(request, found)
    _check_log(request, found)
    for pool in pools.values():
        _check(pool, request, found)
    settings = portable(request, found, runtimes=dict.fromkeys(pools, "external"), roles=("worker", "viewer"))
    found.check()
    token = settings.token("worker")
    files = {
        SETTINGS: yaml_of(_secrets_as_variables(settings)),
        SERVER: header(_how(request, settings)) + yaml_of(_service(request, settings)),
        **{f"pool-{pool.name}.yaml": yaml_of(_worker_pool(request, pool, token)) for pool in pools.values()},
        CONFIG: yaml_of(_config(request, settings)),
    }
    return ExportedFiles(
        files,
        found.warnings,
        {_file_of(pool, name): text for pool in pools.values() for name, text in variables_of(pool).items()},
    )


def flaws_of(place: CloudRunPlace) -> list[str]:
    """Return a sentence for each part of the place that is missing or can't be meant."""
    url = urlsplit(place.server_url)
    flaws = []
    if not _PROJECT.fullmatch(place.project):
        flaws.append("--project: which project of Google Cloud? give its id, as in --project my-project")
    if not _REGION.fullmatch(place.region):
        flaws.append("--region: which region of Cloud Run? as in --region europe-west1")
    if url.scheme != "https" or not url.hostname:
        flaws.append("--server-url: where do workers reach the queue server? as in --server-url https://HOST")
    return flaws


def _check_store(request: ExportRequest, found: Findings) -> None:
    scheme = scheme_of(request.project.queue_file.store.url)
    if scheme in ("sqlite", "memory"):
        why = f"{scheme}: an instance on Cloud Run loses its disk when it ends: use postgresql: or redis:"
        found.wrong(("store",), why)


def _check_log(request: ExportRequest, found: Findings) -> None:
    raw = request.document.data
    if isinstance(raw, Mapping) and raw.get("log"):
        found.warn(("log",), "is not exported: a file of an instance is in its memory; the log goes to stderr")


def _check(pool: PoolSpec, request: ExportRequest, found: Findings) -> None:
    path, name = ("pools", pool.name), worker_name(pool.name)
    if not DNS_LABEL.fullmatch(name):
        found.wrong(path, f"{name} is no name on Cloud Run: at most 63 of a-z, 0-9 and -, and no - at its end")
    if request.image_of(pool) is None:
        why = f"which image? give runtime: {{docker: {{image: NAME}}}}, or --image {pool.name}=NAME"
        found.wrong((*path, "runtime"), why)
    check_program(pool, found)
    check_placeholders(pool, found)
    check_command(pool, found)
    if pool.grace > GRACE_SECONDS:
        why = f"{pool.grace:g} s are {GRACE_SECONDS:g} s here: Cloud Run kills an instance 10 s after SIGTERM"
        found.warn((*path, "grace"), why)
    if settings := pool.containers:
        place = (*path, "runtime", pool.runtime_kind)
        for setting in ("volumes", "secrets", "network", "user", "read_only"):
            if getattr(settings, setting):
                found.warn((*place, setting), "is not exported: Cloud Run has its own")


def _secrets_as_variables(settings: Portable) -> Mapping[str, object]:
    """Return the settings with each secret in a variable: Cloud Run mounts no two secrets into one folder."""
    data = {key: value for key, value in settings.data.items() if key != "log"}
    store, server = data["store"], data["server"]
    if isinstance(store, Mapping):
        password = next(one for one in settings.secrets if not one.role)
        data["store"] = {"url": store["url"], "password_env": variable_of(password)}
    assert isinstance(server, Mapping)
    tokens = zip(server["tokens"], (one for one in settings.secrets if one.role), strict=True)
    data["server"] = {
        **server,
        "tokens": [
            {**{key: value for key, value in token.items() if key != "token_file"}, "token_env": variable_of(secret)}
            for token, secret in tokens
        ],
    }
    return data


def variable_of(secret: ExportedSecret) -> str:
    """Return the variable in which the queue server finds a secret."""
    return f"TOWLINE_{secret.name.upper().replace('-', '_')}"


def _given(name: str, secret: ExportedSecret) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": f"{NAME}-{secret.name}", "key": "latest"}}}


def _service(request: ExportRequest, settings: Portable) -> Object:
    """Return the queue server with its supervisor: one instance, always there, whose processor is never taken away."""
    container: Object = {
        "image": request.server_image,
        "command": ["towline"],
        "args": ["up", f"/etc/{NAME}/{SETTINGS}"],
        "ports": [{"name": "http1", "containerPort": PORT}],
        "env": [_given(variable_of(secret), secret) for secret in settings.secrets],
        "resources": {"limits": {"cpu": "1", "memory": f"{LEAST_MEMORY_MIB}Mi"}},
        "startupProbe": {"httpGet": {"path": "/livez", "port": PORT}, "periodSeconds": 2, "failureThreshold": 30},
        "livenessProbe": {"httpGet": {"path": "/v1/supervisor/livez", "port": PORT}, "periodSeconds": 10},
        "volumeMounts": [{"name": "settings", "mountPath": f"/etc/{NAME}"}],
    }
    items = [{"key": "latest", "path": SETTINGS}]
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            # Its callers present Towline's tokens where Cloud Run would look for one of its own.
            "annotations": {"run.googleapis.com/invoker-iam-disabled": "true"},
        },
        "spec": {
            "template": {
                "metadata": {
                    "annotations": {
                        "autoscaling.knative.dev/minScale": "1",
                        "autoscaling.knative.dev/maxScale": "1",
                        "run.googleapis.com/cpu-throttling": "false",
                    }
                },
                "spec": {
                    "containerConcurrency": 1000,
                    "timeoutSeconds": 3600,
                    "containers": [container],
                    "volumes": [{"name": "settings", "secret": {"secretName": f"{NAME}-settings", "items": items}}],
                },
            }
        },
    }


def _worker_pool(request: ExportRequest, pool: PoolSpec, token: ExportedSecret | None) -> Object:
    """Return a pool's workers, without a number of instances: CREMA sets it."""
    environment = dict(environment_of(pool, url=request.cloud_run.server_url))
    environment["TOWLINE_GRACE_SECONDS"] = f"{min(pool.grace, GRACE_SECONDS):g}"
    container: Object = {
        "image": request.image_of(pool),
        "command": arguments_of(pool),
        "env": [{"name": name, "value": text} for name, text in sorted(environment.items())],
        "resources": {"limits": _limits(pool)},
    }
    if token is not None:
        container["env"] = [*_listed(container["env"]), _given("TOWLINE_TOKEN", token)]
    for name in variables_of(pool):
        place = {"secretKeyRef": {"name": _secret_of(pool, name), "key": "latest"}}
        container["env"] = [*_listed(container["env"]), {"name": name, "valueFrom": place}]
    if pool.cwd is not None and pool.containers is not None:
        container["workingDir"] = pool.cwd
    return {
        "apiVersion": "run.googleapis.com/v1",
        "kind": "WorkerPool",
        "metadata": {"name": worker_name(pool.name)},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def _secret_of(pool: PoolSpec, variable: str) -> str:
    """Return the name of the secret that has a variable of the pool's."""
    return f"{worker_name(pool.name)}-{variable}"


def _file_of(pool: PoolSpec, variable: str) -> str:
    """Return the file that has the value of that secret, byte for byte."""
    return f"variables/{pool.name}/{variable}"


def _listed(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _limits(pool: PoolSpec) -> Object:
    """Return whole processors, of which there is at least one, and the memory."""
    settings = pool.containers
    memory = math.ceil(int(settings.memory) / 2**20) if settings and settings.memory is not None else 0
    cpus = math.ceil(settings.cpus) if settings and settings.cpus is not None else 0
    return {"cpu": str(max(1, cpus)), "memory": f"{max(LEAST_MEMORY_MIB, memory)}Mi"}


def _config(request: ExportRequest, settings: Portable) -> Object:
    """Return CREMA's configuration: where the numbers are, and what follows them."""
    token = settings.token("viewer")
    assert token is not None
    secrets = [{"parameter": "token", "id": f"{NAME}-{token.name}", "version": "latest"}]
    return {
        "apiVersion": "crema/v1",
        "kind": "CremaConfig",
        "spec": {
            "pollingInterval": POLL_SECONDS,
            "triggerAuthentications": [
                {"metadata": {"name": NAME}, "spec": {"gcpSecretManager": {"secrets": secrets}}}
            ],
            "scaledObjects": [{"spec": _scaled(request, pool)} for pool in request.project.pools.values()],
        },
    }


def _scaled(request: ExportRequest, pool: PoolSpec) -> Object:
    place = request.cloud_run
    low, high = bounds_of(pool)
    at_once = {"policies": [{"type": "Pods", "value": max(1, high), "periodSeconds": STEP_SECONDS}]}
    behavior = {side: {"stabilizationWindowSeconds": 0, **at_once} for side in ("scaleUp", "scaleDown")}
    target = f"projects/{place.project}/locations/{place.region}/workerpools/{worker_name(pool.name)}"
    return {
        "scaleTargetRef": {"name": target},
        "minReplicaCount": low,
        "maxReplicaCount": max(1, high),
        "triggers": [{"name": pool.name, **metrics_trigger(pool, server=place.server_url.rstrip("/"))}],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
    }


def _how(request: ExportRequest, settings: Portable) -> list[str]:
    """Return the comments that say how to use the files."""
    place = request.cloud_run
    here = f"--project={place.project} --region={place.region}"
    lines = [
        "Queue and supervisor on Cloud Run, and worker pools that CREMA scales as the supervisor says.",
        "From `towline export --to crema`; change the settings file and export again rather than these files.",
        "",
        "Once, the secrets, for the service account of the service and of the pools to read:",
    ]
    create = f"gcloud secrets create --project={place.project}"
    lines += [
        f"  {_secret_command(secret)} | {create} {NAME}-{secret.name} --data-file=-" for secret in settings.secrets
    ]
    for pool in request.project.pools.values():
        lines += [
            f"  {create} {_secret_of(pool, name)} --data-file={_file_of(pool, name)}" for name in variables_of(pool)
        ]
    lines += [
        f"  {create} {NAME}-settings --data-file={SETTINGS}",
        "The service and the pools, now and after every change:",
        f"  gcloud run services replace {SERVER} {here}",
    ]
    for pool in request.project.pools.values():
        lines.append(f"  gcloud beta run worker-pools replace pool-{pool.name}.yaml {here}")
    version = f"projects/{place.project}/locations/global/parameters/{NAME}-crema/versions/1"
    lines += [
        "CREMA, once; after a change a new version, and the service again with its number:",
        f"  gcloud parametermanager parameters create {NAME}-crema --project={place.project} --location=global \\",
        "    --parameter-format=YAML",
        f"  gcloud parametermanager parameters versions create 1 --project={place.project} --location=global \\",
        f"    --parameter={NAME}-crema --payload-data-from-file={CONFIG}",
        f"  gcloud run deploy {NAME}-crema {here} --image={IMAGE} \\",
        f"    --base-image={BASE_IMAGE} --no-allow-unauthenticated --no-cpu-throttling --scaling=1 \\",
        f"    --set-env-vars=CREMA_CONFIG={version}",
    ]
    return lines


def _secret_command(secret: ExportedSecret) -> str:
    if secret.file is not None:
        return f"cat {shlex.quote(secret.file)}"
    return f'printf %s "${secret.env}"'
