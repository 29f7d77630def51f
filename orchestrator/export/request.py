"""The request of an export, its result and its refusal; and values to YAML with comments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import yaml

from orchestrator.config.pools import PoolSpec
from orchestrator.settings_file import Project
from queue_core.config.messages import SettingProblem
from queue_core.config.yaml_document import Document

Platform = Literal["kubernetes", "keda", "helm", "crema", "compose", "systemd"]


@dataclass(frozen=True, slots=True)
class CloudRunPlace:
    """Project and region of Google Cloud, and the URL of the queue server; "" for what was not given."""

    project: str = ""
    region: str = ""
    server_url: str = ""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A valid settings file to export: as written (`document`) and as parsed (`project`).

    Args:
        images: images of workers by pool; "" for every other pool.
        server_image: the image of queue server and supervisor.
        namespace: the Kubernetes namespace.
        program: how the `towline` command is called on a host.
        settings_path: where the settings file is on a host.
        version: the release of Towline.
        cloud_run: the place on Cloud Run, and the queue server's address there.
    """

    project: Project
    document: Document
    images: Mapping[str, str] = field(default_factory=dict)
    server_image: str = "towline:latest"
    namespace: str = "default"
    program: tuple[str, ...] = ("/usr/local/bin/towline",)
    settings_path: str = "/etc/towline/towline.yaml"
    version: str = "0.0.0"
    cloud_run: CloudRunPlace = field(default_factory=CloudRunPlace)

    def image_of(self, pool: PoolSpec) -> str | None:
        """Return the image of a pool's workers: the pool's --image, the file's, or the --image for all pools."""
        settings = pool.runtime.kubernetes or pool.containers
        return self.images.get(pool.name) or (settings.image if settings else None) or self.images.get("")


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The files by name, in reading order; and warnings about settings that are not carried over fully.

    `private` are those with the values of pools' variables: never printed, and written for their owner alone (ADR 127).
    """

    files: Mapping[str, str]
    warnings: Sequence[str] = ()
    private: Mapping[str, str] = field(default_factory=dict)


class ExportRefusedError(Exception):
    """The settings don't fit the platform; `lines` lists every reason with its place in the file."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class Findings:
    """Collects errors and warnings with their place in the settings file."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[SettingProblem] = []
        self.warnings: list[str] = []

    def wrong(self, path: tuple[str | int, ...], message: str) -> None:
        """Add an error: the settings can't be exported like this."""
        self._problems.append(SettingProblem(path, message))

    def warn(self, path: tuple[str | int, ...], message: str) -> None:
        """Add a warning: the settings can be exported, but not completely."""
        self.warnings.append(self._document.line_about(path, message))

    def check(self) -> None:
        """Raise `ExportRefusedError` with all errors."""
        if self._problems:
            ordered = sorted(self._problems, key=lambda problem: self._document.place(problem.path))
            raise ExportRefusedError([self._document.line_about(one.path, one.message) for one in ordered])


def header(lines: Sequence[str]) -> str:
    """Return the lines as comments; a line break inside a line stays inside the comment."""
    return "".join(f"# {line}".rstrip() + "\n" for text in lines for line in (text.splitlines() or [""]))


# YAML 1.1 and 1.2 differ in what is a number (0o17, 12:30): a text that doesn't start like a word is quoted.
_WORDS: Final = re.compile(r"[A-Za-z/]")


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks and quotes ambiguous ones; never uses anchors."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _WORDS.match(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_of(*documents: Mapping[str, object]) -> str:
    """Return YAML documents. Texts that another reader might take for another type are quoted."""
    return yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=120,
        explicit_start=len(documents) > 1,
    )
