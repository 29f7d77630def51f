"""Find the files for an image that runs Python: the interpreter, its library, packages, a shell.

Nothing is downloaded or changed; each file is returned with its path in the image.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAMS: Final = ("sh", "sleep", "echo", "env", "cat", "ls", "kill", "true", "false", "id", "mkdir", "rm", "touch")
"""Programs a shell-form command may need; missing ones are left out."""
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSTALLED_EXTRAS: Final = frozenset({"postgres", "redis"})
"""Towline's extras that are included when they are installed."""
OWN_PACKAGES: Final = frozenset({"queue_core", "orchestrator"})
_MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_NOT_TAKEN: Final = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "tkinter"}
)
_NOT_NEEDED: Final = re.compile(r"^(_tkinter|_test|_ctypes_test|xxlimited|_xx).*\.so$|.*\.(pyc|a|pyi|c|pxd|pyx|h)$")
_NOT_PACKAGED: Final = frozenset({"tests", "test", "sqlite_extra_binaries"})
_LIBRARY: Final = re.compile(r"^\s+(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)$")
_REQUIREMENT: Final = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>.*)$", re.DOTALL)
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"](?P<name>[^'"]+)['"]""")


class NoImageError(Exception):
    """An image can't be made from this machine's Python; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A file of this machine and its absolute path in the image; with `link`, a symbolic link to that."""

    path: str
    source: Path | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python under any virtual environment: its program, its library and its packages folder."""

    program: Path
    library: Path
    packages: Path

    @property
    def version(self) -> str:
        """The version in the names of its programs: "3.11"."""
        return f"{sys.version_info[0]}.{sys.version_info[1]}"


def this_interpreter() -> Interpreter:
    """Return the interpreter that runs this. Raises `NoImageError` when it can't be determined."""
    program = Path(os.path.realpath(sys.executable))
    call = [str(program), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(call, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    library = Path(sysconfig.get_path("stdlib"))
    if not packages or not (library / "os.py").is_file():
        raise NoImageError(f"{program}: a Python without its library in {library}; run this with another one")
    return Interpreter(program, library, Path(packages))


def python_files(python: Interpreter) -> list[Placed]:
    """Return the interpreter under its own path, so that it finds its library, and `python3` as a link to it."""
    taken = [_placed(python.program)]
    taken += [
        Placed(f"/usr/local/bin/{name}", link=str(python.program))
        for name in ("python", "python3", f"python{python.version}")
        if f"/usr/local/bin/{name}" != str(python.program)
    ]
    home = _real(python.library)
    return [*taken, *tree(python.library, at=home, leave_out=_NOT_TAKEN | {f"config-{python.version}", "ensurepip"})]


def tree(root: Path, *, at: str, leave_out: frozenset[str] = frozenset({"__pycache__"})) -> Iterator[Placed]:
    """Return every file under `root`, placed under `at`; skip folders whose name begins with one of `leave_out`."""
    beginnings = tuple(sorted(leave_out))
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in leave_out and not _config_of(name, beginnings))
        inside = os.path.relpath(folder, root)
        place = at if inside == "." else f"{at}/{inside}"
        for name in sorted(names):
            if not _NOT_NEEDED.match(name):
                yield Placed(f"{place}/{name}", Path(folder, name))


def package_files(distribution: str, *, at: str) -> list[Placed]:
    """Return our packages and all they require, placed under `at`. Raises `NoImageError`."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [distribution]
    while wanted:
        name = _canonical(wanted.pop())
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name == distribution:
                raise NoImageError(f"{distribution} is not installed here: `pip install {distribution}`") from None
            continue  # a requirement for another system or Python version
        extras = INSTALLED_EXTRAS if name == distribution else frozenset()
        wanted += _requirements(found[name].requires or (), extras=extras)
    taken = [placed for _, each in sorted(found.items()) for placed in _files_of(each, at=at)]
    return [*taken, *_own_files(at=at)]


def program_files(names: Iterable[str] = PROGRAMS) -> list[Placed]:
    """Return these programs under their own paths; missing ones are left out."""
    found = []
    for name in names:
        path = shutil.which(name, path=SYSTEM_PATH)
        if path is not None:
            found.append(_placed(Path(path)))
    if "sh" in names and shutil.which("sh", path="/bin") is None:
        raise NoImageError("/bin/sh: not on this machine")
    return found


def library_files(files: Sequence[Placed]) -> list[Placed]:
    """Return the shared libraries these programs and extension modules load, and the loader. Raises `NoImageError`.

    Libraries that a package brings along are found by the package itself.
    """
    binaries = [str(placed.source) for placed in files if placed.source is not None and _is_binary(placed.source)]
    ldd = shutil.which("ldd", path=SYSTEM_PATH)
    if ldd is None:
        raise NoImageError("ldd: not found; it lists the libraries of a program (Debian: apt-get install libc-bin)")
    output = subprocess.run([ldd, *binaries], capture_output=True, text=True, check=False, timeout=120).stdout
    have = {os.path.realpath(placed.source) for placed in files if placed.source is not None}
    found = {}
    for line in output.splitlines():
        match = _LIBRARY.match(line)
        if match:
            placed = _placed(Path(match["path"]))
            if str(placed.source) not in have:
                found[placed.path] = placed
    cache = Path("/etc/ld.so.cache")
    return [*found.values(), *([Placed(str(cache), cache)] if cache.is_file() else [])]


def merged_folders() -> list[Placed]:
    """Return this machine's top-level links, such as /bin to usr/bin."""
    return [
        Placed(f"/{name}", link=str(Path(f"/{name}").readlink())) for name in _MERGED if Path(f"/{name}").is_symlink()
    ]


def _placed(path: Path) -> Placed:
    """Return a file under its own path with linked folders resolved; a link is replaced by its file."""
    return Placed(f"{_real(path.parent)}/{path.name}", Path(os.path.realpath(path)))


def _real(folder: Path) -> str:
    return os.path.realpath(folder)


def _config_of(name: str, beginnings: tuple[str, ...]) -> bool:
    return name.startswith("config-") and name.startswith(beginnings)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements(lines: Iterable[str], *, extras: frozenset[str]) -> Iterator[str]:
    """Return the names of the requirements, including those of these extras."""
    for line in lines:
        match = _REQUIREMENT.match(line)
        extra = _EXTRA.search(line)
        if match and (extra is None or extra["name"] in extras):
            yield match["name"]
            brackets = re.match(r"\s*\[([^\]]*)\]", match["rest"])
            if brackets:  # "psycopg[binary]": the extra's package has a name with the same beginning
                yield from (f"{match['name']}-{name.strip()}" for name in brackets[1].split(","))
                yield from (name.strip() for name in brackets[1].split(","))


def _files_of(distribution: importlib.metadata.Distribution, *, at: str) -> Iterator[Placed]:
    for file in distribution.files or ():
        if ".." in file.parts or file.is_absolute() or _NOT_PACKAGED.intersection(file.parts):
            continue
        if _NOT_NEEDED.match(file.name) or file.suffix == ".pth" or file.parts[0] in OWN_PACKAGES:
            continue
        source = Path(str(file.locate()))
        if source.is_file():
            yield Placed(f"{at}/{file}", source)


def _own_files(*, at: str) -> Iterator[Placed]:
    """Return the code that runs now, whether it is installed, linked or neither."""
    root = Path(__file__).resolve().parents[3]
    for package in sorted(OWN_PACKAGES):
        yield from tree(root / package, at=f"{at}/{package}")


def _is_binary(path: Path) -> bool:
    """Return whether the file is a program or a shared object."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
