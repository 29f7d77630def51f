"""`towline why` names who holds a snapshot of the store, of a queue and of a pool."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import cast

import psycopg
import pytest

from orchestrator.state.directory import StateDir
from queue_core.client import local_calls
from queue_core.client.connect import open_queue
from queue_core.stores.postgres import held_snapshot as holders
from queue_core.task import NewTask
from tests.support.commands import Commands
from tests.support.eventually import eventually
from tests.support.stores.stores import new_url


@pytest.fixture
def url(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(holders, "MANY_DEAD_ROWS", 50)
    url = new_url("postgresql")
    settings = {
        "store": url,
        "durability": "relaxed",
        "server": {"listen": "unix:none.sock"},
        "queues": {"thumbs": {}},
        "pools": {"resize": {"queue": "thumbs", "app": "tasks:app", "slo": "5s"}},
    }
    (towline.folder / "towline.yaml").write_text(json.dumps(settings))
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    files.write_snapshot({"pools": {"resize": {}}, "workers": []})
    assert towline("why", "thumbs").code == 0  # makes the queue
    return url


@contextmanager
def a_held_snapshot(url: str) -> Iterator[int]:
    """A transaction of an analyst that keeps many dead rows; yields its process."""
    with psycopg.connect(url, application_name="analyst") as holder, closing(open_queue(url, "thumbs")) as queue:
        holder.execute("SELECT pg_current_xact_id()")
        queue.add([NewTask(b"x")] * 100)
        queue.delete(queue.lease(100))
        with psycopg.connect(url, autocommit=True) as looking:
            eventually(
                lambda: looking.execute(
                    "SELECT 1 WHERE pg_stat_get_dead_tuples('towline.tasks'::regclass) > 50"
                ).fetchone()
            )
        yield holder.info.backend_pid


def sentences(towline: Commands, subject: str) -> list[str]:
    told = cast("dict[str, list[str]]", towline("why", subject, "--json").json)
    return [one for one in told["sentences"] if "snapshot" in one]


@pytest.mark.parametrize("subject", ["thumbs", "resize"])
def test_the_holder_is_named_with_what_ends_it(
    towline: Commands, url: str, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_held_snapshot(url) as pid:
        assert sentences(towline, subject) == []  # not for a minute yet
        monkeypatch.setattr(local_calls, "HELD_SECONDS", 0.0)
        (sentence,) = sentences(towline, subject)
        assert f"idle in transaction pid {pid} of analyst as towline from 127.0.0.1" in sentence
        assert f"SELECT pg_terminate_backend({pid})" in sentence
        shown = " ".join(towline("why", subject).out.split())
        assert "! a snapshot is held by idle in transaction" in shown
        assert f"to end it: SELECT pg_terminate_backend({pid})" in shown
