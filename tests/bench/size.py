"""Measure size and start by `python3 -m tests.bench.size`: bytes of wheel and environment, milliseconds of a start.

An environment is counted by the packages that this one has of `requirements/runtime.txt`, as installers unpack them;
bytecode, which pip adds and uv leaves to the first import, is counted apart.
"""

import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.support.built_packages import LISTED, built_packages
from tests.support.commands import program_environment

RUNS: Final = 15
STARTS: Final = {
    "python3 -c pass": ["-c", "pass"],
    "import queue_core": ["-c", "import queue_core"],
    "from queue_core import App": ["-c", "from queue_core import App"],
    "towline --help": ["-m", "orchestrator", "--help"],
}


def installed_bytes(wheel: Path) -> dict[str, int]:
    """Return the bytes of each package of a user's environment, without bytecode; Towline's are those of `wheel`."""
    made = {"towline": sum(entry.file_size for entry in zipfile.ZipFile(wheel).infolist())}
    for name in re.findall(r"^([A-Za-z0-9._-]+)==", LISTED.read_text(), re.MULTILINE):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:  # of another system
            continue
        places = (Path(str(one.locate())) for one in files if not str(one).endswith(".pyc"))
        made[name] = sum(place.stat().st_size for place in places if place.is_file())
    return made


def milliseconds(command: Sequence[str], *, runs: int = RUNS) -> float:
    """Return the shortest time of several runs of a Python command, which is what the machine's other work adds to."""
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True, env=program_environment())
        best = min(best, time.perf_counter() - started)
    return best * 1000


def main() -> None:
    """Print all figures."""
    with TemporaryDirectory() as folder:
        wheel = built_packages(Path(folder)).wheel
        parts = sorted(installed_bytes(wheel).items(), key=lambda part: -part[1])
        print(f"wheel                        {wheel.stat().st_size / 1e6:7.2f} MB  (most: 2.70)")
    print(f"environment, no bytecode     {sum(part for _, part in parts) / 1e6:7.2f} MB  (most: 60.00)")
    for name, part in parts[:8]:
        print(f"  {name:<26} {part / 1e6:7.2f} MB")
    for what, command in STARTS.items():
        print(f"{what:<28} {milliseconds(command):7.0f} ms")


if __name__ == "__main__":
    main()
