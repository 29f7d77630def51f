"""The settings of a pool's runtime: a process, an external program, or a container with its image and limits.

`runtimes/docker/create.py` turns them into requests to an engine.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_serializer
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from orchestrator.config.kubernetes import KubernetesSettings
from orchestrator.config.model import FleetSettingsModel
from queue_core.config.units import Bytes

MIN_MEMORY_BYTES: Final = 6 * 2**20
"""The smallest memory limit that the Docker Engine accepts."""
MAX_CPUS: Final = 1_024.0
OWN_LABELS: Final = "towline."
"""The prefix of the supervisor's own labels."""

RuntimeKind = Literal["process", "external", "docker", "swarm", "kubernetes"]

_VOLUME: Final = re.compile(r"(?P<source>[^:]+):(?P<target>/[^:]*)(?::(?P<mode>ro|rw))?")
_ENGINE_URL: Final = r"^(unix:///|tcp://|http://|https://|ssh://).+$"
_WITH_IMAGE: Final = ("docker", "swarm", "kubernetes")
_WRITE_A_RUNTIME: Final = (
    "write process, external, {docker: {image: NAME}}, {swarm: {image: NAME}} or {kubernetes: {image: NAME}}"
)


def _cpus(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r}: write a number of processors such as 2 or 0.5")  # noqa: TRY004
    return value


def _volume(value: object) -> object:
    if not isinstance(value, str) or not _VOLUME.fullmatch(value):
        raise ValueError(f"{value!r}: write SOURCE:/TARGET or SOURCE:/TARGET:ro, as in ./data:/data:ro")
    return value


def _label(value: object) -> object:
    if isinstance(value, str) and value.startswith(OWN_LABELS):
        raise ValueError(f"{value}: labels that begin with {OWN_LABELS} are the supervisor's own; name it otherwise")
    return value


class Volume(FleetSettingsModel):
    """One entry of `volumes`. A `source` with a / is a folder or file of the host, any other a named volume."""

    source: str
    target: str
    is_read_only: bool

    @property
    def is_path(self) -> bool:
        """True if it is a path of the host, and not a volume of the engine."""
        return "/" in self.source or self.source in {".", ".."}

    @classmethod
    def parse(cls, text: str) -> "Volume":
        """Parse SOURCE:/TARGET[:ro]. Raises `ValueError`."""
        found = _VOLUME.fullmatch(text)
        if found is None:
            raise ValueError(f"not a volume: {text}")
        return cls(source=found["source"], target=found["target"], is_read_only=found["mode"] == "ro")

    def written(self) -> str:
        """Return it as a file writes it."""
        return f"{self.source}:{self.target}{':ro' if self.is_read_only else ''}"


class ContainerSettings(FleetSettingsModel):
    """The settings of a worker's container."""

    image: str = Field(
        min_length=1,
        max_length=500,
        pattern=r"^[A-Za-z0-9][\w./:@-]*$",
        examples=["thumbs:1"],
        description="The image it is created from.",
    )
    memory: Bytes | None = Field(
        default=None, ge=MIN_MEMORY_BYTES, description="The most memory it may have, swap included."
    )
    cpus: Annotated[float, BeforeValidator(_cpus)] | None = Field(
        default=None, gt=0, le=MAX_CPUS, description="The most processors it may use, on average."
    )
    network: str | None = Field(
        default=None, min_length=1, description="The network it joins (host: the host's own); left out: the engine's."
    )
    volumes: tuple[Annotated[str, BeforeValidator(_volume)], ...] = Field(
        default=(),
        description="The host's files that it sees, as SOURCE:/TARGET[:ro]; a source without a / is a volume.",
    )
    secrets: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")], Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict, description="Files it can read as /run/secrets/NAME, by name."
    )
    user: str | None = Field(
        default=None,
        pattern=r"^[\w.-]+(:[\w.-]+)?$",
        examples=["1000:1000"],
        description="The user it runs as; left out: the image's.",
    )
    read_only: bool = Field(default=False, strict=True, description="A read-only root file system, with an empty /tmp.")
    init: bool = Field(
        default=True, strict=True, description="Run the engine's init as first process: it reaps and forwards signals."
    )
    stop_signal: str = Field(
        default="SIGTERM",
        pattern=r"^SIG[A-Z][A-Z0-9+-]{1,11}$",
        examples=["SIGTERM"],
        description="The signal that asks it to finish.",
    )
    pull: Literal["missing", "always", "never"] = Field(
        default="missing", description="When its image is pulled, before a supervisor's first start from it."
    )
    labels: dict[Annotated[str, BeforeValidator(_label), Field(min_length=1)], str] = Field(
        default_factory=dict, description="Its labels, besides the supervisor's own."
    )
    python: str = Field(default="python3", min_length=1, description="The image's Python, which runs an `app`.")
    engine: str | None = Field(
        default=None,
        pattern=_ENGINE_URL,
        examples=["unix:///var/run/docker.sock"],
        description="The engine's URL; left out: DOCKER_HOST, or the local one.",
    )
    url: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9+.-]*:.+$",
        examples=["http://queue.internal:7878"],
        description="The URL at which it finds the queue; left out: the supervisor's.",
    )

    def beside(self, folder: Path) -> Self:
        """Return the same with every path of the host absolute: a relative one starts from `folder`."""
        volumes = [Volume.parse(text) for text in self.volumes]
        placed = [
            one.model_copy(update={"source": str((folder / one.source).resolve())}) if one.is_path else one
            for one in volumes
        ]
        return self.model_copy(
            update={
                "volumes": tuple(one.written() for one in placed),
                "secrets": {name: str((folder / path).resolve()) for name, path in self.secrets.items()},
            }
        )


