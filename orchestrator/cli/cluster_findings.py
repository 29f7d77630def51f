"""Check the clusters that pools of Pods need: what we may do there, and whether each pool's Pod would be accepted."""

import os
from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError, SpawnError
from orchestrator.cli.finding import Finding, Level
from orchestrator.config.kubernetes import KubernetesSettings
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.docker.container_state import at, text
from orchestrator.runtimes.kubernetes import body
from orchestrator.runtimes.kubernetes.access import Access
from orchestrator.runtimes.kubernetes.api import Api, ApiError
from orchestrator.settings_file import Project

RIGHTS: Final = (
    ("create", "pods", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("get", "pods", ""),
    ("delete", "pods", ""),
    ("get", "configmaps", body.ANCHOR),
    ("get", "pods/log", ""),
)
"""Calls of the supervisor, each with its resource and the name of the only object; the last is for `towline logs`."""
_PROBE: Final = "doctor"
_NO_FLEET: Final = "00000000-0000-0000-0000-000000000000"


def cluster_findings(project: Project | None, *, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check each cluster and namespace that a pool needs, then those pools. Nothing is changed there."""
    served: dict[str, list[tuple[PoolSpec, KubernetesSettings]]] = {}
    for pool in project.pools.values() if project is not None else ():
        settings = pool.runtime.kubernetes
        if settings is not None:
            served.setdefault(settings.engine or "", []).append((pool, settings))
    if project is None:
        return
    url = project.queue_file.server.url(project.directory)
    for pools in served.values():
        yield from _namespace(pools, url=url, environment=environment)


def _namespace(
    pools: list[tuple[PoolSpec, KubernetesSettings]], *, url: str, environment: Mapping[str, str]
) -> Iterator[Finding]:
    names = ", ".join(pool.name for pool, _ in pools)
    settings = pools[0][1]
    api = None
    try:
        api = Api(Access.found(settings.context, environment=environment), settings.namespace)
        wrong = [*_rights(api), *(one for pool, known in pools for one in _pool(api, pool, known, url=url))]
        fleet = _fleet(api)
    except RuntimeUnavailableError as error:
        fix = "name the cluster by KUBECONFIG or the pools' context; in a cluster, give the Pod its ServiceAccount"
        yield Finding("kubernetes", "bad", f"{error}; needed by {names}", fix)
        return
    except ApiError as error:
        yield Finding(
            "kubernetes", "bad", f"{error}; needed by {names}", "give the ServiceAccount the rights of its Role"
        )
        return
    finally:
        if api is not None:
            api.close()
    where = f"context {api.access.context}, namespace {api.namespace}"
    yield Finding("kubernetes", "ok", f"{api.url} answers: {where}; for {names}")
    if not fleet:
        make = f"`kubectl create configmap {body.ANCHOR} --namespace {api.namespace}`"
        yield Finding("kubernetes", "bad", f"{where} has no ConfigMap {body.ANCHOR}, which owns the fleet's Pods", make)
    yield from wrong


def _rights(api: Api) -> Iterator[Finding]:
    """Ask the apiserver for each right that we need."""
    for verb, resource, name in RIGHTS:
        kind, _, part = resource.partition("/")
        attributes = {"namespace": api.namespace, "verb": verb, "resource": kind, "subresource": part, "name": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: given for key, given in attributes.items() if given}},
        }
        answer = api.create("selfsubjectaccessreviews", review)
        if at(answer, "status", "allowed") is not True:
            what = f"{verb} {resource}{' ' + name if name else ''}"
            level: Level = "warn" if part else "bad"
            fix = f"a Role in {api.namespace} with it, as `towline export --to kubernetes` writes one"
            yield Finding("kubernetes", level, f"we may not {what} in namespace {api.namespace}", fix)


def _fleet(api: Api) -> str:
    try:
        return text(at(api.get("configmaps", body.ANCHOR), "metadata", "uid"))
    except ApiError as error:
        if error.is_missing:
            return ""
        raise


def _pool(api: Api, pool: PoolSpec, settings: KubernetesSettings, *, url: str) -> Iterator[Finding]:
    """Send a pool's Pod as a dry run: quota, admission and PodSecurity are asked as for a real one."""
    worker = f"{pool.name}-{_PROBE}"
    launch = Launch(url, ".", "", 60.0)
    request = SpawnRequest(worker, pool, launch.environment(worker, pool))
    marks = body.PodMarks(body.pod_name(worker), _NO_FLEET, _PROBE, SystemMonotonicClock().wall_seconds())
    place = f"pool {pool.name}"
    try:
        api.create("pods", body.pod_body(request, settings, marks), is_dry_run=True)
    except SpawnError as error:
        if isinstance(error, RuntimeUnavailableError):
            raise
        yield Finding(
            "kubernetes", "bad", str(error), "let the server listen on an address that Pods reach, or give url"
        )
    except ApiError as error:
        yield Finding(
            "kubernetes", "bad", f"{place}: its Pod is refused: {error}", "change the pool's settings or template"
        )
