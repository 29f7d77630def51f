"""Build an image from this machine's Python with Towline in it, without a registry.

The image is complete: its containers run without mounts, as any user, with a read-only root.
"""

import hashlib
import io
import py_compile
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath
from typing import IO, Final

import docker
from docker.errors import DockerException, ImageNotFound

from tests.support.docker.image_files import (
    OWN_PACKAGES,
    PROGRAMS,
    NoImageError,
    Placed,
    library_files,
    merged_folders,
    package_files,
    program_files,
    python_files,
    this_interpreter,
)

DISTRIBUTION: Final = "towline"
CONTENT_LABEL: Final = "towline.image"
"""The label with the digest of an image's contents; an image with the same digest is not built again."""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USERS: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"
_NSSWITCH: Final = "passwd: files\ngroup: files\nhosts: files dns\n"


@dataclass(frozen=True, slots=True)
class Image:
    """The contents of an image: files of this machine, and small generated texts by their path in the image.

    `command` is what a container runs by default.
    """

    files: tuple[Placed, ...]
    texts: Mapping[str, str]
    command: tuple[str, ...] = ("python3",)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """A digest of every path with its size and modification time."""
        digest = hashlib.sha256(repr((sorted(self.texts.items()), self.command)).encode())
        for placed in self.files:
            stat = placed.source.stat() if placed.source is not None else None
            key = (placed.path, placed.link, (stat.st_size, stat.st_mtime_ns) if stat else None)
            digest.update(repr(key).encode())
        return digest.hexdigest()[:16]

    def changes(self) -> list[str]:
        """The image's settings as Dockerfile instructions."""
        command = ", ".join(f'"{word}"' for word in self.command)
        variables = {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **self.environment}
        changes = [f"ENV {name}={value}" for name, value in variables.items()]
        return [*changes, f"CMD [{command}]", f"LABEL {CONTENT_LABEL}={self.digest}"]


def towline_image(*, more: Iterable[Placed] = (), programs: Iterable[str] = PROGRAMS) -> Image:
    """Return an image with this interpreter, its library, Towline with its requirements, a shell and some programs.

    `more` adds further files. Raises `NoImageError`.
    """
    python = this_interpreter()
    files = [*python_files(python), *package_files(DISTRIBUTION, at=str(python.packages)), *more]
    command = f"#!{python.program}\nimport sys\nfrom orchestrator.cli import main\nsys.exit(main())\n"
    return image_of(files, programs=programs, texts={"/usr/local/bin/towline": command})


def image_of(
    files: Sequence[Placed], *, programs: Iterable[str] = PROGRAMS, texts: Mapping[str, str] | None = None
) -> Image:
    """Return an image of these files with all libraries they load. Raises `NoImageError`."""
    whole = [*files, *program_files(programs)]
    whole += library_files(whole)
    unique = {placed.path: placed for placed in [*merged_folders(), *whole]}
    made_up = {"/etc/passwd": _USERS, "/etc/group": _GROUPS, "/etc/nsswitch.conf": _NSSWITCH, **(texts or {})}
    return Image(tuple(unique.values()), made_up)


def ensure_image(client: docker.APIClient, image: Image, *, name: str) -> bool:
    """Build `image` under `name` ("towline-test:latest") unless the engine has it; return True if it was built.

    Raises `NoImageError` when the engine refuses it.
    """
    try:
        labels = client.inspect_image(name)["Config"].get("Labels") or {}
    except ImageNotFound:
        labels = {}
    if labels.get(CONTENT_LABEL) == image.digest:
        return False
    repository, _, tag = name.partition(":")
    with tempfile.TemporaryFile() as file:
        write_tar(image, file)
        file.seek(0)
        try:
            client.import_image_from_data(file, repository=repository, tag=tag or "latest", changes=image.changes())
            client.inspect_image(name)
        except (DockerException, OSError) as error:
            raise NoImageError(f"the engine did not take the image {name}: {error}") from error
    return True


def write_tar(image: Image, file: IO[bytes]) -> None:
    """Write the image's root file system, each folder before its contents, everything readable by all."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        made: set[str] = {placed.path.lstrip("/") for placed in image.files if placed.link}
        _add_folder(archive, "tmp", made, mode=0o1777)
        for placed in image.files:
            _add_parents(archive, placed.path, made)
            if placed.source is None:
                link = _info(placed.path, mode=0o777)
                link.type, link.linkname = tarfile.SYMTYPE, placed.link
                archive.addfile(link)
            else:
                _add_source(archive, placed.path, placed.source, made)
        for path, text in image.texts.items():
            _add_parents(archive, path, made)
            _add_bytes(archive, path, text.encode(), mode=0o755 if path.startswith("/usr/local/bin/") else 0o644)


def _add_source(archive: tarfile.TarFile, path: str, source: Path, made: set[str]) -> None:
    stat = source.stat()
    mode = 0o755 if stat.st_mode & 0o100 else 0o644
    content = source.read_bytes()
    _add_bytes(archive, path, content, mode=mode, changed_at=int(stat.st_mtime))
    if path.endswith(".py"):
        compiled = _cached(source, int(stat.st_mtime)) or _compiled(source, shown=path)
        if compiled is not None:
            cached = str(PurePosixPath(path).parent / "__pycache__" / Path(cache_from_source(str(source))).name)
            _add_parents(archive, cached, made)
            _add_bytes(archive, cached, compiled, mode=0o644)


def _cached(source: Path, changed_at: int) -> bytes | None:
    """Return the module's cached byte code, unless it is older than the module."""
    try:
        content = Path(cache_from_source(str(source))).read_bytes()
    except OSError:
        return None
    flags, at = (int.from_bytes(content[first : first + 4], "little") for first in (4, 8))
    return content if flags == 0 and at == changed_at & 0xFFFFFFFF else None


def _compiled(source: Path, *, shown: str) -> bytes | None:
    """Return the byte code of one of our own modules, so that containers need not compile it at each start.

    Return None for others: modules never imported here are not needed there, and compiling all of them takes 10 s.
    """
    if not OWN_PACKAGES.intersection(source.parts):
        return None
    with tempfile.NamedTemporaryFile(suffix=".pyc") as draft:
        try:
            py_compile.compile(str(source), cfile=draft.name, dfile=shown, doraise=True)
        except py_compile.PyCompileError:
            return None
        return Path(draft.name).read_bytes()


def _add_parents(archive: tarfile.TarFile, path: str, made: set[str]) -> None:
    for parent in reversed(PurePosixPath(path.lstrip("/")).parents):
        if str(parent) != "." and str(parent) not in made:
            _add_folder(archive, str(parent), made)


def _add_folder(archive: tarfile.TarFile, name: str, made: set[str], *, mode: int = 0o755) -> None:
    made.add(name)
    info = _info(name, mode=mode)
    info.type = tarfile.DIRTYPE
    archive.addfile(info)


def _add_bytes(archive: tarfile.TarFile, path: str, content: bytes, *, mode: int, changed_at: int = 0) -> None:
    info = _info(path, mode=mode)
    info.size, info.mtime = len(content), changed_at
    archive.addfile(info, io.BytesIO(content))


def _info(path: str, *, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.lstrip("/"))
    info.mode = mode
    return info


__all__ = ["Image", "NoImageError", "Placed", "ensure_image", "image_of", "towline_image", "write_tar"]
