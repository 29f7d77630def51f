"""Measure what people who look at the console cost: their pages, the server's core, and the leases beside them.

    python3 -m tests.bench.console                                  # 1,000,000 tasks, 200 pools, 500 workers
    python3 -m tests.bench.console --tasks 20000 --queues 50 --pools 20 --rounds 2

One server, one run: its share of a core and its lease rate are measured in turn with nobody, and with 20 people at one
page and at 20 pages. Nobody, then people, then nobody: what the machine does besides meets both.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Final

from tests.bench.alone.served import cpu_share
from tests.bench.console.consumers import consuming
from tests.bench.console.site import LARGEST, ConsoleSizes
from tests.bench.console.viewers import following, look
from tests.bench.measure import end_group
from tests.support.stores.engines import free_port

PAGES: Final = (
    "",
    "queues",
    f"queues/{LARGEST}",
    f"queues/{LARGEST}/tags",
    f"queues/{LARGEST}/leases",
    f"queues/{LARGEST}/dead",
    f"queues/{LARGEST}/settings",
    "pools/pool-003",
    "workers",
    "workers/pool-003-0000",
    "deaths",
    "schedules",
    "events",
)
VIEWERS: Final = 20
SETTLING_SECONDS: Final = 12.0
"""Until every page that people came to has been rendered, and more than once."""


def many_pages(pools: int) -> list[str]:
    """Return 20 pages, each another one."""
    first = ["", "queues", "workers", "deaths", "events", f"queues/{LARGEST}", f"queues/{LARGEST}/dead"]
    return [*first, *(f"pools/pool-{number % pools:03}" for number in range(VIEWERS - len(first)))]


@contextmanager
def a_site(folder: Path, sizes: ConsoleSizes) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the server in its own process; yield it and its port."""
    port = free_port()
    counts = [f"--{name}={getattr(sizes, name)}" for name in ("tasks", "queues", "pools", "workers", "dead")]
    command = [sys.executable, "-m", "tests.bench.console.site", str(folder), str(port), *counts]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("is served\n"):
                break
        else:
            raise RuntimeError(f"the server ended with code {process.wait()}")
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process, port
    finally:
        end_group(process)  # type: ignore[arg-type]


def measure_pages(port: int) -> None:
    """Print how long each page takes."""
    print(f"{'page':<32} {'first':>9} {'median':>9} {'bytes':>9}")
    for page in PAGES:
        found = look(port, page)
        first, later = found.first_seconds * 1e3, found.median_seconds * 1e3
        print(f"/console/{page:<23} {first:6.0f} ms {later:6.0f} ms {found.size:9,}", flush=True)


def measure_core(port: int, pid: int, cases: Sequence[tuple[str, Sequence[str]]], *, seconds: float) -> None:
    """Print the server's share of a core, with nobody before and after each case."""
    print(f"\n{'who looks':<26} {'share of a core':>16} {'beyond nobody':>14} {'changes a page':>15}")
    cpu_share(pid, seconds=seconds / 2)
    for name, pages in cases:
        before = cpu_share(pid, seconds=seconds)
        with following(port, pages) as viewers:
            cpu_share(pid, seconds=SETTLING_SECONDS)
            seen = viewers.events
            share = cpu_share(pid, seconds=seconds)
            each = (viewers.events - seen) / len(pages) / seconds
        cpu_share(pid, seconds=1.0)
        after = cpu_share(pid, seconds=seconds)
        print(f"{'nobody, before':<26} {before:15.1%}")
        print(f"{name:<26} {share:15.1%} {share - (before + after) / 2:13.1%} {each:14.2f} /s")
        print(f"{'nobody, after':<26} {after:15.1%}")


def measure_leases(port: int, cases: Sequence[tuple[str, Sequence[str]]], *, rounds: int, seconds: float) -> None:
    """Print the rate of leases with people looking over that of without, in short turns, as a machine has its moods."""
    print(f"\n{'who looks':<26} {'leases a second':>16} {'with nobody':>12} {'all rounds':>11} {'median':>8}  rounds")
    with consuming(f"http://127.0.0.1:{port}") as meter:
        for name, pages in cases:
            ratios, rates, bare = [], [], []
            for _ in range(rounds):
                before = meter.rate(seconds / 2)
                with following(port, pages):
                    meter.rate(SETTLING_SECONDS)
                    looked = meter.rate(seconds)
                meter.rate(0.5)
                after = meter.rate(seconds / 2)
                rates.append(looked)
                bare.append((before + after) / 2)
                ratios.append(looked / bare[-1])
            whole, each = sum(rates) / sum(bare), " ".join(f"{one:.2f}" for one in ratios)
            print(
                f"{name:<26} {mean(rates):16,.0f} {mean(bare):12,.0f} {whole:11.3f} {median(ratios):8.3f}  {each}",
                flush=True,
            )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.bench.console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = ConsoleSizes()
    for name in ("tasks", "queues", "pools", "workers", "dead"):
        parser.add_argument(f"--{name}", type=int, default=getattr(sizes, name))
    parser.add_argument("--rounds", type=int, default=12, help="rounds of leases with and without people (12)")
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds of each measurement (12)")
    parser.add_argument("--dir", type=Path, help="on the disk to measure; what was made there before is used again")
    given = parser.parse_args()
    sizes = ConsoleSizes(given.tasks, given.queues, given.pools, given.workers, given.dead)
    print(
        f"{sizes.tasks:,} tasks in {sizes.queues:,} queues, {sizes.pools} pools, {sizes.workers} workers\n", flush=True
    )
    cases = (("20 people, one page", [""] * VIEWERS), ("20 people, 20 pages", many_pages(sizes.pools)))
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as temporary:
        folder = given.dir or Path(temporary)
        with a_site(folder, sizes) as (process, port):
            measure_pages(port)
            measure_core(port, process.pid, cases, seconds=given.seconds)
            measure_leases(port, cases, rounds=given.rounds, seconds=given.seconds)


if __name__ == "__main__":
    main()
