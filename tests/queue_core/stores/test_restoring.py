"""A restored backup has its tasks as they were: what was done since runs again, newer leases are refused."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from queue_core import LeaseLostError, NewTask, open_queue
from tests.support.commands import Commands
from tests.support.eventually import eventually
from tests.support.stores import engines
from tests.support.stores.engine_process import EngineUnavailableError
from tests.support.stores.engines import postgresql_program
from tests.support.stores.shared_engines import SharedEngines

PAYLOADS = (b"held", b"leased since", b"done since")
AT_ONCE = {"repl-diskless-sync-delay": "0"}
"""Settings of a Redis that makes a dump when it is asked, not 5 s later."""


def _check(url: str, back_up: Callable[[], None], restore: Callable[[], str]) -> None:
    queue = open_queue(url, "thumbs")
    queue.add([NewTask(payload, name=payload.decode().replace(" ", "-")) for payload in PAYLOADS])
    (held,) = queue.lease(seconds=600)
    back_up()
    since, done = queue.lease(2, seconds=600)
    queue.delete(done)
    queue.add(NewTask(b"added since"))
    queue.close()
    queue = open_queue(restore(), "thumbs")
    try:
        tasks = queue.peek(payload_bytes=100).tasks
        assert [(task.payload, task.state.name) for task in tasks] == [
            (b"held", "LEASED"),
            (b"leased since", "READY"),
            (b"done since", "READY"),
        ]
        with pytest.raises(LeaseLostError):
            queue.delete(since)
        queue.delete(held)
        assert [added.status for added in queue.add([NewTask(b"", name="held"), NewTask(b"", name="new")])] == [
            "tombstoned",
            "added",
        ]
        assert [lease.payload for lease in queue.lease(9)] == [b"leased since", b"done since", b""]
    finally:
        queue.close()


def test_an_sqlite_backup_is_restored(tmp_path: Path, towline: Commands) -> None:
    path, saved = tmp_path / "towline.db", tmp_path / "saved.db"

    def back_up() -> None:
        assert towline("backup", str(saved), "--store", f"sqlite:///{path}").code == 0

    def restore() -> str:
        for file in tmp_path.glob("towline.db*"):
            file.unlink()
        shutil.copy(saved, path)
        return f"sqlite:///{path}"

    _check(f"sqlite:///{path}", back_up, restore)


def test_a_dump_of_postgresql_is_restored(tmp_path: Path, shared_engines: SharedEngines) -> None:
    try:
        url, restored = (shared_engines.new_url("postgresql") for _ in range(2))
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    saved = tmp_path / "saved.dump"

    def back_up() -> None:
        dump = [str(postgresql_program("pg_dump")), "--schema=towline", "--format=custom", f"--file={saved}", url]
        subprocess.run(dump, check=True)

    def restore() -> str:
        load = [str(postgresql_program("pg_restore")), "--no-owner", f"--dbname={restored}", str(saved)]
        subprocess.run(load, check=True)
        return restored

    _check(url, back_up, restore)


def test_a_dump_of_redis_is_restored(tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    try:
        with (
            engines.redis(tmp_path, durable=True, settings=AT_ONCE) as source,
            engines.redis(tmp_path, settings={"dir": str(tmp_path / "restored")}) as target,
        ):
            target.stop()

            def back_up() -> None:
                saved = tmp_path / "restored" / "dump.rdb"
                subprocess.run(["redis-cli", "-u", source.tcp_url, "--rdb", saved], check=True, capture_output=True)

            def restore() -> str:
                target.start()
                with redis.Redis.from_url(target.tcp_url) as client:
                    client.config_set("appendfsync", "always")
                    client.config_set("appendonly", "yes")
                    eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
                return target.tcp_url

            _check(source.tcp_url, back_up, restore)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
