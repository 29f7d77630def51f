"""Measure what hundreds of containers cost a supervisor's runtime: threads, memory, descriptors, time of its verbs."""

import argparse
import statistics
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from orchestrator.base.errors import RuntimeUnavailableError
from tests.support.docker.bench import CLOCK, STAY, DockerBench, docker_bench
from tests.support.docker.engine import PrivateDockerEngine, docker_engine
from tests.support.eventually import eventually

PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ContainerFigures:
    """The figures of one run. Times are in seconds; `threads` and `memory_bytes` are this process's."""

    count: int
    threads_before: int
    threads: int
    memory_before_bytes: int
    memory_bytes: int
    descriptors: int
    spawn_seconds: float
    slowest_spawn_seconds: float
    usage_seconds: float
    adopt_seconds: float
    adopted: int
    ended: int

    def lines(self) -> list[str]:
        """Return the figures as text."""
        grown = (self.memory_bytes - self.memory_before_bytes) / 2**20
        usual, slowest = self.spawn_seconds * 1000, self.slowest_spawn_seconds * 1000
        return [
            f"{self.count} sleeping containers: {self.threads} threads ({self.threads_before} with none)",
            f"{self.memory_bytes / 2**20:.1f} MiB (+{grown:.1f}), {self.descriptors} descriptors",
            f"spawn {usual:.0f} ms at the median, {slowest:.0f} ms at most",
            f"usage of all {self.usage_seconds * 1000:.1f} ms",
            f"after a restart {self.adopted} adopted in {self.adopt_seconds:.2f} s; {self.ended} ends told",
        ]


def measured(engine: PrivateDockerEngine, folder: Path, *, count: int) -> ContainerFigures:
    """Start `count` containers, sample them, restart the runtime, end them all."""
    process = psutil.Process()
    with docker_bench(engine, folder) as bench:
        threads_before, memory_before = threading.active_count(), process.memory_info().rss
        took = [_spawned(bench) for _ in range(count)]
        eventually(lambda: _all_up(bench, count), seconds=PATIENCE_SECONDS)
        threads, memory, descriptors = threading.active_count(), process.memory_info().rss, process.num_fds()
        began = CLOCK.monotonic()
        bench.runtime.usage()
        usage_seconds = CLOCK.monotonic() - began
        bench.reopen()
        began = CLOCK.monotonic()
        adopted = bench.adopt()
        adopt_seconds = CLOCK.monotonic() - began
        for handle in adopted:
            bench.runtime.kill(handle.worker)
        ended = bench.exits(len(adopted), seconds=PATIENCE_SECONDS)
    return ContainerFigures(
        count=count,
        threads_before=threads_before,
        threads=threads,
        memory_before_bytes=memory_before,
        memory_bytes=memory,
        descriptors=descriptors,
        spawn_seconds=statistics.median(took),
        slowest_spawn_seconds=max(took),
        usage_seconds=usage_seconds,
        adopt_seconds=adopt_seconds,
        adopted=len(adopted),
        ended=len(ended),
    )


def _spawned(bench: DockerBench) -> float:
    """Start one and return its time; wait while the engine can't keep up, as a supervisor does."""
    while True:
        began = CLOCK.monotonic()
        try:
            bench.spawn(STAY)
        except RuntimeUnavailableError:
            eventually(lambda: not bench.runtime.unavailable_reason, seconds=PATIENCE_SECONDS)
            continue
        return CLOCK.monotonic() - began


def _all_up(bench: DockerBench, count: int) -> bool:
    return len([log for log in (bench.state_dir / "workers").glob("*.log") if log.stat().st_size]) == count


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args(arguments).count
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with docker_engine() as engine, tempfile.TemporaryDirectory() as folder:
        engine.image()
        print("\n".join(measured(engine, Path(folder), count=count).lines()))


if __name__ == "__main__":
    main()
