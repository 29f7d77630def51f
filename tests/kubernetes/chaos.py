"""The promise under fire: `python3 -m tests.kubernetes.chaos --for 30m` prints what it cost, and whom it cut.

Two hundred tasks a minute of 0.1 to 60 s run on two real nodes while supervisors, Pods, the queue server, the apiserver
and nodes are killed, evicted and stopped, images change and limits move. In the end the apiserver's audit log lies
beside the queue's: no DELETE of a supervisor may have met a worker that had a lease and that nobody else told to stop.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orchestrator.base.clock import SystemMonotonicClock
from queue_core.config.units import format_seconds, parse_seconds
from queue_core.errors import QueueError
from tests.support.kubernetes.cluster import RefusedError
from tests.support.kubernetes.images import TOWLINE
from tests.support.kubernetes.judge import cuts, deletions_of, done_twice, leases_of, pods_made, told_by_others
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.plane import plane
from tests.support.kubernetes.site import PodSite, pod_site
from tests.support.kubernetes.stage import ACCOUNT, plane_stage
from tests.support.stores.engine_process import EngineUnavailableError

CLOCK: Final = SystemMonotonicClock()
TASKS_A_MINUTE: Final = 200
WORKERS: Final = 40
"""As many as that keeps three quarters of the time at work; with other limits there are more or fewer tasks."""
SHORTEST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 60.0
ACT_SECONDS: Final = 12.0
IMAGE_SECONDS: Final = 60.0
LIMIT_SECONDS: Final = 45.0
IMAGES: Final = 4
SETTLE_SECONDS: Final = 300.0
NODES: Final = 2
NO_SERVICE: Final = 69


@dataclass
class Chaos:
    """A site under load, and what is done to it."""

    site: PodSite
    nodes: Sequence[Node]
    workers: int
    chance: random.Random
    acts: Counter[str] = field(default_factory=Counter)
    added: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    image: int = 0
    limit: int = 0
    supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        """Load the queue and break things for so long, then let it settle."""
        for node in self.nodes:
            for number in range(1, IMAGES + 1):
                node.tag(TOWLINE, f"{TOWLINE}.{number}")
        self.limit = self.workers
        self._write()
        self.supervisors = {".towline": self.site.start(), "second": self.site.start_beside("second")}
        threads = [
            threading.Thread(target=self._load, daemon=True),
            threading.Thread(target=self._change, daemon=True),
            threading.Thread(target=self._break, daemon=True),
        ]
        for thread in threads:
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        for thread in threads:
            thread.join()
        self.limit = self.workers
        self._write()
        self.site.until(self.site.is_done, seconds=SETTLE_SECONDS)
        self.site.until(lambda: not self.site.pods(), seconds=SETTLE_SECONDS)

    def _load(self) -> None:
        pause = 60 / TASKS_A_MINUTE * WORKERS / self.workers
        spread = math.log(LONGEST_SECONDS / SHORTEST_SECONDS)
        due = float(CLOCK.monotonic())
        while not self.over.is_set():
            seconds = SHORTEST_SECONDS * math.exp(self.chance.random() * spread)
            try:
                self.site.add(f"rest {seconds:.2f}")
                self.added += 1
            except (QueueError, OSError):
                self.acts["adds refused while the server was away"] += 1
            due += pause
            self.over.wait(max(due - CLOCK.monotonic(), 0))

    def _change(self) -> None:
        begun = CLOCK.monotonic()
        images = limits = 1
        while not self.over.wait(1):
            passed = CLOCK.monotonic() - begun
            if passed > images * IMAGE_SECONDS:
                images += 1
                self.image = self.image % IMAGES + 1
                self._act("a new image", self._write)
            if passed > limits * LIMIT_SECONDS:
                limits += 1
                self.limit = self.chance.choice([self.workers, self.workers * 3 // 4, self.workers // 2])
                self._act("another limit", self._write)

    def _break(self) -> None:
        kinds: list[tuple[str, Callable[[], None]]] = [
            ("a supervisor killed", self._kill_supervisor),
            ("a Pod deleted by a person", lambda: self._pod(self.site.stage.cluster.delete)),
            ("a Pod killed by a person", lambda: self._pod(self._kill_pod)),
            ("a Pod evicted", lambda: self._pod(self.site.stage.cluster.evict)),
            ("the queue server killed", self._kill_server),
            ("the apiserver killed", self._kill_apiserver),
            ("a node stopped", self._stop_node),
        ]
        while not self.over.wait(ACT_SECONDS * self.chance.uniform(0.5, 1.5)):
            self._act(*self.chance.choice(kinds))

    def _act(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
            self.acts[name] += 1
        except (RefusedError, QueueError, OSError, AssertionError, EngineUnavailableError) as error:
            self.acts[f"{name}: failed with {type(error).__name__}"] += 1

    def _kill_supervisor(self) -> None:
        state = self.chance.choice(list(self.supervisors))
        self.supervisors[state].kill()
        self.supervisors[state].wait()
        self.supervisors[state] = self.site.start_beside(state)

    def _kill_server(self) -> None:
        assert self.site.server is not None
        self.site.server.kill()
        self.site.server.wait()
        self.site.start_server()

    def _kill_apiserver(self) -> None:
        assert self.site.stage.plane is not None
        self.site.stage.plane.restart("apiserver")

    def _stop_node(self) -> None:
        node = self.chance.choice(self.nodes)
        node.freeze()
        try:
            self.over.wait(self.chance.choice([3.0, 25.0]))
        finally:
            node.thaw()

    def _pod(self, act: Callable[[str, str], None]) -> None:
        living = [pod for pod in self.site.pods() if "deletionTimestamp" not in pod["metadata"]]
        if living:
            act(str(self.chance.choice(living)["metadata"]["name"]), self.site.stage.namespace)

    def _kill_pod(self, name: str, namespace: str) -> None:
        self.site.stage.cluster.delete(name, namespace, grace_seconds=1)

    def _write(self) -> None:
        image = f"{TOWLINE}.{self.image}" if self.image else TOWLINE
        pool = self.site.pool(
            slo="20s", grace="20s", workers={"min": 0, "max": self.limit}, pod={"image": image, "memory": "128MiB"}
        )
        self.site.write(resize=pool)


def report(chaos: Chaos) -> int:
    """Print the figures; return how many promises were broken."""
    site = chaos.site
    assert site.stage.plane is not None
    audit = [one for one in site.stage.plane.audit() if one["objectRef"].get("namespace") == site.stage.namespace]
    leases = leases_of(site.changes())
    deletions = deletions_of(audit)
    found = cuts(leases, deletions, user=ACCOUNT, told=told_by_others(audit, user=ACCOUNT))
    stats = site.queue.stats()
    lost = stats.added_total - stats.deleted_total
    figures: dict[str, Any] = {
        "tasks added": stats.added_total,
        "tasks lost": lost,
        "tasks done twice": len(done_twice(leases)),
        "leases": len(leases),
        "leases given back or expired": sum(lease.how in ("lease.released", "lease.expired") for lease in leases),
        "Pods made": pods_made(audit),
        "DELETEs by the supervisors": sum(deletion.user.endswith(ACCOUNT) for deletion in deletions),
        "workers with work that a supervisor ended": len({one.deletion.worker for one in found}),
        "Pods left over": len(site.pods()),
        "calls by the supervisors": sum(str(one["user"]["username"]).endswith(ACCOUNT) for one in audit),
        "causes of death": dict(Counter(str(death["cause"]) for death in site.deaths().values())),
        **{f"done: {name}": count for name, count in sorted(chaos.acts.items())},
    }
    for name, value in figures.items():
        print(f"{name:>60}  {value}")  # noqa: T201
    for one in found:
        print(f"CUT {one}")  # noqa: T201
    return sum([lost != 0, figures["tasks done twice"] != 0, bool(found), figures["Pods left over"] != 0])


def main() -> int:
    """Run for as long as asked; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="seconds", type=parse_seconds, default=300.0, help="how long (default 5m)")
    parser.add_argument("--workers", type=int, default=WORKERS, help="Pods at most (default 40)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of durations and of what is done")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {format_seconds(arguments.seconds)}", flush=True)  # noqa: T201
    try:
        with plane() as made, tempfile.TemporaryDirectory(prefix="towline-chaos-") as folder:
            nodes = [made.add_node() for _ in range(NODES)]
            with pod_site(plane_stage(made), Path(folder)) as site:
                chaos = Chaos(site, nodes, arguments.workers, random.Random(arguments.seed))
                chaos.run(arguments.seconds)
                return min(report(chaos), 1)
    except EngineUnavailableError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return NO_SERVICE


if __name__ == "__main__":
    sys.exit(main())
