"""Programs written for App Engine on `towline serve`: in a script, a WSGI application, a thread; and the counter."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.task import QueueSpec
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually
from tests.support.servers import IMPATIENT

PROGRAMS = Path(__file__).parent / "appengine_programs"
QUEUE = "pullq"
SECONDS = 60.0
WANTED = {
    "rendered": ["render1", "render2"],
    "oldest": ["parse1", "parse2"],
    "rest": ["any"],
    "deleted": True,
    "left": 0,
}


@dataclass(frozen=True, slots=True)
class Site:
    """A running `towline serve` with the queue, and a folder for programs."""

    url: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """All that App Engine's SDK needs inside `wrap_wsgi_app`."""
        parts = urllib.parse.urlsplit(self.url)
        return program_environment() | {
            "API_HOST": str(parts.hostname),
            "API_PORT": str(parts.port),
            "HTTP_X_APPENGINE_API_TICKET": "any",
        }

    def tasks(self) -> int:
        """How many are left."""
        with closing(HttpQueues(self.url, retries=IMPATIENT)) as queues:
            stats = queues.queue(QUEUE).stats()
        return stats.ready + stats.delayed + stats.in_flight


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one server for all of these stories: a start takes a while on a busy machine."""
    folder = tmp_path_factory.mktemp("serving")
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "serve", "--store", "sqlite:///queue.db", "--listen", "127.0.0.1:0"],
            cwd=folder,
            env=program_environment(),
            stdout=log,
            stderr=log,
        )
    try:
        found = eventually(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", (folder / "server.log").read_text()), seconds=SECONDS
        )
        yield found[0]
    finally:
        server.terminate()
        server.wait(SECONDS)


@pytest.fixture
def site(serving: str, tmp_path: Path) -> Site:
    """That server with the queue, empty."""
    with closing(HttpQueues(serving, retries=IMPATIENT)) as queues:
        queues.put_queue(QueueSpec(QUEUE))
        queues.queue(QUEUE).purge()
    return Site(serving, tmp_path)


@contextmanager
def program(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], *, run: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A program of the folder, ended at the end."""
    command = [sys.executable, *run, str(PROGRAMS / f"{name}.py"), *arguments]
    process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def test_a_script_runs_the_documentations_snippets_and_keeps_its_exit_code(site: Site) -> None:
    told = run_program(
        "run-appengine", "--url", site.url, str(PROGRAMS / "snippets.py"), QUEUE, "7", folder=site.folder
    )
    assert (told.code, told.json) == (7, WANTED)


def test_a_scripts_thread_runs_them_too(site: Site) -> None:
    told = run_program("run-appengine", "--url", site.url, str(PROGRAMS / "thread.py"), QUEUE, folder=site.folder)
    assert (told.code, told.json) == (0, WANTED)


def test_a_script_that_calls_connect_needs_no_command(site: Site) -> None:
    code = (
        "import json; from queue_core import connect_appengine; connect_appengine();"
        f"from tests.end_to_end.google.appengine_programs.snippets import run; print(json.dumps(run({QUEUE!r})))"
    )
    environment = program_environment() | {"TOWLINE_URL": site.url}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == WANTED
    assert done.stderr == ""


def test_a_wsgi_application_needs_the_environment_alone(site: Site) -> None:
    code = (
        "import json; from google.appengine.api import wrap_wsgi_app;"
        "from tests.end_to_end.google.appengine_programs.snippets import run\n"
        f"def app(environ, start): start('200 OK', []); return [json.dumps(run({QUEUE!r})).encode()]\n"
        "from wsgiref.util import setup_testing_defaults; environ = {}; setup_testing_defaults(environ)\n"
        "print(b''.join(wrap_wsgi_app(app)(environ, lambda status, headers, error=None: None)).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=site.environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == WANTED


def test_a_scripts_own_exception_ends_as_python_ends_it(site: Site) -> None:
    script = site.folder / "broken.py"
    script.write_text("import sys\nassert sys.argv[1:] == ['--flag', 'x']\nraise RuntimeError('mine')\n")
    told = run_program("run-appengine", "--url", site.url, str(script), "--flag", "x", folder=site.folder)
    assert told.code == 1
    assert told.err.splitlines()[0] == "Traceback (most recent call last):"
    assert "runpy" not in told.err
    assert told.err.endswith("RuntimeError: mine\n")


# -- the counter ------------------------------------------------------------------------------------------------------


@contextmanager
def counter(site: Site) -> Iterator[tuple[str, Path]]:
    """The web half, running; its URL and its database."""
    database = site.folder / "counters.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, count INTEGER)")
    with program("counter_web", [str(database)], site.environment) as web:
        assert web.stdout is not None
        yield f"http://127.0.0.1:{int(web.stdout.readline())}", database


def click(url: str, key: str) -> None:
    """Send the form."""
    with urllib.request.urlopen(url, urllib.parse.urlencode({"key": key}).encode(), timeout=SECONDS) as page:
        assert page.status == 200


def counts(url: str) -> dict[str, int]:
    """What the page shows."""
    with urllib.request.urlopen(url, timeout=SECONDS) as page:
        return {name: int(count) for name, count in re.findall(r"<li>(.*?): (\d+)</li>", page.read().decode())}


def worker(site: Site, database: Path, lease: str, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """The worker half, with all of App Engine's runtime done for it."""
    run = ["-m", "orchestrator", "run-appengine", "--url", site.url]
    return program("counter_worker", [str(database), lease, *more], program_environment(), run=run)


def test_the_counter_counts_every_click_in_two_processes(site: Site) -> None:
    with counter(site) as (url, database), worker(site, database, "3600"):
        for key in ["one", "two & <three>"] * 3 + ["one"] * 4:
            click(url, key)
        eventually(lambda: site.tasks() == 0, seconds=SECONDS)
        assert counts(url) == {"one": 7, "two &amp; &lt;three&gt;": 3}


def test_a_worker_killed_between_lease_and_delete_costs_no_click(site: Site) -> None:
    with counter(site) as (url, database):
        for _ in range(5):
            click(url, "one")
        with worker(site, database, "2", "die") as first:
            assert first.wait(SECONDS) == -signal.SIGKILL
        assert site.tasks() == 5
        assert counts(url) == {}
        with worker(site, database, "2"):
            click(url, "one")
            eventually(lambda: site.tasks() == 0, seconds=SECONDS)
        assert counts(url) == {"one": 6}
