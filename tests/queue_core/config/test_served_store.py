"""Which store a server serves: known to be another one only where that is certain."""

from pathlib import Path

import pytest

from queue_core.config.served_store import here, served_store

A, B = Path("/srv/a"), Path("/srv/b")


@pytest.mark.parametrize(
    ("mine", "served", "is_another"),
    [
        pytest.param("sqlite:////srv/b/q.db", "sqlite:////srv/a/q.db", True, id="two files"),
        pytest.param("sqlite:////srv/a/q.db", "sqlite:////srv/a/q.db", False, id="one file"),
        pytest.param("sqlite:////srv/x/../a/q.db", "sqlite:////srv/a/q.db", False, id="one file by two paths"),
        pytest.param("sqlite:////srv/b/q.db", "postgresql://db/work", True, id="two engines"),
        pytest.param("postgresql://me:secret@db/work", "postgresql://you@db/work", False, id="two users"),
        pytest.param("postgresql://db/work", "postgresql://db/play", True, id="two databases"),
        pytest.param("postgresql://localhost/work", "postgresql://127.0.0.1/play", False, id="perhaps one host"),
        pytest.param("redis://cache:6379/0", "redis://cache:6379/1", True, id="two databases of Redis"),
        pytest.param("memory:", "memory:", True, id="two projects in memory"),
    ],
)
def test_a_server_of_another_project_is_known_by_its_store(mine: str, served: str, is_another: bool) -> None:
    told = served_store(served, A, host="here").to_text()
    assert served_store(mine, B, host="here").is_surely_another(told) is is_another


def test_a_server_of_the_same_folder_is_meant_whatever_its_store() -> None:
    told = served_store("sqlite:////srv/other.db", A, host="here").to_text()
    assert not served_store("sqlite:////srv/a/q.db", A, host="here").is_surely_another(told)


@pytest.mark.parametrize("host", ["there", ""])
def test_nothing_is_certain_of_another_host(host: str) -> None:
    told = served_store("sqlite:////srv/a/q.db", A, host=host).to_text()
    assert not served_store("sqlite:////srv/b/q.db", B, host="here").is_surely_another(told)
    assert not served_store("sqlite:////srv/b/q.db", B, host="").is_surely_another(told)


@pytest.mark.parametrize("told", ["", "ok", "1:2:3", "1:2:3:4:5:6"])
def test_a_server_that_does_not_say_may_be_the_one(told: str) -> None:
    assert not served_store("sqlite:////srv/b/q.db", B, host=here()).is_surely_another(told)


def test_what_is_said_shows_no_place() -> None:
    told = served_store("postgresql://me:secret@db.example/work", A, host=here()).to_text()
    assert not any(part in told for part in ("secret", "db.example", "work", "srv", "postgresql"))
