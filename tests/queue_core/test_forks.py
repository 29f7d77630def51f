"""A queue that was opened before a fork, in child and parent: one contract for every store and the client."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queue_core.client.connect import open_queue
from queue_core.errors import StoreUnavailableError
from queue_core.server.base.options import ServeOptions
from queue_core.stores.sqlite.driver import stdlib_driver
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from tests.support.fleet.certificates import a_certificate
from tests.support.servers import a_server
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import a_queue, add

PROJECT = Path(__file__).parents[2]
TASK = NewTask(b"task")
PLACES = ("sqlite", "postgresql", "redis", "http", "unix", "https")


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a queue is: in each store, or behind a server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'queue.db'}"
    elif request.param in ("postgresql", "redis"):
        yield new_store_url(request.param)
    elif request.param == "unix":
        with a_server(options=ServeOptions(socket_path=tmp_path / "s")):
            yield f"unix://{tmp_path / 's'}"
    elif request.param == "https":
        made = a_certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(made.certificate, made.key)
        with a_server() as running, behind_tls(running.port, context) as port:
            yield f"https://localhost:{port}"
    else:
        with a_server() as running:
            yield running.url


@contextmanager
def behind_tls(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """A way to a server of this machine that speaks TLS, as a reverse proxy does; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        def serve(plain: socket.socket) -> None:
            try:
                outside = context.wrap_socket(plain, server_side=True)
            except OSError:
                return
            with outside, socket.create_connection(("127.0.0.1", port)) as inside:
                back = threading.Thread(target=pass_on, args=(inside, outside), daemon=True)
                back.start()
                pass_on(outside, inside)
                back.join(10)

        def accept() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(plain,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def report_of(story: str, url: str) -> Any:
    """Run a story of `tests.support.forking_program` to its end."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.support.forking_program", story, url],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def there(url: str) -> list[str]:
    """The payloads of all tasks, sorted."""
    queue = open_queue(url)
    payloads: list[str] = []
    while leases := queue.lease(1000, worker="looks"):
        payloads += [lease.payload.decode() for lease in leases]
    queue.close()
    return sorted(payloads)


def test_what_children_and_parent_add_at_the_same_time_is_there_once(url: str) -> None:
    report = report_of("siblings", url)
    assert len(report["added"]) == 126
    assert there(url) == sorted(report["added"])


def test_a_pool_of_a_producer_adds_through_the_queue_it_was_forked_with(url: str) -> None:
    report = report_of("pool", url)
    assert len(report["added"]) == 61
    assert there(url) == sorted(report["added"])


def test_a_child_of_a_child_has_a_session_of_its_own(url: str) -> None:
    report = report_of("grandchildren", url)
    assert len(report["added"]) == 49
    assert there(url) == sorted(report["added"])


def test_a_child_is_not_held_up_by_calls_that_were_under_way_at_the_fork(url: str) -> None:
    report = report_of("busy", url)
    assert report["failed"] == []
    assert there(url) == sorted(report["added"])


def test_a_child_works_and_leaves_the_leases_of_its_parent_alone(url: str) -> None:
    report = report_of("verbs", url)
    assert report["child"] == {"lost": [], "in_flight": 1, "listed": 3}
    assert report["left"] == ["handed-on", "task2"]


def test_who_waits_is_woken_from_the_other_side_of_a_fork(url: str) -> None:
    report = report_of("woken", url)
    assert report["child"] == ["from-parent-0"]
    assert report["parent"] == "from-child-0"


def test_a_child_loses_nothing_when_its_parent_closes_the_queue_and_others_come_and_go(url: str) -> None:
    report = report_of("orphan", url)
    assert len(report["added"]) == 13
    assert there(url) == sorted(report["added"])


def test_a_queue_that_was_closed_before_the_fork_is_closed_in_the_child(url: str) -> None:
    assert report_of("closed", url)["child"] == "StoreUnavailableError"


def test_a_memory_store_says_in_the_child_that_its_copy_would_reach_nobody() -> None:
    report = report_of("memory", "memory:")
    assert len(report["child"]) == 3
    assert all("was forked from that one" in each for each in report["child"])
    assert report["added"] == ["parent-0"]


def in_child(call: Any) -> str:
    """What a call comes to in the child of a fork of this process, as text."""
    reader, writer = os.pipe()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that there are threads
        process = os.fork()
    if not process:
        try:
            report = str(call())
        except BaseException as error:  # noqa: BLE001 - told by the parent
            report = f"{type(error).__name__}: {error}"
        os.write(writer, report.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        report = answers.read().decode()
    os.waitpid(process, 0)
    return report


def locks_of(process: int, path: Path) -> set[str]:
    """The locks that a process has on a store's files, as the kernel tells."""
    files = {str(file.stat().st_ino): file.name for file in path.parent.iterdir()}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
    mine = [line for line in lines if line[1] == "POSIX" and line[4] == str(process)]
    return {files[line[5].rpartition(":")[2]] for line in mine if line[5].rpartition(":")[2] in files}


def test_a_child_holds_sqlites_locks_itself_and_its_parent_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    store, beside = SqliteStore(path), SqliteStore(path)
    a_queue(store)
    theirs = locks_of(os.getpid(), path)
    assert theirs == {"queue.db", "queue.db-shm"}

    def child() -> list[str]:
        add(store, TASK)
        return sorted(locks_of(os.getpid(), path) & locks_of(os.getppid(), path))

    assert in_child(child) == str(sorted(theirs))
    assert locks_of(os.getpid(), path) == theirs
    beside.close()
    store.close()


def test_a_library_that_cannot_leave_a_file_alone_refuses_in_the_child(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "queue.db", driver=stdlib_driver())
    a_queue(store)
    report = in_child(lambda: len(add(store, TASK)))
    assert report == "1" if sys.version_info >= (3, 12) else "fork before the store is opened" in report
    assert len(add(store, TASK)) == 1
    store.close()


def test_a_copy_under_way_is_a_call_that_a_fork_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_core.process.forking.PAUSE_SECONDS", 0.05)
    store = SqliteStore(tmp_path / "queue.db")
    a_queue(store)
    report: list[str] = []

    def fork_once(_done: int, _pages: int) -> None:
        if not report:
            report.append(in_child(lambda: add(store, TASK)))

    store.copy_to(tmp_path / "copy.db", fork_once)
    assert "did not end within" in report[0]
    assert in_child(lambda: len(add(store, TASK))) == "1"
    store.close()


def test_a_look_that_outlasts_the_forks_patience_is_told_in_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_core.process.forking.PAUSE_SECONDS", 0.05)
    store = SqliteStore(tmp_path / "queue.db")
    a_queue(store)
    with store.read():
        report = in_child(lambda: add(store, TASK))
        assert report.startswith(StoreUnavailableError.__name__)
        assert "did not end within" in report
    assert len(add(store, TASK)) == 1
    assert in_child(lambda: len(add(store, TASK))) == "1"
    store.close()
