"""A private Redis Cluster, and a primary under Sentinels: queues on several nodes, which move, fail and come back."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis.crc import key_slot
from structlog.testing import capture_logs

from queue_core.client.local_calls import LocalQueues
from queue_core.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StoreUnavailableError,
    StoreUnsafeError,
    WorkerRetiredError,
)
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.redis.client import pubsub
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.keys import key_of
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine
from tests.support.stores.redis_clients import a_client, a_redis, impatient, operator, signals_on
from tests.support.stores.redis_cluster import Cluster, a_cluster, is_well, node_id, sentinels_of
from tests.support.stores.verb_table import VERBS, look, prepare

LONG = 30.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for tests that leave it as it was."""
    with a_cluster(tmp_path_factory.mktemp("cluster"), durable=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The same, empty."""
    shared.empty()
    return shared


@pytest.fixture
def store(cluster: Cluster) -> Iterator[Store]:
    opened = open_store(cluster.url)
    yield opened
    opened.close()


def slot_of(queue: str) -> int:
    return key_slot(key_of(queue).encode())


def queues_of(store: Store) -> LocalQueues:
    return LocalQueues(QueueService(store, jitter=lambda: 0.0))


def a_queue_on(node: int, *, nodes: int = 3) -> str:
    """The name of a queue whose slot the node holds from the start."""
    return next(name for number in range(1000) if slot_of(name := f"q{number}") * nodes // 16384 == node)


def count_on(client: RedisClient, node: int) -> object:
    return client.call("count", [f"{key_of(a_queue_on(node))}:test"], [1])


# -- all verbs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_does_on_every_node_what_it_does_in_the_reference_store(store: Store, verb: str) -> None:
    reference, clustered = queues_of(open_store("memory:")), queues_of(store)
    for node in range(3):
        name = a_queue_on(node)
        VERBS[verb](prepare(reference, name, act_on=reference))
        VERBS[verb](prepare(clustered, name, act_on=clustered))
    for node in range(3):
        assert look(clustered, a_queue_on(node)) == look(reference, a_queue_on(node))
    assert [spec.name for spec in clustered.queues()] == [spec.name for spec in reference.queues()]
    assert store.check().problems == ()


def test_all_keys_of_a_queue_are_on_one_node(cluster: Cluster, store: Store) -> None:
    queues = queues_of(store)
    for node in range(3):
        prepare(queues, a_queue_on(node), act_on=queues)
    for node, engine in enumerate(cluster.primaries):
        held = [key.decode() for key in operator(engine).keys("towline:{[^:]*")]
        assert len(held) > 3
        assert {key[: key.index("}") + 1] for key in held} == {key_of(a_queue_on(node))}


def test_a_step_over_two_nodes_is_refused_before_it_changes_anything(store: Store) -> None:
    queues = queues_of(store)
    prepared = prepare(queues, a_queue_on(0), act_on=queues)
    prepare(queues, a_queue_on(1), act_on=queues)
    before = look(queues, a_queue_on(0)), look(queues, a_queue_on(1))
    with pytest.raises(InvalidRequestError):
        prepared.queue.delete([Deletion(prepared.lease.token, (NewTask(queue=a_queue_on(1)),))])
    assert (look(queues, a_queue_on(0)), look(queues, a_queue_on(1))) == before


def test_a_worker_that_is_to_finish_on_one_node_gets_nothing_on_another(store: Store) -> None:
    queues = queues_of(store)
    names = [a_queue_on(node) for node in range(3)]
    for name in names:
        queues.put_queue(QueueSpec(name))
        queues.queue(name).add(b"x")
    (held,) = queues.queue(names[1]).lease(worker="w")
    assert not queues.retire_worker("w", busy="finish")
    assert not queues.retire_worker("w")  # asked by somebody who knows of nothing: that readmits nobody
    for name in names:
        with pytest.raises(WorkerRetiredError):
            queues.queue(name).lease(worker="w")
    queues.queue(names[1]).delete(held)
    assert queues.retire_worker("w", busy="finish")


def test_a_waiter_is_woken_on_every_node(store: Store, cluster: Cluster) -> None:
    other = open_store(cluster.url)
    with ThreadPoolExecutor(3) as threads:
        for node in range(3):
            name = a_queue_on(node)
            queues_of(store).put_queue(QueueSpec(name))
            waiting = threads.submit(queues_of(other).queue(name).lease, wait_seconds=LONG)
            eventually(lambda node=node, name=name: operator(cluster.primaries[node]).exists(f"{key_of(name)}:e"))
            queues_of(store).queue(name).add(b"work")
            assert [lease.payload for lease in waiting.result(LONG)] == [b"work"]
    other.close()


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_must_be_addressed_as_part_of_its_cluster(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(StoreUnsafeError) as caught, a_client(cluster.primaries[0].tcp_url):
        pass
    assert "redis+cluster://" in str(caught.value)
    with (
        a_redis(tmp_path) as alone,
        pytest.raises(StoreUnavailableError),
        a_client(f"redis+cluster://{alone.host}:{alone.port}"),
    ):
        pass


def test_a_queue_that_moves_to_another_node_is_followed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "ROUND_SECONDS", 0.1)
    impatient(monkeypatch, 1.0)
    name = a_queue_on(0)
    with a_client(cluster.url) as client, signals_on(cluster.url) as signals:
        assert count_on(client, 0) == 1
        ear = signals.subscribe(name, ANY)
        begin_to_move(slot_of(name), cluster.primaries[0], cluster.primaries[1])
        with capture_logs(), pytest.raises(StoreUnavailableError):
            count_on(client, 0)
        end_to_move(slot_of(name), cluster.primaries[0], cluster.primaries[1])
        try:
            assert count_on(client, 0) == 2
            assert ear.wait(timeout_seconds=LONG)
            eventually(lambda: operator(cluster.primaries[1]).exists(f"{key_of(name)}:e"))
            signals.publish(name, None, 1)
            assert ear.wait(timeout_seconds=LONG)
            ear.close()
        finally:
            begin_to_move(slot_of(name), cluster.primaries[1], cluster.primaries[0])
            end_to_move(slot_of(name), cluster.primaries[1], cluster.primaries[0])
        assert count_on(client, 0) == 3


def begin_to_move(slot: int, source: Engine, target: Engine) -> None:
    """As `redis-cli --cluster reshard` does it."""
    operator(target).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    operator(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
    while keys := operator(source).execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        operator(source).execute_command("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *keys)


def end_to_move(slot: int, source: Engine, target: Engine) -> None:
    for node in (target, source):
        operator(node).execute_command("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))


def test_a_lost_node_takes_its_queues_with_it_and_brings_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, 1.0)
    with a_cluster(tmp_path, durable=True) as cluster, a_client(cluster.url) as client, capture_logs():
        for node in cluster.primaries:
            operator(node).config_set("cluster-require-full-coverage", "no")
        assert [count_on(client, node) for node in range(3)] == [1, 1, 1]
        cluster.primaries[1].kill()
        with pytest.raises(StoreUnavailableError):
            count_on(client, 1)
        with pytest.raises(StoreUnavailableError) as caught:
            count_on(client, 1)
        assert not isinstance(caught.value, OutcomeUnknownError)
        assert (count_on(client, 0), count_on(client, 2)) == (2, 2)
        with a_client(cluster.url) as newcomer:
            assert count_on(newcomer, 0) == 3
        cluster.primaries[1].start()
        assert eventually(lambda: reached(client, 1), seconds=LONG) in (2, 3)
        for node in cluster.primaries:
            operator(node).config_set("cluster-require-full-coverage", "yes")
        cluster.primaries[2].kill()
        eventually(lambda: not is_well(cluster.primaries[0], 3))
        with pytest.raises(StoreUnavailableError) as caught:
            count_on(client, 0)
        assert "cluster is down" in str(caught.value)


def reached(client: RedisClient, node: int) -> object:
    try:
        return count_on(client, node)
    except StoreUnavailableError:
        return None


def wait_for_replica(primary: Engine) -> None:
    """Until its one replica has all that was written so far; `WAIT` tells only of what its own connection wrote."""
    written = operator(primary).info("replication")["master_repl_offset"]
    eventually(lambda: operator(primary).info("replication")["slave0"]["offset"] >= written)


def test_a_replica_that_takes_over_keeps_queues_and_waiters_going(tmp_path: Path) -> None:
    with a_cluster(tmp_path, replicas=1) as cluster, a_client(cluster.url) as client, capture_logs():
        name = a_queue_on(0)
        with signals_on(cluster.url) as signals:
            assert count_on(client, 0) == 1
            wait_for_replica(cluster.primaries[0])
            ear = signals.subscribe(name, ANY)
            cluster.primaries[0].kill()
            assert eventually(lambda: reached(client, 0), seconds=LONG) in (2, 3)
            assert ear.wait(timeout_seconds=LONG)
            eventually(lambda: operator(cluster.replicas[0]).exists(f"{key_of(name)}:e"))
            signals.publish(name, None, 1)
            assert ear.wait(timeout_seconds=LONG)
            ear.close()


# -- sentinels --------------------------------------------------------------------------------------------------------


def test_the_primary_that_sentinels_name_is_followed(tmp_path: Path) -> None:
    at_once = {"repl-diskless-sync-delay": "0"}
    with a_redis(tmp_path, at_once) as first, a_redis(tmp_path, at_once) as second:
        operator(second).replicaof(first.host, first.port)
        eventually(lambda: operator(second).info("replication").get("master_link_status") == "up")
        with sentinels_of(tmp_path, first, name="main") as url, capture_logs():
            key = "{link}:counter"
            with a_client(url) as client:
                assert client.call("count", [key], [1]) == 1
                wait_for_replica(first)
                first.kill()
                assert eventually(lambda: counted_on(client, key), seconds=LONG) in (2, 3)
                assert operator(second).hget(key, "count") in (b"2", b"3")
            with pytest.raises(StoreUnavailableError), a_client(url.replace("/main", "/other")):
                pass


def counted_on(client: RedisClient, key: str) -> object:
    try:
        return client.call("count", [key], [1])
    except StoreUnavailableError:
        return None
