"""What a private Redis may answer, and must be set to: which calls wait, which are refused, and in what words."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
import redis
from structlog.testing import capture_logs

import queue_core
from queue_core.client.local_calls import LocalQueues
from queue_core.errors import OutcomeUnknownError, StoreError, StoreFullError, StoreUnavailableError, StoreUnsafeError
from queue_core.stores import open_store
from queue_core.stores.redis.client import handshake
from queue_core.stores.redis.client.errors import CallFailedError
from queue_core.task import ANY
from queue_core.unit.service import QueueService
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine
from tests.support.stores.redis_clients import KEY, a_client, a_redis, count, counted, impatient, operator
from tests.support.stores.verb_table import VERBS, prepare

LONG = 20.0
AT_ONCE = {"repl-diskless-sync-delay": "0"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A server for tests that leave it as it was."""
    with a_redis(tmp_path_factory.mktemp("redis")) as engine:
        yield engine


@pytest.fixture
def server(shared: Engine) -> Engine:
    """The same, empty."""
    operator(shared).flushall()
    return shared


def test_a_failover_is_waited_for(tmp_path: Path) -> None:
    with a_redis(tmp_path, AT_ONCE) as engine, a_redis(tmp_path, AT_ONCE) as other, a_client(engine.tcp_url) as one:
        assert count(one) == 1
        operator(other).replicaof(engine.host, engine.port)
        eventually(lambda: operator(other).info("replication")["master_link_status"] == "up")
        operator(engine).replicaof(other.host, other.port)
        with capture_logs() as logged, ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(count, one)
            eventually(lambda: logged)
            operator(engine).replicaof("NO", "ONE")
            assert waiting.result(LONG) == 2
        assert [each["event"] for each in logged] == [handshake.CONNECTION_LOST, handshake.CONNECTION_RESTORED]


def test_a_replica_is_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with a_redis(tmp_path) as engine, a_redis(tmp_path) as other, a_client(engine.tcp_url) as one:
        operator(engine).replicaof(other.host, other.port)
        with capture_logs(), pytest.raises(StoreUnavailableError) as caught:
            count(one)
        assert not isinstance(caught.value, OutcomeUnknownError)
        with pytest.raises(StoreUnavailableError), a_client(engine.tcp_url):
            pass


def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path) -> None:
    slow = {"key-load-delay": "10000", "loading-process-events-interval-bytes": "1024"}
    with a_redis(tmp_path, slow, durable=True) as engine, a_client(engine.tcp_url, durability="strict") as strict:
        count(strict)
        client = operator(engine)
        pipeline = client.pipeline(transaction=False)
        for number in range(100):
            pipeline.set(f"key:{number}", "x" * 50)
        pipeline.execute()
        for calls in range(2, 12):
            engine.kill()
            engine.start(wait=False)
            with capture_logs() as logged:
                assert count(strict) == calls
            if logged:  # else we were late, and it had loaded all
                break
        assert logged[0]["event"] == handshake.CONNECTION_LOST
        assert "async_loading:0" not in (engine.home / "server.log").read_text()
        assert client.dbsize() >= 100


def test_a_full_memory_is_told_and_room_can_be_made(tmp_path: Path) -> None:
    with a_redis(tmp_path, {"maxmemory": "4mb"}) as engine, a_client(engine.tcp_url) as one:
        with pytest.raises(StoreFullError):
            for number in range(100):
                one.call("fill", [KEY], [number])
        assert one.read("read", [KEY]) is None
        assert one.call("empty", [KEY]) == 1
        one.call("fill", [KEY], [0])


def test_a_disk_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with a_redis(tmp_path) as engine, a_client(engine.tcp_url) as one:
        count(one)
        (engine.home / "dump.rdb").mkdir()  # where it can't write its snapshot
        operator(engine).config_set("save", "3600 1")
        operator(engine).bgsave()
        eventually(lambda: operator(engine).info("persistence")["rdb_last_bgsave_status"] == "err")
        with capture_logs(), pytest.raises(StoreUnavailableError) as caught:
            count(one)
        assert "disk" in str(caught.value)
        assert counted(one) == 1
        operator(engine).config_set("save", "")


def test_too_few_replicas_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with a_redis(tmp_path) as engine, a_client(engine.tcp_url) as one:
        assert count(one) == 1
        operator(engine).config_set("min-replicas-to-write", 1)
        with capture_logs(), pytest.raises(StoreUnavailableError) as caught:
            count(one)
        assert "min-replicas-to-write" in str(caught.value)
        assert counted(one) == 1


def test_a_busy_server_is_waited_for(server: Engine) -> None:
    operator(server).config_set("busy-reply-threshold", "50")
    with a_client(server.tcp_url) as one, capture_logs() as logged, ThreadPoolExecutor(2) as threads:
        count(one)
        spinning = threads.submit(one.read, "spin", [KEY], [1])
        eventually(lambda: is_busy(server))
        assert threads.submit(count, one).result(LONG) == 2
        assert spinning.result(LONG) == 1
    assert logged[0]["event"] == handshake.CONNECTION_LOST
    operator(server).config_set("busy-reply-threshold", "5000")


