"""What is to be exported, what comes of it, and why it may not be. Values only."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import yaml

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


def header(lines: Sequence[str]) -> str:
    """Comments; a line break inside a line stays inside the comment."""
    return "".join(f"# {line}".rstrip() + "\n" for text in lines for line in (text.splitlines() or [""]))


# Readers of YAML 1.1 and 1.2 differ in what is a number (0o17, 12:30): what does not begin like a word is quoted.
_WORDS: Final = re.compile(r"[A-Za-z/]")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, where YAML can have them so; else quoted. Nothing refers to anything else."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _WORDS.match(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_of(*documents: Mapping[str, object]) -> str:
    """YAML documents. Texts that another reader would take for something else are quoted."""
    return yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=120,
        explicit_start=len(documents) > 1,
    )
