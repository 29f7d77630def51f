"""The queues that functions are added to: a settings file, a URL, the environment; opened once, also after a fork."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core import (
    App,
    AppError,
    InvalidSettingError,
    StoreUnavailableError,
    open_queue,
    open_queues,
)
from queue_core.server.base.options import ServeOptions
from queue_core.testing import MemoryQueues
from queue_core.worker.functions.target import AppTarget, find_app_target
from tests.support.servers import a_server
from tests.support.stores.stores import new_store_url

ROOT = Path(__file__).parents[3]
FILE = """
store: sqlite:///q.db
server: {listen: "unix:socket"}
queues:
  thumbs: {lease: 30s, max_leases: 7}
pools:
  resize: {queue: thumbs, app: tasks:app, slo: 30s}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the test's own, and no settings from outside."""
    for name in [name for name in os.environ if name.startswith("TOWLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def apps() -> Iterator[list[App]]:
    """Apps that are closed at the end."""
    made: list[App] = []
    yield made
    for app in made:
        app.close()


def resize(path: str) -> None:
    """Do nothing."""


def add(app: App, queue: str = "thumbs", **settings: object) -> str:
    function = app.function(queue=queue, tag=f"tag-{os.urandom(4).hex()}")(resize)
    return function.with_(**settings).add("cat.jpg").status  # type: ignore[arg-type]


def test_a_settings_file_names_the_store_and_its_queues(folder: Path) -> None:
    (folder / "towline.yaml").write_text(FILE)
    app = App("towline.yaml")
    os.chdir("/")  # the file is where it was when the app was made
    assert add(app) == "added"
    assert add(app, "others") == "added"
    app.close()
    queues = open_queues(f"sqlite:///{folder}/q.db")
    specs = {spec.name: spec for spec in queues.queues()}
    queues.close()
    assert (specs["thumbs"].lease_seconds, specs["thumbs"].max_leases) == (30.0, 7)
    assert specs["others"].max_leases is None


def test_what_a_settings_file_says_of_the_fleet_is_no_mistake(folder: Path) -> None:
    (folder / "towline.yaml").write_text(f"{FILE}\npools: {{}}\nsupervisor: {{state_dir: .towline}}\n")
    assert find_app_target(folder / "towline.yaml").url.endswith(".db")


def test_a_server_that_runs_is_preferred_to_its_store(folder: Path, apps: list[App]) -> None:
    (folder / "towline.yaml").write_text(FILE)
    with a_server(options=ServeOptions(socket_path=folder / "socket")):
        apps += [App("towline.yaml"), App()]  # the latter finds ./towline.yaml
        assert [add(app, "work") for app in apps] == ["added", "added"]
        assert apps[0].queue("work").stats().ready == 2
    assert not (folder / "q.db").exists()


def test_the_environment_names_the_place_where_a_program_runs_unless_it_names_a_url(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "towline.yaml").write_text(FILE)
    (folder / "token").write_text("abc\n")
    monkeypatch.setenv("TOWLINE_TOKEN_FILE", str(folder / "token"))
    monkeypatch.setenv("TOWLINE_STORE", "sqlite:///other.db")
    assert find_app_target(folder / "towline.yaml") == AppTarget("sqlite:///other.db")
    monkeypatch.setenv("TOWLINE_URL", "http://queue:7878")
    for place in (None, folder / "towline.yaml"):
        assert find_app_target(place) == AppTarget("http://queue:7878", "abc")
    assert find_app_target("unix:///run/queue") == AppTarget("unix:///run/queue", "abc")
    monkeypatch.setenv("TOWLINE_TOKEN", "def")
    target = find_app_target("http://user:secret@host")
    assert target.token == "def"
    assert "secret" not in repr(target) and "def" not in repr(target)


def test_a_password_is_read_from_where_the_file_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "towline.yaml"
    server = 'server: {listen: "unix:socket"}\n'
    file.write_text(server + "store: {url: 'redis://me@host', password_env: STORE_PASSWORD}\n")
    with pytest.raises(InvalidSettingError, match="STORE_PASSWORD is missing"):
        find_app_target(file)
    monkeypatch.setenv("STORE_PASSWORD", "a/b")
    assert find_app_target(file).url == "redis://me:a%2Fb@host"
    file.write_text(server + "store: {url: 'redis://me@host', password_file: secret}\n")
    (folder / "secret").write_text("c\n")
    assert find_app_target(file).url == "redis://me:c@host"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(None, "no such settings file", id="missing"),
        pytest.param("store: nowhere:\n", "towline check", id="wrong"),
        pytest.param("queuees: {}\n", "did you mean 'queues'", id="misspelt"),
        pytest.param(
            "store: 'memory:'\nserver: {listen: 'unix:socket'}\n", "does not answer", id="of a server that is off"
        ),
    ],
)
def test_a_settings_file_that_is_of_no_use_is_told(folder: Path, text: str | None, told: str) -> None:
    if text is not None:
        (folder / "towline.yaml").write_text(text)
    with pytest.raises(InvalidSettingError, match=told):
        add(App("towline.yaml"))


