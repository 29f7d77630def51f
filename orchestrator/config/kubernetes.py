"""The settings of a worker that is a Pod. `runtimes/kubernetes/body.py` turns them into one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

import yaml
from pydantic import BeforeValidator, Field

from orchestrator.config.model import Count, FleetSettingsModel
from queue_core.config.units import Bytes, Seconds

MAX_CPUS: Final = 1_024.0
MIN_MEMORY_BYTES: Final = 6 * 2**20
"""The smallest memory limit that containers are given: with less, none starts."""
MAX_GPUS: Final = 64
MAX_PENDING: Final = 10_000
MAX_PATIENCE_SECONDS: Final = 3_600.0
GPU: Final = "nvidia.com/gpu"
NAME_PREFIX: Final = "towline-"
"""The beginning of a Pod's name; the rest is the worker's: its pool's, and six letters or digits."""
MAX_POOL_NAME_CHARS: Final = 63 - len(NAME_PREFIX) - len("-7f3k2q")
"""The longest name of a pool whose Pods have names that are also host names."""
OWN_LABELS: Final = "towline."
"""The prefix of the supervisor's own labels and annotations."""
WORKER_SECRET: Final = "towline-worker"  # noqa: S105  the object's name
"""The Secret with the workers' `token`, and their `url` where that contains a password."""
WITHOUT_REPLACEMENT: Final = ("max_pending", "image_patience")
"""Settings that the supervisor follows itself: a change replaces no worker."""

_NAME: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
_LABEL_KEY: Final = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"
_PLACE_IN_SECRETS: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9_.-]+$"
_QUANTITY_RESOURCE: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9_.-]*$"
_TEMPLATE_KEYS: Final = frozenset({"metadata", "spec"})

Json: TypeAlias = dict[str, object]


def _cpus(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r}: write a number of processors such as 2 or 0.5")  # noqa: TRY004
    return value


def _own(value: object) -> object:
    if isinstance(value, str) and value.startswith(OWN_LABELS):
        raise ValueError(f"{value}: labels that begin with {OWN_LABELS} are the supervisor's own; name it otherwise")
    return value


def _gpus(value: object) -> object:
    """Return the mapping that a bare number stands for."""
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _template(value: object) -> object:
    """Refuse an inline template that is none; a text is the path of its file."""
    return template_of(value) if isinstance(value, Mapping) else value


def template_of(document: object) -> Json:
    """Return the metadata and spec of a PodTemplate, a Pod, or a mapping with a spec. Raises `ValueError`."""
    if isinstance(document, Mapping) and isinstance(document.get("template"), Mapping):
        document = document["template"]
    if not isinstance(document, Mapping) or not isinstance(document.get("spec", {}), Mapping):
        raise ValueError("a template is a mapping with metadata and spec, as of a PodTemplate or a Pod")  # noqa: TRY004
    unknown = sorted(map(str, document.keys() - _TEMPLATE_KEYS - {"apiVersion", "kind", "status"}))
    if unknown:
        raise ValueError(f"{unknown[0]}: a template has metadata and spec, as a PodTemplate has; put it under spec")
    spec = document.get("spec", {})
    for key in ("containers", "initContainers", "volumes"):
        entries = spec.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(one, Mapping) and one.get("name") for one in entries):
            raise ValueError(f"spec.{key}: write a list, each with a name: they are merged by it")
    # As JSON has it: what YAML makes of a date is no value of Kubernetes.
    found = {key: document[key] for key in sorted(_TEMPLATE_KEYS & document.keys()) if document[key] is not None}
    return dict(json.loads(json.dumps(found, default=str)))


class Gpus(FleetSettingsModel):
    """Devices of a node that a worker gets for itself."""

    resource: str = Field(
        default=GPU, pattern=_QUANTITY_RESOURCE, examples=["amd.com/gpu"], description="Their resource's name."
    )
    count: Count = Field(ge=1, le=MAX_GPUS, description="Their number.")


class Toleration(FleetSettingsModel):
    """A taint of nodes on which its workers may run nevertheless."""

    key: str | None = Field(default=None, min_length=1, description="The taint's key; left out: any.")
    operator: Literal["Equal", "Exists"] | None = Field(default=None, description="How the value is compared.")
    value: str | None = Field(default=None, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect; left out: any."
    )
    tolerationSeconds: Count | None = Field(  # noqa: N815  as Kubernetes has it
        default=None, ge=0, description="How long a worker stays on a node that got the taint."
    )


