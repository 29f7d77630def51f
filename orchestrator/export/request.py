"""What is to be exported, what comes of it, and why it may not be. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.config.pools import PoolSpec
from orchestrator.settings_file import Project
from queue_core.config.messages import SettingProblem
from queue_core.config.yaml_document import Document

Platform = Literal["keda", "compose", "systemd"]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A settings file that is right, as the file has it (`document`) and as it is meant (`project`).

    Args:
        images: images of workers by pool; "" for every other pool.
        server_image: the image of queue server and supervisor.
        namespace: of Kubernetes.
        program: how the `towline` command is called on a host.
        settings_path: where the settings file is on a host.
    """

    project: Project
    document: Document
    images: Mapping[str, str] = field(default_factory=dict)
    server_image: str = "towline:latest"
    namespace: str = "default"
    program: tuple[str, ...] = ("/usr/local/bin/towline",)
    settings_path: str = "/etc/towline/towline.yaml"

    def image_of(self, pool: PoolSpec) -> str | None:
        """The image of a pool's workers: what was asked for, then the file's, then the one for all others."""
        settings = pool.containers
        return self.images.get(pool.name) or (settings.image if settings else None) or self.images.get("")


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """Files by name, in the order in which they are to be read; and what is not quite as the settings say."""

    files: Mapping[str, str]
    warnings: Sequence[str] = ()


class ExportRefusedError(Exception):
    """The settings can't be had on that platform; `lines` tells every reason with its place."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class Findings:
    """What is wrong, and what is only to be known, gathered with the place in the file."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._mistakes: list[SettingProblem] = []
        self.warnings: list[str] = []

    def wrong(self, path: tuple[str | int, ...], message: str) -> None:
        """It can't be exported like this."""
        self._mistakes.append(SettingProblem(path, message))

    def warn(self, path: tuple[str | int, ...], message: str) -> None:
        """It can, but not everything of it comes along."""
        self.warnings.append(self._document.line_about(path, message))

    def check(self) -> None:
        """Raise `ExportRefusedError` with all that is wrong."""
        if self._mistakes:
            ordered = sorted(self._mistakes, key=lambda mistake: self._document.place(mistake.path))
            raise ExportRefusedError([self._document.line_about(one.path, one.message) for one in ordered])
