"""Images for tests, built from this machine's Python without a registry."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.support.docker.image import Image, NoImageError, Placed, image_of, towline_image
from tests.support.docker.image_files import PROGRAMS, package_files, python_files, this_interpreter, tree

TEST_IMAGE: Final = "towline-test:latest"
BASE_IMAGE: Final = "towline-test-base:latest"
_TESTS: Final = Path(__file__).resolve().parents[2]
_BUILD_PROGRAMS: Final = (
    *(*PROGRAMS, "cp", "mv", "ln", "chmod", "chown", "chgrp", "find", "grep", "sed", "head", "tail", "wc", "dirname"),
    *("basename", "readlink", "test", "[", "tar", "gzip", "install", "uname", "date", "tr", "sort", "useradd"),
    "groupadd",
)
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


def image_for_tests() -> Image:
    """Return an image with Towline, its requirements, Celery and `tests.support`. Raises `NoImageError`."""
    packages = this_interpreter().packages
    support = tree(_TESTS / "support", at=f"{packages}/tests/support", leave_out=frozenset({"__pycache__", "sdks"}))
    own = [Placed(f"{packages}/tests/__init__.py", _TESTS / "__init__.py"), *support]
    return towline_image(more=[*own, *package_files("celery", at=str(packages))])


@contextmanager
def base_image() -> Iterator[Image]:
    """Return an image with Python, pip and a shell, in place of `python:3.11-slim`. Raises `NoImageError`."""
    python = this_interpreter()
    ensurepip = python.library / "ensurepip"
    with TemporaryDirectory(prefix="towline-pip-") as folder:
        files = [*python_files(python), *tree(_pip(Path(folder)), at=f"{python.packages}/pip")]
        if ensurepip.is_dir():
            files += tree(ensurepip, at=str(ensurepip.resolve()))
        if _CERTIFICATES.is_file():
            files.append(Placed(str(_CERTIFICATES), _CERTIFICATES))
        pip = f"#!{python.program}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
        yield image_of(files, programs=_BUILD_PROGRAMS, texts={"/usr/local/bin/pip": pip, "/usr/local/bin/pip3": pip})


def _pip(folder: Path) -> Path:
    """Return pip's package: the installed one, or the wheel that Python brings. Raises `NoImageError`."""
    asked = [str(this_interpreter().program), "-I", "-c", "import pip; print(pip.__file__)"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    found = importlib.util.find_spec("pip")
    for initial in (told, found.origin if found is not None else None):
        if initial:
            return Path(initial).parent
    bundled = this_interpreter().library / "ensurepip" / "_bundled"
    for wheel in sorted([*bundled.glob("pip-*.whl"), *Path("/usr/share/python-wheels").glob("pip-*.whl")]):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        return folder / "pip"
    raise NoImageError(f"{sys.executable}: no pip for it, and no wheel of it (Debian: apt-get install python3-venv)")
