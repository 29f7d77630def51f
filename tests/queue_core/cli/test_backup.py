"""`towline backup`, as it is typed: by hand, by a server, and after the server's file was removed."""

import contextlib
from pathlib import Path
from typing import cast

import pytest

from queue_core.server.base.options import ServeOptions
from queue_core.stores import open_store
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from queue_core.verbs.roles import Role
from tests.queue_core.server.test_roles import SECRETS, TOKENS
from tests.support.commands import Commands
from tests.support.servers import a_server
from tests.support.stores.task_builders import a_queue, add, stats

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 30s}
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    store = SqliteStore(towline.folder / "queue.db")
    a_queue(store)
    add(store, NewTask(b"one"), NewTask(b"two"))
    store.close()
    return towline


def ready(path: Path) -> int:
    store = SqliteStore(path)
    try:
        return stats(store).ready
    finally:
        store.close()


def test_a_copy_is_told_in_one_line_and_is_a_store(towline: Commands) -> None:
    told = towline("backup", "saved.db")
    assert (told.code, told.out) == (0, "")
    assert told.err.startswith(f"{towline.folder / 'saved.db'}: 2 tasks, ")
    assert ready(towline.folder / "saved.db") == 2


def test_json_tells_the_same_for_programs(towline: Commands) -> None:
    told = towline("backup", "saved.db", "--json")
    size = (towline.folder / "saved.db").stat().st_size
    assert told.json == {"file": str(towline.folder / "saved.db"), "size_bytes": size, "tasks": 2}
    assert told.err == ""


def test_a_file_that_is_there_is_replaced_only_when_that_is_said(towline: Commands) -> None:
    (towline.folder / "saved.db").write_bytes(b"precious")
    told = towline("backup", "saved.db")
    assert (told.code, "--overwrite" in told.err) == (73, True)
    assert (towline.folder / "saved.db").read_bytes() == b"precious"
    assert towline("backup", "saved.db", "--overwrite").code == 0
    assert ready(towline.folder / "saved.db") == 2


@pytest.mark.parametrize(
    ("url", "tool"),
    [
        ("postgresql://localhost/queue", "pg_dump"),
        ("redis://localhost:6379/0", "BGSAVE"),
        ("redis+cluster://h", "BGSAVE"),
    ],
)
def test_other_stores_are_backed_up_by_tools_of_their_own(towline: Commands, url: str, tool: str) -> None:
    told = towline("backup", "saved.db", "--store", url)
    assert (told.code, tool in told.err) == (65, True)


@pytest.mark.parametrize("file", [".", "nowhere/saved.db", "queue.db-wal"])
def test_a_place_where_no_copy_can_be_is_refused(towline: Commands, file: str) -> None:
    told = towline("backup", file, "--overwrite")
    assert told.code in {2, 65, 66}
    assert "bug in Towline" not in told.err


def test_a_missing_store_is_not_made(towline: Commands) -> None:
    assert towline("backup", "saved.db", "--store", "sqlite:///none.db").code == 66
    assert not (towline.folder / "none.db").exists()


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_server_saves_what_it_holds_also_after_its_file_was_removed(towline: Commands, is_removed: bool) -> None:
    path = towline.folder / "queue.db"
    with a_server(open_store(f"sqlite:///{path}")) as server:
        with contextlib.closing(server.queue()) as queue:
            queue.add(b"three")
        if is_removed:
            for kind in ("", "-wal", "-shm"):
                path.with_name(f"queue.db{kind}").unlink()
            assert server.ask("GET", "/readyz").status == 503
        told = towline("backup", "saved.db", "--url", server.url, "--json")
        assert (told.code, cast("dict[str, object]", told.json)["tasks"]) == (0, 3)
        assert not list(towline.folder.glob("queue.db-backup-*"))
        again = towline("backup", "saved.db", "--url", server.url)
        assert again.code == 73
    assert ready(towline.folder / "saved.db") == 2


def test_a_server_of_another_store_says_what_to_use(towline: Commands) -> None:
    with a_server() as server:
        told = towline("backup", "saved.db", "--url", server.url)
        assert (told.code, "towline export" in told.err) == (69, True)


def test_only_an_admin_has_a_server_make_a_copy(towline: Commands) -> None:
    store = open_store(f"sqlite:///{towline.folder / 'queue.db'}")
    with a_server(store, options=ServeOptions(tokens=TOKENS)) as server:
        for role in Role:
            told = server.ask(
                "POST",
                "/v1/backup",
                b"{}",
                headers=[("content-type", "application/json"), ("authorization", f"Bearer {SECRETS[role]}")],
            )
            assert told.status == (200 if role is Role.ADMIN else 403)
