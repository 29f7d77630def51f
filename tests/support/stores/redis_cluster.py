"""A private Redis Cluster, and Sentinels that watch a primary: on free ports, ended by pid."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.exceptions import RedisError

from tests.support.eventually import eventually
from tests.support.stores.engine_process import Engine, EngineLaunch
from tests.support.stores.engines import free_port
from tests.support.stores.redis_clients import a_redis, operator

SLOTS = 16384
NODE_TIMEOUT_MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running nodes: the primaries by their initial slots, and replicas of the first."""

    primaries: Sequence[Engine]
    replicas: Sequence[Engine]

    @property
    def url(self) -> str:
        """A URL that names every primary."""
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in self.primaries)

    def empty(self) -> None:
        """Remove all keys."""
        for node in self.primaries:
            operator(node).flushall()

    def holder(self, slot: int) -> Engine:
        """Return the primary that held a slot at the start."""
        return self.primaries[slot * len(self.primaries) // SLOTS]


@contextmanager
def a_cluster(folder: Path, *, primaries: int = 3, replicas: int = 0, durable: bool = False) -> Iterator[Cluster]:
    """Start the nodes, distribute the slots, and wait until all nodes agree that the cluster is healthy.

    Skips, by name, where there is no Redis.
    """
    with ExitStack() as stack:
        nodes: list[Engine] = []
        ports = [free_port() for _ in range(primaries + replicas)]
        for port in ports:
            settings = {
                "cluster-enabled": "yes",
                "cluster-port": str(port),
                "cluster-node-timeout": str(NODE_TIMEOUT_MILLISECONDS),
                "repl-diskless-sync-delay": "0",
            }
            nodes.append(stack.enter_context(a_redis(folder, settings, durable=durable)))
        cluster = Cluster(nodes[:primaries], nodes[primaries:])
        _introduce(cluster, ports)
        yield cluster


def _introduce(cluster: Cluster, ports: Sequence[int]) -> None:
    """Assign the slots and connect the nodes."""
    everybody = [*cluster.primaries, *cluster.replicas]
    for number, node in enumerate(cluster.primaries):
        first, last = number * SLOTS // len(cluster.primaries), (number + 1) * SLOTS // len(cluster.primaries) - 1
        operator(node).execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        operator(node).execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for node, port in zip(everybody[1:], ports[1:], strict=True):
        operator(everybody[0]).execute_command("CLUSTER", "MEET", node.host, node.port, port)
    eventually(lambda: all(is_well(node, len(everybody)) for node in everybody), seconds=30)
    for replica in cluster.replicas:
        operator(replica).execute_command("CLUSTER", "REPLICATE", node_id(cluster.primaries[0]))
        eventually(lambda replica=replica: operator(replica).info("replication").get("master_link_status") == "up")
    if cluster.replicas:
        eventually(lambda: operator(cluster.primaries[0]).info("replication")["connected_slaves"] == 1)


def is_well(node: Engine, nodes: int) -> bool:
    """Return whether a node knows that many others and every slot is served."""
    try:
        said = operator(node).execute_command("CLUSTER", "INFO")
    except RedisError:
        return False
    fields = said if isinstance(said, dict) else _fields(said)
    return fields.get("cluster_state") == "ok" and int(fields.get("cluster_known_nodes", 0)) == nodes


def node_id(node: Engine) -> str:
    """Return the node's id."""
    said = operator(node).execute_command("CLUSTER", "MYID")
    return said.decode() if isinstance(said, bytes) else str(said)


def _fields(said: object) -> dict[str, str]:
    text = said.decode() if isinstance(said, bytes) else str(said)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


@contextmanager
def sentinels_of(folder: Path, primary: Engine, *, name: str) -> Iterator[str]:
    """Run one sentinel (quorum 1) that watches a primary with a replica; yield the URL of the watched primary."""
    port = free_port()
    home = folder / "sentinel"
    home.mkdir()
    settings = home / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {home}\n"
        f"sentinel monitor {name} {primary.host} {primary.port} 1\n"
        f"sentinel down-after-milliseconds {name} {NODE_TIMEOUT_MILLISECONDS}\n"
        f"sentinel failover-timeout {name} 5000\n"
    )
    launch = EngineLaunch(
        "sentinel", ["redis-server", str(settings), "--sentinel"], home, ready=lambda: bool(_answer_of(port, "PING"))
    )
    sentinel = Engine(launch, tcp_url=f"redis://127.0.0.1:{port}", host="127.0.0.1", port=port)
    try:
        sentinel.start()
        eventually(lambda: _answer_of(port, "SENTINEL", "REPLICAS", name), seconds=30)
        yield f"redis+sentinel://127.0.0.1:{port}/{name}"
    finally:
        sentinel.stop()


def _answer_of(port: int, *command: str) -> object:
    client = redis.Redis(port=port)
    try:
        return client.execute_command(*command)
    except RedisError:
        return None
    finally:
        client.close()