class SwarmSettings(ContainerSettings):
    """The settings of a worker that is a task of a swarm service. `engine` is a manager's."""

    secrets: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")], Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict, description="Secrets of the swarm that it can read as /run/secrets/NAME, by name."
    )
    constraints: tuple[Annotated[str, Field(pattern=r"^[\w.-]+\s*[!=]=\s*\S.*$")], ...] = Field(
        default=(), examples=[["node.labels.disk==ssd"]], description="Constraints on its nodes; all must hold."
    )
    nodes: dict[Annotated[str, Field(min_length=1)], Annotated[str, Field(pattern=_ENGINE_URL)]] = Field(
        default_factory=dict,
        description="Engines of other nodes, by hostname or id: workers there can be drained and killed one by one.",
    )

    def beside(self, folder: Path) -> Self:
        """Return the same with absolute paths; secrets are the swarm's and stay as they are."""
        return super().beside(folder).model_copy(update={"secrets": self.secrets})


class RuntimeSetting(FleetSettingsModel):
    """The runtime of a pool's workers. At most one of the fields is given; none means a process.

    A file writes a word, `process` or `external`, or a mapping with one key, `docker`, `swarm` or `kubernetes`.
    """

    docker: ContainerSettings | None = Field(default=None, description="A container of the Docker Engine.")
    swarm: SwarmSettings | None = Field(default=None, description="A task of a Docker Swarm service.")
    kubernetes: KubernetesSettings | None = Field(
        default=None,
        examples=[{"image": "registry.example/thumbs:1.4.2"}],
        description="A Pod of a Kubernetes cluster.",
    )
    external: Literal[True] | None = Field(default=None, description="Started by something else, as by KEDA.")

    @property
    def kind(self) -> RuntimeKind:
        """The kind of runtime, in one word."""
        if self.docker is not None:
            return "docker"
        if self.swarm is not None:
            return "swarm"
        if self.kubernetes is not None:
            return "kubernetes"
        return "external" if self.external else "process"

    @property
    def is_elsewhere(self) -> bool:
        """True if its workers use other hosts than the supervisor's: nothing of it bounds them."""
        return self.kind in {"external", "kubernetes"}

    @property
    def containers(self) -> ContainerSettings | None:
        """The settings of its containers; None if a worker is no container of an engine."""
        return self.docker or self.swarm

    @property
    def engine(self) -> str | None:
        """The engine or cluster that runs its workers, as the settings name it; None for the default one."""
        found = self.containers or self.kubernetes
        return None if found is None else found.engine

    @property
    def image(self) -> str | None:
        """The image that its workers run; None if they are programs of this host, or started by something else."""
        found = self.containers or self.kubernetes
        return None if found is None else found.image

    def beside(self, folder: Path) -> "RuntimeSetting":
        """Return the same with every path of the host absolute: a relative one starts from `folder`."""
        update = {
            "docker": self.docker and self.docker.beside(folder),
            "swarm": self.swarm and self.swarm.beside(folder),
            "kubernetes": self.kubernetes and self.kubernetes.beside(folder),
        }
        return self.model_copy(update=update)

    @model_serializer(mode="wrap")
    def _written(self, write: Callable[[object], dict[str, object]]) -> object:
        if self.image is None:
            return self.kind
        return {self.kind: write(self)[self.kind]}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        properties = schema.get("properties", {})
        choices: list[object] = [{"enum": ["process", "external"]}]
        for name in _WITH_IMAGE:
            inner = next(one for one in properties[name]["anyOf"] if one.get("type") != "null")
            choices.append(
                {"type": "object", "properties": {name: inner}, "required": [name], "additionalProperties": False}
            )
        schema.clear()
        schema.update({"anyOf": choices})
        return schema


PROCESS: Final = RuntimeSetting.model_construct()
EXTERNAL: Final = RuntimeSetting.model_construct(external=True)


def runtime_of(value: object) -> object:
    """Return the setting that a word of the file stands for; anything else unchanged. Raises `ValueError`."""
    if value == "process":
        return PROCESS
    if value == "external":
        return EXTERNAL
    if value in _WITH_IMAGE or (isinstance(value, Mapping) and list(value.values()) == [None]):
        value = value if isinstance(value, str) else next(iter(value))
        raise ValueError(f"{value}: needs an image at least: write {{{value}: {{image: NAME}}}}")
    if isinstance(value, Mapping):
        given = [name for name in RuntimeSetting.model_fields if name in value]
        if len(given) > 1 or not value:
            raise ValueError(f"{', '.join(given) or 'nothing given'}: {_WRITE_A_RUNTIME}")
    elif not isinstance(value, RuntimeSetting):
        raise ValueError(f"{value}: {_WRITE_A_RUNTIME}")  # noqa: TRY004  pydantic wants a ValueError
    return value


RuntimeChoice = Annotated[RuntimeSetting, BeforeValidator(runtime_of)]
"""The setting `runtime` of a pool."""
