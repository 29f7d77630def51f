"""Write `requirements/` from `uv.lock`: lists with hashes for pip, after each `uv lock`.

`python3 -m tests.support.requirement_lists` needs uv. Each list begins with the lock's checksum, which a test compares.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
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


def main(uv: str) -> None:
    lists = {name: exported(uv, *options) for name, options in WHOLE.items()}
    for extra in EXTRAS:
        lists[extra] = [one for one in exported(uv, "--no-dev", "--extra", extra) if one not in lists["runtime"]]
    FOLDER.mkdir(exist_ok=True)
    for name, listed in lists.items():
        (FOLDER / f"{name}.txt").write_text(head() + "".join(listed))


if __name__ == "__main__":
    found = shutil.which("uv")
    if found is None:
        sys.exit("uv is not installed: pip install uv")
    main(found)