def is_busy(server: Engine) -> bool:
    try:
        operator(server).ping()
    except redis.exceptions.RedisError as error:
        return "BUSY" in str(error)
    return False


def test_a_server_without_a_connection_left_is_waited_for(tmp_path: Path) -> None:
    with a_redis(tmp_path, {"maxclients": "3"}) as engine, a_client(engine.tcp_url) as one:
        count(one)
        others = [operator(engine) for _ in range(2)]
        for other in others:
            other.ping()
        with capture_logs() as logged, ThreadPoolExecutor(2) as threads:
            spinning = threads.submit(one.read, "spin", [KEY], [1])
            waiting = threads.submit(count, one)
            eventually(lambda: logged)
            others[0].close()
            assert waiting.result(LONG) == 2
            spinning.result(LONG)
        others[1].close()


@pytest.mark.parametrize(
    ("login", "rights"),
    [
        pytest.param("", "", id="no password"),
        pytest.param("worker:wrong@", "", id="a wrong one"),
        pytest.param("worker:secret@", "+@all -fcall -info -config", id="no right to look"),
    ],
)
def test_who_may_not_enter_is_told_how(tmp_path: Path, login: str, rights: str) -> None:
    with a_redis(tmp_path) as engine:
        chief = operator(engine)
        chief.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", *rights.split())
        chief.config_set("requirepass", "secret")
        with pytest.raises(StoreUnsafeError) as caught, a_client(f"redis://{login}{engine.host}:{engine.port}"):
            pass
        assert "secret" not in str(caught.value)


def test_a_user_with_the_documented_rights_can_do_everything(tmp_path: Path) -> None:
    page = (Path(queue_core.__file__).parents[1] / "docs/how-to/redis.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("ACL SETUSER towline "))
    with a_redis(tmp_path, durable=True) as engine:
        operator(engine).execute_command(*line.replace("PASSWORD", "secret").split())
        store = open_store(f"redis://towline:secret@{engine.host}:{engine.port}/1")
        queues = LocalQueues(QueueService(store))
        for number, verb in enumerate(VERBS.values()):
            verb(prepare(queues, f"q{number}", act_on=queues))
        assert store.check().problems == ()
        ear = store.signals.subscribe("q0", ANY)
        store.signals.publish("q0", None, 1)
        assert ear.wait(timeout_seconds=LONG)
        ear.close()
        store.close()


def test_a_fault_in_a_function_is_told_with_its_code(server: Engine) -> None:
    with a_client(server.tcp_url) as one:
        assert count(one) == 1
        with pytest.raises(CallFailedError) as caught:
            one.call("break", [KEY])
        assert caught.value.code == "WRONGTYPE"
        assert count(one) == 2


# -- what a server must be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "durability", "durable"),
    [
        ({}, "strict", False),
        ({"appendfsync": "everysec"}, "strict", True),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "relaxed", False),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}, "strict", True),
    ],
)
def test_a_server_that_can_lose_tasks_is_refused(
    tmp_path: Path, settings: dict[str, str], durability: Literal["strict", "relaxed"], durable: bool
) -> None:
    with a_redis(tmp_path, settings, durable=durable) as engine:
        with pytest.raises(StoreUnsafeError) as caught, a_client(engine.tcp_url, durability=durability):
            pass
        command = str(caught.value).partition("CONFIG SET ")[2].partition(", then")[0]
        operator(engine).execute_command("CONFIG", "SET", *command.split())
        eventually(lambda: not operator(engine).info("persistence")["aof_rewrite_in_progress"])
        with a_client(engine.tcp_url, durability=durability) as mended:
            assert count(mended) == 1


def test_what_can_be_lost_is_told_once_under_relaxed(server: Engine) -> None:
    with capture_logs() as logged, a_client(server.tcp_url) as one, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: count(one), range(40)))
    assert [each["event"] for each in logged] == [handshake.STORE_EXPOSED]
    assert logged[0]["log_level"] == "warning"
    assert "appendonly" in logged[0]["loss"]


def test_a_server_that_comes_back_set_worse_is_refused_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with a_redis(tmp_path, durable=True) as engine, a_client(engine.tcp_url, durability="strict") as strict:
        count(strict)
        operator(engine).config_set("appendfsync", "no")
        operator(engine).client_kill_filter(_type="normal", skipme=True)
        with capture_logs(), pytest.raises(StoreError) as caught:
            count(strict)
        assert "appendfsync" in str(caught.value)


def test_settings_that_are_not_shown_must_be_vouched_for(tmp_path: Path) -> None:
    with a_redis(tmp_path) as engine:
        operator(engine).execute_command("ACL", "SETUSER", "default", "-config")
        with pytest.raises(StoreUnsafeError) as caught, a_client(engine.tcp_url, durability="strict"):
            pass
        assert "assume_durable" in str(caught.value)
        with a_client(f"{engine.tcp_url}?assume_durable=true", durability="strict") as trusting:
            assert count(trusting) == 1
