#!/usr/bin/env python3
"""From a bare Python 3.11: `run.py demo`, `run.py test`, `run.py docs`, and for a release `run.py release`.

Standard library only.

Makes an environment in .venv (with uv when it is there, else venv and pip), then runs in it.
"""

import argparse
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".towline-installed"
OLDEST_PYTHON = (3, 11)
KINDS = {"runtime": (), "dev": ("dev",), "peers": ("peers",)}
"""The environments to use, test and measure Towline in, each with its groups of requirements."""
LISTS = ROOT / "requirements"
"""Requirement lists for pip, with hashes: one for each kind from `uv.lock`, and one of the build tools."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POSTGRESQL = Path("/usr/lib/postgresql")  # Debian keeps the server's programs out of PATH, one directory a version
CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
START_POLICY = Path("/usr/sbin/policy-rc.d")

GO_SDK = "/usr/share/gocode/src/google.golang.org/appengine"

# Programs that the tests start, each as a private instance, or are built from: what apt calls them, what they are for.
SERVICES = {
    "strace": ("strace", "crash tests at a chosen write or fsync"),
    "initdb": ("postgresql", "the PostgreSQL store"),
    "redis-server": ("redis-server", "the Redis store"),
    "rabbitmqctl": ("rabbitmq-server", "Celery fleets on RabbitMQ"),
    "ip": ("iproute2", "servers in network namespaces"),
    "dockerd": ("docker.io", "fleets of containers"),
    "docker-compose": ("docker-compose", "the stack of deploy/compose.yaml"),
    "systemd-analyze": ("systemd", "the units of deploy/systemd"),
    "promtool": ("prometheus", "the alerts of deploy/prometheus-alerts.yaml"),
    "chromium": ("chromium", "the console in a browser"),
    "groff": ("groff-base", "the manual pages"),
    "nginx": ("nginx-light", "the console behind a proxy with a prefix and TLS"),
    "go": ("golang-go", "a program on App Engine's SDK for Go"),
    GO_SDK: ("golang-google-appengine-dev", "a program on App Engine's SDK for Go"),
}

KUBERNETES = "tests.support.kubernetes.programs"
"""The module that builds a whole Kubernetes where it is missing."""

CHECKS = (
    ("ruff check", ["-m", "ruff", "check", "."]),
    ("ruff format", ["-m", "ruff", "format", "--check", "."]),
    ("mypy", ["-m", "mypy"]),
    ("import-linter", ["-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]),
)
"""Of the text alone: they run beside the tests, which wait as much as they work, and give way to them."""
NICENESS = 10
LOOK_SECONDS = 0.5
WAITING_SECONDS = 10.0

WORKERS = min(2 * len(os.sched_getaffinity(0)), 8)
"""Tests wait as much as they work. Each process takes half a gigabyte."""
TESTS = [
    "-m",
    "pytest",
    "-q",
    "-rs",
    "--durations=15",
    "-n",
    str(WORKERS),
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
]
"""A file at a time, whose tests share what they start, in the order of `tests/tiers.py`: the longest first."""
QUICK = "--quick"
"""The option for the tests of `make test`."""
WITHOUT_SLOW = ["-m", "not slow"]
ALONE = ["-m", "pytest", "-q", "-rs", "--last-failed", "--last-failed-no-failures", "none"]
"""Failed tests run once more without others beside them: two at a time on each core, a deadline may pass."""
TESTS_FAILED = "1"
ENDED_WITH = ROOT / ".pytest_cache" / "v" / "towline" / "exit-status"
"""The exit status that `tests/conftest.py` writes at the end of a run: Python's own is 1, too, if a run breaks down."""