class KubernetesSettings(FleetSettingsModel):
    """The settings of a worker that is a Pod."""

    image: str = Field(
        min_length=1,
        max_length=500,
        pattern=r"^[A-Za-z0-9][\w./:@-]*$",
        examples=["registry.example/thumbs:1.4.2"],
        description="The image of its container.",
    )
    memory: Bytes | None = Field(
        default=None, ge=MIN_MEMORY_BYTES, description="The memory it is given, and the most it may use."
    )
    cpus: Annotated[float, BeforeValidator(_cpus)] | None = Field(
        default=None, gt=0, le=MAX_CPUS, description="The processors it is given; it may use more where they are free."
    )
    cpu_limit: Annotated[float, BeforeValidator(_cpus)] | None = Field(
        default=None, gt=0, le=MAX_CPUS, description="The most processors it may use; left out: no limit."
    )
    gpus: Annotated[Gpus, BeforeValidator(_gpus)] | None = Field(
        default=None,
        examples=[{"count": 1}],
        description=f"Devices it gets: a number of {GPU}, or {{resource: NAME, count: N}}.",
    )
    service_account: str | None = Field(
        default=None,
        pattern=_NAME,
        examples=["thumbs"],
        description="Its ServiceAccount; left out: no token is mounted.",
    )
    secrets: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")], Annotated[str, Field(pattern=_PLACE_IN_SECRETS)]
    ] = Field(
        default_factory=dict,
        examples=[{"api-key": "thumbs/api-key"}],
        description="Keys of Secrets that it can read as /run/secrets/NAME, by name, as SECRET/KEY.",
    )
    worker_secret: str = Field(
        default=WORKER_SECRET,
        pattern=_NAME,
        examples=["thumbs-worker"],
        description="The Secret with the key token, the token of its workers; and url, where that contains a password.",
    )
    pull_secrets: tuple[Annotated[str, Field(pattern=_NAME)], ...] = Field(
        default=(), examples=[["registry"]], description="The Secrets by which its image is pulled."
    )
    priority_class: str | None = Field(default=None, pattern=_NAME, description="Its PriorityClass.")
    node_selector: dict[Annotated[str, Field(pattern=_LABEL_KEY)], str] = Field(
        default_factory=dict, examples=[{"disk": "ssd"}], description="Labels that its node must have."
    )
    tolerations: tuple[Toleration, ...] = Field(
        default=(),
        examples=[[{"key": "spot", "operator": "Exists"}]],
        description="Taints of nodes on which it may run, beside those of nodes that do not answer.",
    )
    max_pending: Count = Field(
        default=100, ge=1, le=MAX_PENDING, description="Pods of the pool that no node has yet, at most."
    )
    image_patience: Seconds = Field(
        default=30.0,
        le=MAX_PATIENCE_SECONDS,
        examples=["1m"],
        description="How long an image that can't be pulled is waited for, until the start has failed.",
    )
    node_patience: Seconds = Field(
        default=30.0,
        le=MAX_PATIENCE_SECONDS,
        examples=["2m"],
        description="How long a worker stays on a node that does not answer.",
    )
    protect: Literal["always", "never"] = Field(
        default="always", description="Whether cluster-autoscaler and Karpenter are to leave its node (always)."
    )
    template: Annotated[str | Json, BeforeValidator(_template)] | None = Field(
        default=None,
        examples=["worker-pod.yaml"],
        description="The rest of its Pods, as a PodTemplate or the path of its file; merged under these settings.",
    )
    namespace: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="Its namespace; left out: the supervisor's own, or that of the context.",
    )
    context: str | None = Field(
        default=None,
        min_length=1,
        description="The kubeconfig's context; left out: the cluster of the supervisor, or the current context.",
    )
    labels: dict[Annotated[str, BeforeValidator(_own), Field(pattern=_LABEL_KEY)], str] = Field(
        default_factory=dict, examples=[{"team": "images"}], description="Its labels, besides the supervisor's own."
    )
    pull: Literal["missing", "always", "never"] = Field(default="missing", description="When its image is pulled.")
    python: str = Field(
        default="python3",
        min_length=1,
        examples=["/opt/venv/bin/python"],
        description="The image's Python, which runs an `app`.",
    )
    url: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9+.-]*:.+$",
        examples=["http://towline.towline.svc:7878"],
        description="The URL at which it finds the queue; left out: the supervisor's.",
    )

    @property
    def engine(self) -> str | None:
        """The context and the namespace as a runtime's key; None for the supervisor's own."""
        if self.context is None and self.namespace is None:
            return None
        return f"{self.context or ''}/{self.namespace or ''}"

    @property
    def pod_template(self) -> Mapping[str, object]:
        """The template's metadata and spec; empty without one."""
        return self.template if isinstance(self.template, Mapping) else {}

    def beside(self, folder: Path) -> Self:
        """Return the same with the template that its file has; its path starts from `folder`. Raises `ValueError`."""
        if not isinstance(self.template, str):
            return self
        path = folder / self.template
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path}: the template can't be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: the template is no YAML: {' '.join(str(error).split())}") from error
        try:
            return self.model_copy(update={"template": template_of(document)})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
