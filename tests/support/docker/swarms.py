"""Private swarms: engines in their own network namespaces, one manager, the others workers.

No other network is touched: one virtual cable connects two engines. Containers reach this machine only through files:
the queue server's socket, and Python itself.
"""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.docker.engine import PrivateDockerEngine, docker_engine
from tests.support.docker.image import PATH
from tests.support.docker.image_files import merged_folders
from tests.support.stores.engine_process import EngineUnavailableError

IMAGE = "towline-swarm-test:latest"
"""An almost empty image: with `VOLUMES` a container sees this machine's programs."""
REPOSITORY = Path(__file__).resolve().parents[3]
VOLUMES = sorted({f"{path}:{path}:ro" for path in ("/usr", sys.base_prefix, sys.prefix, str(REPOSITORY))})
NETWORK = "10.79.0"


@dataclass(frozen=True, slots=True)
class Node:
    """One engine of a swarm and its node."""

    engine: PrivateDockerEngine
    id: str

    def running(self) -> int:
        """Return how many containers run on it, according to its engine."""
        with self.engine.client() as client:
            return len(client.containers())


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm whose first node is its only manager."""

    nodes: Sequence[Node]

    @property
    def url(self) -> str:
        """The URL of the manager's engine."""
        return self.nodes[0].engine.url

    @property
    def others(self) -> Mapping[str, str]:
        """The URLs of the other nodes' engines, by id."""
        return {node.id: node.engine.url for node in self.nodes[1:]}

    def set_availability(self, node: Node, availability: str) -> None:
        """Act as `docker node update --availability`: active, pause or drain."""
        with self.nodes[0].engine.client() as client:
            found = client.inspect_node(node.id)
            client.update_node(node.id, found["Version"]["Index"], {**found["Spec"], "Availability": availability})

    def cut(self, node: Node) -> None:
        """Cut the network between the manager and a node."""
        _ip("-n", _namespace(node.engine), "link", "set", "cable", "down")

    def mend(self, node: Node) -> None:
        """Restore the network to a node."""
        _ip("-n", _namespace(node.engine), "link", "set", "cable", "up")

    def tasks(self, state: str = "") -> list[Mapping[str, object]]:
        """Return every task the manager knows, or those of one supervisor's state."""
        with self.nodes[0].engine.client() as client:
            return list(client.tasks(filters=_of(state)))

    def replicas(self, state: str = "") -> dict[str, int]:
        """Return the number of replicas of each service by name."""
        with self.nodes[0].engine.client() as client:
            services = client.services(filters=_of(state))
        return {s["Spec"]["Name"]: s["Spec"]["Mode"]["Replicated"].get("Replicas", 0) for s in services}

    def remove_services(self) -> None:
        """Remove every service and its containers; Swarm forgets their tasks within seconds."""
        with self.nodes[0].engine.client() as client:
            for service in client.services():
                client.remove_service(service["ID"])
        for node in self.nodes:
            node.engine.remove_containers()


def _of(state: str) -> dict[str, str] | None:
    return {"label": f"towline.state={state}"} if state else None


@contextmanager
def swarm(nodes: int = 1) -> Iterator[Swarm]:
    """Run a swarm of `nodes` engines, each with an image. Raises `EngineUnavailableError`."""
    with ExitStack() as stack:
        engines = [stack.enter_context(docker_engine(has_network=True)) for _ in range(nodes)]
        _cable(engines)
        with engines[0].client() as client:
            address = f"{NETWORK}.1" if nodes > 1 else "127.0.0.1"
            client.init_swarm(advertise_addr=address, listen_addr=f"{address}:2377", data_path_addr=address)
            token = client.inspect_swarm()["JoinTokens"]["Worker"]
        for number, engine in enumerate(engines[1:], start=2):
            with engine.client() as client:
                address = f"{NETWORK}.{number}"
                client.join_swarm([f"{NETWORK}.1:2377"], token, advertise_addr=address, data_path_addr=address)
        for engine in engines:
            _give_image(engine)
        found = [Node(engine, _node_of(engine)) for engine in engines]
        yield Swarm(found)


def _cable(engines: Sequence[PrivateDockerEngine]) -> None:
    """Connect the namespaces of two engines by a virtual cable with an address at each end."""
    if len(engines) == 1:
        return
    first, second = (_namespace(engine) for engine in engines)
    _ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
    for number, namespace in enumerate((first, second), start=1):
        _ip("-n", namespace, "address", "add", f"{NETWORK}.{number}/24", "dev", "cable")
        _ip("-n", namespace, "link", "set", "cable", "up")


def _namespace(engine: PrivateDockerEngine) -> str:
    return engine.home.name.removeprefix("towline-")


def _give_image(engine: PrivateDockerEngine) -> None:
    with engine.client() as client:
        client.import_image_from_data(
            _root(), repository=IMAGE.partition(":")[0], tag="latest", changes=[f"ENV PATH={PATH}"]
        )


def _root() -> bytes:
    """Return a root file system with this machine's links to /usr; an engine puts its init into /sbin."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for placed in merged_folders():
            if placed.path == "/sbin":
                continue
            link = tarfile.TarInfo(placed.path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, placed.link
            archive.addfile(link)
        for name in ("tmp", "run", "etc", "sbin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(folder)
    return file.getvalue()


def _node_of(engine: PrivateDockerEngine) -> str:
    with engine.client() as client:
        return str(client.info()["Swarm"]["NodeID"])


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineUnavailableError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
