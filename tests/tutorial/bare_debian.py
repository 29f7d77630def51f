"""A Debian 12 that has Python and nothing else: no compiler, no uv, no program of this project.

It is made by debootstrap once, kept in the user's cache, and used under an overlay: nothing that is done in it stays.
Needs root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
RELEASE: Final = "bookworm"
PACKAGES: Final = ("python3", "python3-venv", "ca-certificates")
"""What the tutorial asks for; certificates are what pip reaches its index with."""
MIRROR: Final = "http://deb.debian.org/debian"
MAKE_SECONDS: Final = 600
OURS: Final = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files that let it use this machine's network."""
SHELL: Final = ("bash", "--noprofile", "--norc", "--noediting", "-i")
_HOLD: Final = """\
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
echo ready
exec sleep infinity
"""


class NoBareDebianError(Exception):
    """A bare Debian can't be made here; the message says why."""


class BareDebian:
    """A running system: its files as seen from outside, and the command that begins a shell in it."""

    def __init__(self, root: Path, holder: int) -> None:
        self._root = root
        self._holder = holder

    @property
    def shell(self) -> list[str]:
        """The command of a new terminal's shell, in the home of its user."""
        inside = ["nsenter", f"--target={self._holder}", "--mount", "--pid", "--", "chroot", str(self._root)]
        variables = ["HOME=/root", "PATH=/usr/local/bin:/usr/bin:/bin", "TERM=dumb", "LANG=C.UTF-8", "NO_COLOR=1"]
        return [*inside, "env", "-i", "--chdir=/root", *variables, *SHELL]

    def write(self, path: str, text: str) -> None:
        """Save a file, as its user's editor would."""
        command = ["nsenter", f"--target={self._holder}", "--mount", "--", "tee", f"{self._root}{path}"]
        subprocess.run(command, input=text.encode(), stdout=subprocess.DEVNULL, check=True)


@contextmanager
def bare_debian(*, index: Path) -> Iterator[BareDebian]:
    """Run a bare Debian whose pip finds the packages in `index` beside those of the package index.

    Raises `NoBareDebianError`.
    """
    lower = _made_once()
    with tempfile.TemporaryDirectory(prefix="towline-debian-") as folder:
        place = Path(folder)
        for name in ("upper", "work", "root"):
            (place / name).mkdir()
        _give(place / "upper", index)
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        command = [*apart, "sh", "-c", _HOLD, "sh", str(lower), str(place)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout
            assert running.stderr
            try:
                if running.stdout.readline() != "ready\n":
                    raise NoBareDebianError(running.stderr.read().strip() or "unshare failed")
                children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
                yield BareDebian(place / "root", int(children[0]))
            finally:
                running.kill()


def _give(upper: Path, index: Path) -> None:
    """Lay what comes from outside over the system: this machine's network, and the wheel that is not published yet."""
    shutil.copytree(index, upper / "srv" / "index")
    for path in map(Path, OURS):
        (upper / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, upper / path.relative_to("/"))
    (upper / "etc" / "pip.conf").write_text("[global]\nfind-links = /srv/index\ndisable-pip-version-check = true\n")


def _made_once() -> Path:
    """Return the folder of the system, made if it is not there yet. Raises `NoBareDebianError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towline-tests"
    kept = cache / f"debian-{RELEASE}"
    if kept.is_dir():
        return kept
    if os.geteuid() != 0:
        raise NoBareDebianError("a bare Debian needs root")
    program = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise NoBareDebianError("debootstrap: not installed (Debian: apt-get install debootstrap)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as folder:
        made = Path(folder) / "root"
        print(f"making a bare Debian in {kept}", file=sys.stderr, flush=True)
        command = [program, "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(made), MIRROR]
        told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAKE_SECONDS)
        if told.returncode:
            raise NoBareDebianError(f"debootstrap: {told.stdout.strip().splitlines()[-1:]} {told.stderr.strip()}")
        made.rename(kept)
    return kept


def build_wheel(folder: Path) -> None:
    """Build the wheel of this source tree into `folder`. Raises `NoBareDebianError`."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=MAKE_SECONDS)
    if told.returncode:
        raise NoBareDebianError(f"hatchling: {told.stderr.strip()}")
