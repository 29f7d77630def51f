"""The files of an application that is imported, so that a change of one of them is noticed.

Files that it reads otherwise, such as settings and models, are not among them.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from queue_core.clock import Instant


class FileVersion(NamedTuple):
    """One version of a file. Times are in nanoseconds since the epoch.

    `modified_ns` comes with the content and may be an old one (an unpacked archive); `changed_ns` is when the file was
    written, moved here or given other rights, by the clock of its host.
    """

    modified_ns: int
    size_bytes: int
    changed_ns: int

    def has_content_of(self, other: "FileVersion | None") -> bool:
        """Return whether nothing tells that the content differs."""
        return other is not None and self[:2] == other[:2]


_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
"""Also where a `.pth` file or PYTHONPATH leads to those of another environment."""


def imported_files() -> dict[str, FileVersion]:
    """Return the files of all modules outside the standard library and the folders of installed packages.

    A module in an archive stands for the archive. A file that is gone is left out.
    """
    found = {}
    for _, file, values in application_modules():
        path = str(getattr(values.get("__loader__"), "archive", None) or file)
        version = version_of(path)
        if version is not None:
            found[path] = version
    return found


def changed_files(known: Mapping[str, FileVersion]) -> list[str]:
    """Return the files that were changed, replaced or removed since `imported_files` saw them, sorted."""
    return sorted(path for path, version in known.items() if not version.has_content_of(version_of(path)))


def written_since(began_at: Instant, files: Mapping[str, FileVersion]) -> list[str]:
    """Return the files that were written after `began_at`, sorted."""
    return sorted(path for path, version in files.items() if version.changed_ns > began_at * 1000)


def application_modules() -> list[tuple[str, str, dict[str, object]]]:
    """Return the name, file and values of each module that is not the standard library's nor an installed one.

    A module that loads itself at its first use is left as it is.
    """
    found = []
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType):
            values: dict[str, object] = object.__getattribute__(module, "__dict__")
            path = values.get("__file__")
            if isinstance(path, str) and is_of_application(path):
                found.append((name, path, values))
    return found


def is_of_application(path: str) -> bool:
    """Return whether a file is neither the standard library's nor an installed package's."""
    if path.startswith("<frozen"):
        return False
    return not str(Path(path).absolute()).startswith(_library_folders()) and _PACKAGE_FOLDERS.isdisjoint(
        Path(path).parts
    )


def version_of(path: str) -> FileVersion | None:
    """Return the file's version as it is now; None where there is no such file."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return FileVersion(status.st_mtime_ns, status.st_size, status.st_ctime_ns)


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    real = {str(Path(folder).resolve()) for folder in folders}
    return tuple(sorted(f"{folder}{os.sep}" for folder in folders | real))
