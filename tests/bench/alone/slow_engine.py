"""Measure a fleet of containers on an engine that answers each call after 300 ms: starts, decisions, memory.

    python3 -m tests.bench.alone.slow_engine --count 200

prints the figures. A proxy in front of a private engine delays each call; a burst of tasks asks for all workers.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from tests.support.docker.engine import docker_engine
from tests.support.docker.site import DockerSite, docker_site
from tests.support.docker.slow_engine import CALL_SECONDS, ObservedStore, SlowEngine, slow_engine
from tests.support.eventually import eventually

PATIENCE_SECONDS = 1_200.0


@dataclass(frozen=True, slots=True)
class SlowEngineFigures:
    """The figures of one run, in seconds."""

    count: int
    requested_seconds: float
    longest_gap_seconds: float
    decisions: int
    memory_bytes: int
    calls: int

    def lines(self) -> list[str]:
        """Return the figures as text."""
        return [
            f"{self.count} containers, {CALL_SECONDS * 1000:.0f} ms for each of {self.calls} calls",
            f"all requested after {self.requested_seconds:.1f} s",
            f"{self.decisions} decisions, at most {self.longest_gap_seconds:.2f} s apart",
            f"supervisor {self.memory_bytes / 2**20:.1f} MiB at most",
        ]


def measured(site: DockerSite, slow: SlowEngine, store: ObservedStore, *, count: int) -> SlowEngineFigures:
    """Start a supervisor over a backlog of `count` tasks; wait until it has requested a worker for each."""
    site.write(
        resize=site.pool(
            slo="1s",
            container={"engine": slow.url},
            command=["sleep", "infinity"],
            spawn_parallelism=count,
            workers={"min": count, "max": count},
        )
    )
    site.add(*["rest 0"] * count)
    process = psutil.Process(site.start().pid)
    began, memory = site.now(), [0]

    def is_requested() -> bool:
        memory.append(process.memory_info().rss)
        return len(site.logged("worker.spawned")) >= count

    eventually(is_requested, seconds=PATIENCE_SECONDS)
    took = site.now() - began
    return SlowEngineFigures(count, took, store.longest_gap_seconds(), len(store.looks), max(memory), slow.calls)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args(arguments).count
    with docker_engine() as engine:
        engine.image()
        store = ObservedStore()
        with docker_site(engine, store=store) as site, slow_engine(engine.socket, site.folder) as slow:
            print("\n".join(measured(site, slow, store, count=count).lines()))


if __name__ == "__main__":
    main()