def test_a_place_that_is_none_is_refused_when_the_app_is_made() -> None:
    with pytest.raises(AppError, match="neither a URL nor a settings file"):
        App("towline")


def test_an_app_without_any_place_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_core.worker.functions.target.DEFAULT_URL", "http://127.0.0.1:1")
    with pytest.raises(InvalidSettingError, match="TOWLINE_URL"):
        add(App())


def test_making_an_app_opens_nothing_and_a_failed_open_is_tried_again(folder: Path) -> None:
    app = App(f"sqlite:///{folder}/there/q.db")
    with pytest.raises((StoreUnavailableError, InvalidSettingError)):
        add(app)
    (folder / "there").mkdir()
    assert add(app) == "added"
    app.close()


def test_many_threads_open_the_queues_once(folder: Path) -> None:
    app = App(f"sqlite:///{folder}/q.db")
    function = app.function(queue="thumbs")(resize)
    together, seen = threading.Barrier(8, timeout=10), []

    def run() -> None:
        together.wait()
        function.add("cat.jpg")
        seen.append(app.queue("thumbs"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(map(id, seen))) == 1
    assert app.queue("thumbs").stats().ready == 8
    app.close()


FORKING = """
import os, sys
from queue_core import App

app = App(sys.argv[1])


@app.function(queue="work")
def resize(path: str) -> None: ...


resize.add("parent")
for number in range(3):
    child = os.fork()
    if child == 0:
        resize.add(f"child {number}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    resize.add("parent")
print(app.queue("work").stats().ready)
"""


@pytest.mark.parametrize("kind", ["sqlite", "http"])
def test_a_child_of_a_fork_adds_by_connections_of_its_own(folder: Path, kind: str) -> None:
    with a_server() as running:
        url = running.url if kind == "http" else f"sqlite:///{folder}/q.db"
        command = [sys.executable, "-c", FORKING, url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "7\n"


def test_bound_queues_are_used_within_the_block_only(folder: Path) -> None:
    outer, inner = MemoryQueues(), MemoryQueues()
    app = App(f"sqlite:///{folder}/q.db")
    with app.bound_to(outer):
        with app.bound_to(inner):
            add(app)
        add(app)
        add(app)
    add(app)
    counts = [queues.queue("thumbs").stats().ready for queues in (outer, inner)]
    assert (counts, app.queue("thumbs").stats().ready) == ([2, 1], 1)
    app.close()


def test_a_task_is_added_in_the_callers_own_transaction_although_a_server_runs(folder: Path) -> None:
    psycopg = pytest.importorskip("psycopg")
    url = new_store_url("postgresql")
    (folder / "towline.yaml").write_text(f"store: {url}\nserver: {{listen: 'unix:socket'}}\nqueues: {{work: {{}}}}\n")
    with a_server(options=ServeOptions(socket_path=folder / "socket")), psycopg.connect(url) as connection:
        app = App("towline.yaml")
        with pytest.raises(KeyError), connection.transaction():
            assert add(app, "work", connection=connection) == "added"
            raise KeyError
        with connection.transaction():
            add(app, "work", connection=connection, name="cat")
        app.close()
    queue = open_queue(url, "work")
    assert [lease.name for lease in queue.lease(10)] == ["cat"]
    queue.close()


PLAIN = """
import sys
from queue_core import App, NewTask
from queue_core.testing import run_until_empty

app = App()
app.task(queue="q")(lambda task: None)
assert run_until_empty(app, NewTask())[0].error is None
print({"pydantic", "yaml"} & set(sys.modules))
"""


def test_raw_tasks_do_without_pydantic() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "set()"