class SetupError(Exception):
    """The environment can't be made; the message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="demo|test|docs|release")
    demo = "watch a fleet do real work and survive a kill; takes --console, --for 60s, --dir DIR, --help"
    test = "every check and every test; --quick leaves slow tests out; all else goes to pytest, which then runs alone"
    docs = "build the manual that servers show at /docs/ and a wheel takes along; with a folder, leave its files there"
    release = "check and build a release; --dry-run does all but tag and upload"
    for name, help_text in (("demo", demo), ("test", test), ("docs", docs), ("release", release)):
        commands.add_parser(name, add_help=False, help=help_text)
    arguments, options = parser.parse_known_args()
    os.chdir(ROOT)
    try:
        check_python()
        if arguments.command == "demo":
            make_environment("runtime")
            become([str(PYTHON), "-m", "orchestrator", "demo", *options])  # Ctrl-C is for the demo, and only once
        make_environment("dev")
        if arguments.command == "docs":
            return run([str(PYTHON), "-m", "tests.support.manual", *options])
        if arguments.command == "release":
            become([str(PYTHON), "-m", "tests.support.release", *options])
        must([str(PYTHON), "-m", "tests.celery.environments"], waits_for="Celery 5.5, 5.6 and 5.7, downloaded once")
        return run_tests(options)
    except SetupError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 78
    except KeyboardInterrupt:
        return 130


def check_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        wanted, found = (".".join(map(str, version[:2])) for version in (OLDEST_PYTHON, sys.version_info))
        raise SetupError(f"Python {wanted} or newer is needed, this is {found}: run it with another python3")


# -- the environment ---------------------------------------------------------------------------------------------------


def make_environment(kind: str) -> None:
    """Bring .venv up to date; nothing is done when it already is, and has what `kind` is a part of."""
    fingerprint = fingerprint_of("pyproject.toml", "uv.lock", "run.py")
    installed = STAMP.read_text().split() if STAMP.is_file() else []
    enough = [[more, fingerprint] for more, groups in KINDS.items() if {*KINDS[kind]} <= {*groups}]
    if PYTHON.exists() and installed in enough:
        return
    STAMP.unlink(missing_ok=True)
    started = time.monotonic()
    uv = shutil.which("uv")
    if uv and (ROOT / "uv.lock").is_file():
        say(f"installing {packages_of(kind)} with uv into {VENV.name}: seconds, or a minute without uv's cache")
        groups = ["--no-default-groups", "--group=build", *(f"--group={group}" for group in KINDS[kind])]
        must(
            [uv, "sync", "--locked", "--quiet", "--python", sys.executable, *groups],
            environment={"VIRTUAL_ENV": "", "UV_PROJECT_ENVIRONMENT": ""},
            waits_for="uv to download and unpack them",
        )
    else:
        install_with_pip(kind)
    STAMP.write_text(f"{kind} {fingerprint}\n")
    say(f"environment ready in {time.monotonic() - started:.0f} s")


def install_with_pip(kind: str) -> None:
    if not has_pip():
        ensure_venv_module()
        say(f"making {VENV.name} with venv: some seconds")
        must([sys.executable, "-m", "venv", "--clear", str(VENV)], waits_for="venv to install pip")
    say(f"installing {packages_of(kind)} with pip into {VENV.name}: about a minute")
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for name in ("build", kind):  # only wheels: what a source is built by would come without a hash
        command = [*pip, "--only-binary", ":all:", "--require-hashes", "--requirement", str(LISTS / f"{name}.txt")]
        must(command, waits_for=f"pip to download and unpack requirements/{name}.txt")
    must([*pip, "--no-build-isolation", "--editable", "."], waits_for="pip to install Towline itself")


def packages_of(kind: str) -> str:
    listed = LISTS / f"{kind}.txt"
    lines = listed.read_text().splitlines() if listed.is_file() else []
    count = sum("==" in line for line in lines)
    return f"{count} packages" if count else "packages"


def has_pip() -> bool:
    return PYTHON.exists() and run([str(PYTHON), "-m", "pip", "--version"], quiet=True) == 0


def ensure_venv_module() -> None:
    """Debian ships `venv` without `ensurepip`, which is a package of its own."""
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if can_apt():
        say(f"installing {package}, which this Python lacks")
        if apt_install([package]):
            importlib.invalidate_caches()
            return
    raise SetupError(f"this Python can't make environments: run `apt install {package}` as root, or install uv")


def fingerprint_of(*names: str) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for name in names:
        path = ROOT / name
        digest.update(path.read_bytes() if path.is_file() else b"-")
    return digest.hexdigest()[:16]


# -- the tests ---------------------------------------------------------------------------------------------------------


def run_tests(options: list[str]) -> int:
    install_services()
    results: list[tuple[str, int, float]] = []
    if not options:  # `--quick` takes it as it is, and a few tests of it are named on purpose
        run([str(PYTHON), "-m", KUBERNETES], waits_for="a Kubernetes, built once in about ten minutes")  # else skipped
    with ExitStack() as stack:
        is_tier = options in ([], [QUICK])
        checks = [Check(name, arguments, stack) for name, arguments in CHECKS] if is_tier else []
        say("pytest")
        started = time.monotonic()
        ENDED_WITH.unlink(missing_ok=True)
        code = run([str(PYTHON), *tests_of(options)], beside=checks)
        if is_tier and code and is_of_failed_tests(ENDED_WITH):
            say("pytest: what failed, alone")
            code = run([str(PYTHON), *ALONE], beside=checks)
        seconds = time.monotonic() - started
        for check in checks:
            check.finish()
            results.append((check.name, check.code, check.seconds))
        results.append(("pytest", code, seconds))
    absent = [program for program in SERVICES if not is_installed(program)]
    if absent and can_apt():
        results.append(("services", 1, 0.0))  # they could be had here, so what they are for is not skipped in silence
    print()
    for name, code, seconds in results:
        print(f"{'ok    ' if code == 0 else 'FAILED'}  {name:<14} {seconds:6.1f} s")
    for program in absent:
        package, purpose = SERVICES[program]
        print(f"absent  {program} (Debian: {package}): skipped {purpose}")
    return max((1 for _, code, _ in results if code), default=0)


def tests_of(options: list[str]) -> list[str]:
    """Return the arguments of Python for the whole suite, for its quick part, or for what the options name."""
    if options == [QUICK]:
        return [*TESTS, *WITHOUT_SLOW]
    return ["-m", "pytest", *options] if options else TESTS


def is_of_failed_tests(ended_with: Path) -> bool:
    """Return whether a run reached its last test, so that what failed is all that has to be tried again."""
    return ended_with.exists() and ended_with.read_text() == TESTS_FAILED


class Check:
    """A program that runs beside the tests and is heard when it has ended: all it says then comes in one piece."""

    def __init__(self, name: str, arguments: list[str], stack: ExitStack) -> None:
        self.name = name
        self.seconds = 0.0
        self.code = -1
        self._said = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "said"
        self._started = time.monotonic()
        command = ["nice", "-n", str(NICENESS), str(PYTHON), *arguments]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(command, stdout=said, stderr=said, env=environment_of({}))
        stack.callback(self._end)

    def look(self) -> None:
        """Tell what it said if it has ended since the last look."""
        if self.code >= 0 or self._process.poll() is None:
            return
        self.code = abs(self._process.returncode)
        self.seconds = time.monotonic() - self._started
        print(file=sys.stderr)  # the tests may be in the middle of a line
        say(f"{self.name}: {'FAILED' if self.code else 'ok'}")
        print(self._said.read_text(errors="replace"), end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Return when it has ended and was heard."""
        self._process.wait()
        self.look()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()


