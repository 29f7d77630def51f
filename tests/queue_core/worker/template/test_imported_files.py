"""The files of an application are found, and so are changes of them."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from queue_core.worker.template.imported_files import FileVersion, changed_files

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import json, sys
import shop.tasks, in_archive, pytest, psutil
from queue_core.worker.template.imported_files import imported_files
print(json.dumps(imported_files()))
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A folder with a package, a module in an archive and one that nobody imports."""
    folder = tmp_path / "app"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "tasks.py").write_text("import shop.prices")
    (folder / "shop" / "prices.py").write_text("")
    (folder / "unused.py").write_text("")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("in_archive.py", "")
    return folder


def files_of(folder: Path) -> dict[str, FileVersion]:
    """The application's files, as its process sees them."""
    more = str(folder / "more.zip")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), more, str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    ran = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, env=environment, capture_output=True, check=True)
    return {path: FileVersion(*version) for path, version in json.loads(ran.stdout).items()}


def test_the_files_of_an_application_are_its_own_modules(application: Path) -> None:
    files = {path: version for path, version in files_of(application).items() if str(application) in path}
    assert {Path(path).name for path in files} == {"__init__.py", "tasks.py", "prices.py", "more.zip"}
    for path, version in files.items():
        status = Path(path).stat()
        assert version == (status.st_mtime_ns, status.st_size, status.st_ctime_ns)


def test_installed_packages_and_the_standard_library_are_not_the_application(application: Path) -> None:
    files = files_of(application)
    assert [path for path in files if Path(path).name in ("os.py", "json.py")] == []
    assert [path for path in files if f"site-packages{os.sep}" in path] == []


def test_files_that_are_as_they_were_have_not_changed(application: Path) -> None:
    assert changed_files(files_of(application)) == []


def test_a_file_that_is_rewritten_touched_or_removed_has_changed(application: Path) -> None:
    files = files_of(application)
    shop = application / "shop"
    version = (shop / "tasks.py").stat()
    (shop / "tasks.py").write_text("import shop.prices  # as old as before")
    os.utime(shop / "tasks.py", ns=(version.st_atime_ns, version.st_mtime_ns))
    os.utime(shop / "prices.py", ns=(1, 1))
    (application / "more.zip").unlink()
    assert changed_files(files) == sorted(
        [str(application / "more.zip"), str(shop / "prices.py"), str(shop / "tasks.py")]
    )
