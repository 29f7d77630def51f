"""Write `requirements/` from `uv.lock`: lists with hashes for pip, after each `uv lock`.

`python3 -m tests.support.requirement_lists` needs uv. Each list begins with the lock's checksum, which a test compares.
The lists of `APART` are resolved without the lock, and keep their versions until their files are removed.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "requirements"
EXTRAS: Final = ("django", "grpc", "otel", "postgres", "redis")
WHOLE: Final = {
    "build": ["--only-group", "build"],
    "runtime": ["--no-dev"],
    "dev": ["--group", "dev"],
    "peers": ["--no-dev", "--group", "peers"],
}
"""Lists that are complete; those of extras only add to `runtime`."""
APART: Final = {
    **{f"celery-{one}": [f"celery[gevent]=={one}.*", f"kombu[redis]=={one}.*"] for one in ("5.5", "5.6", "5.7")},
    "celery-upstream": ["pip>=25", "setuptools>=80", "pytest-rerunfailures>=16", "pytest-timeout>=2.4"],
}
"""Folders of packages beside the environment, for `tests.celery`: they add to `dev`, and come before it."""
LOWEST: Final = "lowest"
"""The list of the lowest versions that `pyproject.toml` allows; what they ask for is of today."""
LOWEST_EXTRAS: Final = ("django", "otel", "postgres", "redis")
"""Without `grpc`: what Google's packages ask for is newer than some of the lowest versions."""
OWN: Final = frozenset({"amqp", "billiard", "celery", "kombu", "redis", "vine"})
"""Packages that a list of `APART` has itself, whatever version `dev` has."""


def head() -> str:
    """Return the first line of each list."""
    checksum = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()
    return f"# Made of uv.lock {checksum[:16]} by tests/support/requirement_lists.py\n"


def entries(text: str) -> list[str]:
    """Return the requirements of a list, each with its hash lines."""
    return re.findall(r"^[a-zA-Z0-9].*?[^\\]\n", text, re.MULTILINE | re.DOTALL)


def exported(uv: str, *options: str) -> list[str]:
    """Return the lists that uv exports from its lock."""
    command = [uv, "export", "--quiet", "--locked", "--no-emit-project", "--no-annotate", "--no-header", *options]
    return entries(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def resolved(uv: str, name: str, *, runtime: Sequence[str], dev: Sequence[str]) -> list[str]:
    """Return a list of `APART`: with the versions of `runtime`, and without what `dev` has already."""
    with TemporaryDirectory() as folder:
        wanted, limits, made = (Path(folder) / one for one in ("wanted.in", "limits.txt", "made.txt"))
        wanted.write_text("\n".join(APART[name]))
        limits.write_text("\n".join(version_of(one) for one in runtime if name_of(one) not in OWN))
        before = FOLDER / f"{name}.txt"
        if before.is_file():
            made.write_text(before.read_text())  # uv prefers the versions that it finds
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--allow-unsafe", "--no-annotate", "--no-header", "-c", str(limits), "-o", str(made), str(wanted)]
        subprocess.run(command, check=True)
        text = made.read_text()
    present = {version_of(one) for one in dev if name_of(one) not in OWN}
    return [one for one in entries(text) if version_of(one) not in present]


def lowest(uv: str) -> list[str]:
    """Return the list of the lowest versions. What they ask for keeps its version until the file is removed."""
    with TemporaryDirectory() as folder:
        made, before = Path(folder) / "made.txt", FOLDER / f"{LOWEST}.txt"
        if before.is_file():
            made.write_text(before.read_text())
        command = [uv, "pip", "compile", "--quiet", "--python-version", "3.11", "--python-platform", "linux"]
        command += [
            "--generate-hashes",
            "--resolution",
            "lowest-direct",
            "--all-extras",
            "--no-annotate",
            "--no-header",
        ]
        subprocess.run([*command, "-o", str(made), "pyproject.toml"], cwd=ROOT, check=True)
        return entries(made.read_text())


def version_of(entry: str) -> str:
    """Return the `name==version` of an entry of a list."""
    return entry.partition(" ")[0]


def name_of(entry: str) -> str:
    """Return the name of an entry of a list."""
    return entry.partition("==")[0]


def main(uv: str) -> None:
    lists = {name: exported(uv, *options) for name, options in WHOLE.items()}
    for extra in EXTRAS:
        lists[extra] = [one for one in exported(uv, "--no-dev", "--extra", extra) if one not in lists["runtime"]]
    FOLDER.mkdir(exist_ok=True)
    for name, listed in lists.items():
        (FOLDER / f"{name}.txt").write_text(head() + "".join(listed))
    (FOLDER / f"{LOWEST}.txt").write_text("".join(lowest(uv)))
    for name in APART:
        (FOLDER / f"{name}.txt").write_text("".join(resolved(uv, name, runtime=lists["runtime"], dev=lists["dev"])))


if __name__ == "__main__":
    found = shutil.which("uv")
    if found is None:
        sys.exit("uv is not installed: pip install uv")
    main(found)