def is_installed(program: str) -> bool:
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    if Path(program).is_absolute():
        return Path(program).exists()
    return shutil.which(program, path=path) is not None or any(POSTGRESQL.glob(f"*/bin/{program}"))


def install_services() -> None:
    """Install what the tests use and this machine lacks, where that is ours to do; no service of the system starts."""
    missing = [package for program, (package, _) in SERVICES.items() if not is_installed(program)]
    if not missing or not can_apt():
        return
    say(f"installing {', '.join(missing)}")
    with ExitStack() as stack:
        stack.enter_context(no_service_started())
        if "postgresql" in missing and apt_install(["postgresql-common"]):
            stack.enter_context(no_cluster_made())
        apt_install(missing)
    if shutil.which("systemctl"):
        for service in {"redis-server", "prometheus"}.intersection(missing):
            run(["systemctl", "--quiet", "disable", service], quiet=True)  # nor at the next boot


@contextmanager
def no_service_started() -> Iterator[None]:
    """Tell Debian's packages not to start what they bring, unless the machine has a policy of its own."""
    if START_POLICY.exists():
        yield
        return
    START_POLICY.write_text("#!/bin/sh\nexit 101\n")
    START_POLICY.chmod(0o755)
    try:
        yield
    finally:
        START_POLICY.unlink()


@contextmanager
def no_cluster_made() -> Iterator[None]:
    """Tell Debian's PostgreSQL not to make a database of the system, for this once."""
    before = CLUSTER_SETTINGS.read_text()
    kept = [line for line in before.splitlines() if not line.strip().startswith("create_main_cluster")]
    CLUSTER_SETTINGS.write_text("\n".join([*kept, "create_main_cluster = false", ""]))
    try:
        yield
    finally:
        CLUSTER_SETTINGS.write_text(before)


def can_apt() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(packages: list[str]) -> bool:
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    if run(install, quiet=True, environment=environment) == 0:
        return True
    run(["apt-get", "update", "--quiet"], quiet=True)
    return run(install, environment=environment) == 0


# -- processes ---------------------------------------------------------------------------------------------------------


def become(command: list[str]) -> NoReturn:
    """Go on as another program in this process."""
    os.execve(command[0], command, environment_of({}))  # noqa: S606  there is no shell


def must(command: list[str], *, environment: dict[str, str] | None = None, waits_for: str = "") -> None:
    code = run(command, environment=environment, waits_for=waits_for)
    if code:
        raise SetupError(f"`{shlex.join(command)}` failed with exit code {code}; what it said is above")


def run(
    command: list[str],
    *,
    quiet: bool = False,
    environment: dict[str, str] | None = None,
    beside: Sequence[Check] = (),
    waits_for: str = "",
) -> int:
    """Run to the end, telling meanwhile what those `beside` it say when they end, and what is waited for.

    An interrupt goes to the child too, which is given the time to clean up.
    """
    output = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(command, stdout=output, stderr=output, env=environment_of(environment or {})) as process:
        try:
            while any(check.code < 0 for check in beside) and process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
                for check in beside:
                    check.look()
            return wait(process, waits_for) if waits_for else process.wait()
        except KeyboardInterrupt:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait()
            raise


def wait(process: subprocess.Popen[bytes], waits_for: str, *, every_seconds: float = WAITING_SECONDS) -> int:
    """Wait for the end, and say every few seconds for what."""
    started = time.monotonic()
    while True:
        try:
            return process.wait(every_seconds)
        except subprocess.TimeoutExpired:
            say(f"waiting for {waits_for}, {time.monotonic() - started:.0f} s so far")


def environment_of(changes: dict[str, str]) -> dict[str, str]:
    """Ours with the changes; what is empty is left out."""
    changed = {**os.environ, **changes, "PYTHONDONTWRITEBYTECODE": ""}  # else each worker compiles for 2 s
    return {name: value for name, value in changed.items() if value}


def say(text: str) -> None:
    print(f"run.py: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
