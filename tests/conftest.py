"""What the whole session shares."""

import gc
import os
import signal
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests import tiers
from tests.docs import NOT_HERE
from tests.support.commands import Commands
from tests.support.docker.engine import EngineUnavailableError, PrivateDockerEngine
from tests.support.docker.engine import docker_engine as private_docker
from tests.support.stores.shared_engines import SharedEngines, engines_of_process


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process that runs tests, so that no test can leave the whole run waiting."""
    # A shell ignores SIGINT for a suite that it runs in the background; programs that tests start are to stop at it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        # A forked child that outlived its process, ended at a test's time limit, kept the pipes to xdist open: the run
        # waited for ever for a process that was gone.
        pipes = [fd for fd in range(3, 64) if _is_pipe(fd)]
        os.register_at_fork(after_in_child=lambda: _close(pipes))


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False


def _close(pipes: Sequence[int]) -> None:
    for fd in pipes:
        if _is_pipe(fd):
            os.close(fd)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what a test printed or logged that is no UTF-8: xdist can't send it, and the whole run would end."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made and none goes: looking for garbage among them, now or later, is a seventh of it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves out, and begin with what takes longest."""
    for item in items:
        if tiers.is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: tiers.order(item.nodeid.partition("::")[0]))


class UnitsScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process a file, or files that belong together, whenever it has nothing left to do."""

    def _split_scope(self, nodeid: str) -> str:
        return tiers.unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Schedule by `tests/tiers.py` where xdist was told `--dist loadfile`."""
    return UnitsScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write how the run ended for `run.py`, which tries failed tests again, and never a run that broke down."""
    cache = getattr(session.config, "cache", None)  # there is none with `-p no:cacheprovider`
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("towline/exit-status", int(exitstatus))


@pytest.fixture(scope="session", autouse=True)
def _no_logger_is_kept() -> None:
    """A command in this process configures the log; loggers would keep that, and `capture_logs` see nothing."""
    configure = structlog.configure
    structlog.configure = lambda **settings: configure(**{**settings, "cache_logger_on_first_use": False})


@pytest.fixture(scope="session", autouse=True)
def _engines_end_with_the_tests() -> Iterator[None]:
    """Not with the process: xdist kills one that takes more than 10 s to end, and gigabytes stay in memory."""
    yield
    engines_of_process().close()


@pytest.fixture(scope="module", autouse=True)
def _databases_end_with_their_module() -> Iterator[None]:
    yield
    engines_of_process().drop_databases()


@pytest.fixture(scope="session")
def shared_engines() -> SharedEngines:
    """PostgreSQL and Redis, each started when a test first asks for it."""
    return engines_of_process()


@pytest.fixture(scope="session")
def docker_engine_of_session() -> Iterator[PrivateDockerEngine | EngineUnavailableError]:
    """One private Docker Engine without a network, with its image; or why there is none."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(private_docker())
            engine.image()
            yield engine
        except EngineUnavailableError as error:
            yield error


@pytest.fixture
def docker_engine(
    docker_engine_of_session: PrivateDockerEngine | EngineUnavailableError,
) -> Iterator[PrivateDockerEngine]:
    """The session's Docker Engine, without a container before and after the test; a skip that says why, elsewhere.

    A test that kills or freezes an engine, or wants another one, starts its own (`tests.support.docker.engine`).
    """
    if isinstance(docker_engine_of_session, EngineUnavailableError):
        pytest.skip(str(docker_engine_of_session))
    docker_engine_of_session.ensure_running()
    yield docker_engine_of_session
    docker_engine_of_session.remove_containers()


@pytest.fixture
def towline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """The command in an empty folder, without settings of whoever runs the tests. Files of tests fill the folder."""
    for name in [name for name in os.environ if name.startswith("TOWLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Commands(tmp_path, capsys)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the blocks of the manual that were not run, and why. xdist's first process knows this file alone."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "nodeid")]
    told = {text for report in reports for name, text in getattr(report, "user_properties", ()) if name == NOT_HERE}
    if told:
        terminalreporter.section(f"{NOT_HERE}: {len(told)} blocks")
        for text in sorted(map(str, told)):
            terminalreporter.write_line(text)
