"""One file by any path: links are followed once, a second name is refused, and what is made is its owner's alone."""

import os
import stat
from pathlib import Path

import pytest

from queue_core.errors import InvalidSettingError, StoreUnsafeError
from queue_core.stores import open_store
from queue_core.task import ANY, NewTask
from tests.support.stores.task_builders import a_queue, add, stats


def url_of(path: Path | str) -> str:
    return f"sqlite:///{path}"


def use(url: str) -> str:
    """Add a task to the store; returns the URL by which it knows itself."""
    store = open_store(url)
    a_queue(store)
    add(store, NewTask())
    store.sync(store.ticket())
    store.signals.subscribe("work", ANY).close()
    own = store.url
    store.close()
    return own


def ready(url: str) -> int:
    store = open_store(url)
    try:
        return stats(store).ready
    finally:
        store.close()


@pytest.fixture
def real(tmp_path: Path) -> Path:
    folder = tmp_path / "real"
    folder.mkdir()
    return folder


def test_all_that_a_store_keeps_lies_beside_the_file_behind_a_link(tmp_path: Path, real: Path) -> None:
    (tmp_path / "queue.db").symlink_to("real/tasks.db")
    assert use(url_of(tmp_path / "queue.db")) == url_of(real / "tasks.db")
    assert {each.name for each in tmp_path.iterdir()} == {"queue.db", "real"}
    assert {"tasks.db", "tasks.db-lock", "tasks.db-wake"} <= {each.name for each in real.iterdir()}
    assert ready(url_of(real / "tasks.db")) == 1


def test_a_link_to_a_link_in_a_linked_folder_is_followed_to_the_end(tmp_path: Path, real: Path) -> None:
    (tmp_path / "folder").symlink_to("real")
    (real / "first.db").symlink_to("second.db")
    (real / "second.db").symlink_to("tasks.db")
    assert use(url_of(tmp_path / "folder" / "first.db")) == url_of(real / "tasks.db")
    assert ready(url_of(real / "tasks.db")) == 1


def test_two_dots_after_a_linked_folder_lead_out_of_the_folder_behind_the_link(tmp_path: Path, real: Path) -> None:
    (real / "deep").mkdir()
    (tmp_path / "link").symlink_to("real/deep")
    assert use(url_of(f"{tmp_path}/link/../tasks.db")) == url_of(real / "tasks.db")


def test_a_link_that_is_turned_elsewhere_does_not_move_a_store_that_is_open(tmp_path: Path, real: Path) -> None:
    link = tmp_path / "queue.db"
    link.symlink_to("real/tasks.db")
    store = open_store(url_of(link))
    a_queue(store)
    link.unlink()
    link.symlink_to("real/other.db")
    add(store, NewTask())
    store.sync(store.ticket())
    assert stats(store).ready == 1
    store.close()
    assert ready(url_of(real / "tasks.db")) == 1


def test_a_relative_path_is_that_of_the_folder_in_which_the_store_was_opened(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(real)
    store = open_store("sqlite:///../real/./tasks.db")
    a_queue(store)
    monkeypatch.chdir(tmp_path)
    add(store, NewTask())
    store.sync(store.ticket())
    store.close()
    assert ready(url_of(real / "tasks.db")) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["real"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "queue.db").symlink_to("other.db")
    (tmp_path / "other.db").symlink_to("queue.db")
    with pytest.raises(InvalidSettingError):
        open_store(url_of(tmp_path / "queue.db"))


def test_a_file_with_two_names_is_refused_by_both_and_left_alone(tmp_path: Path) -> None:
    use(url_of(tmp_path / "queue.db"))
    os.link(tmp_path / "queue.db", tmp_path / "backup.db")
    content = (tmp_path / "queue.db").read_bytes()
    for name in ("queue.db", "backup.db"):
        with pytest.raises(StoreUnsafeError, match=name):
            open_store(url_of(tmp_path / name))
    assert (tmp_path / "queue.db").read_bytes() == content
    (tmp_path / "backup.db").unlink()
    assert ready(url_of(tmp_path / "queue.db")) == 1


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_file_and_all_beside_it_are_its_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = open_store(url_of(tmp_path / "queue.db"))
        a_queue(store)
        add(store, NewTask())
        store.signals.subscribe("work", ANY).close()
    finally:
        os.umask(before)
    found = modes(tmp_path)
    store.close()
    assert found.pop("queue.db-wake") == 0o700
    assert {"queue.db", "queue.db-wal", "queue.db-shm", "queue.db-lock"} <= set(found)
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o666])
def test_a_file_that_is_there_keeps_its_mode_and_gives_it_to_those_beside_it(tmp_path: Path, mode: int) -> None:
    (tmp_path / "queue.db").touch()
    (tmp_path / "queue.db").chmod(mode)
    store = open_store(url_of(tmp_path / "queue.db"))
    a_queue(store)
    found = modes(tmp_path)
    store.close()
    assert {"queue.db", "queue.db-wal", "queue.db-shm", "queue.db-lock"} <= set(found)
    assert set(found.values()) == {mode}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_root_makes_beside_a_users_file_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    os.chown(tmp_path / "queue.db", 1234, 2345)
    store = open_store(url_of(tmp_path / "queue.db"))
    owners = {each.name: (each.stat().st_uid, each.stat().st_gid) for each in tmp_path.iterdir()}
    store.close()
    assert set(owners.values()) == {(1234, 2345)}
