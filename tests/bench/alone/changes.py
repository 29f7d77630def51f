"""Measure the verbs that change tasks without their leases' tokens, in processor time a task, on each store.

    python -m tests.bench.alone.changes                                   # this tree, 20,000 and 100,000 tasks
    python -m tests.bench.alone.changes --against e0fec85f --rounds 5     # with the ratio to another commit
    python -m tests.bench.alone.changes --stores redis --tasks 100000

Each figure is the processor time of the caller and of the store's server together, which a busy machine changes less.
Payloads have 100 bytes; a call names or purges 1,000 tasks, as every caller does. Verbs that a commit lacks, or that
fail there, are left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.alone.revisions import ROOT, checked_out, environment_of
from tests.support.stores.engines import postgresql, redis

STORES: Final = ("sqlite", "redis", "postgresql")
ROUND_SECONDS: Final = 900.0

PROGRAM: Final = """
import json, os, sys, time
from pathlib import Path
from queue_core.errors import StoreError
from queue_core.stores import open_store
from queue_core.task import ANY, NewTask, QueueSpec
try:
    from queue_core.verbs import LeaseRequest, Release
except ImportError:  # commits before it was a module
    from queue_core.store import LeaseRequest, Release
try:
    from queue_core.unit.queue_verbs import Redrive, Retag
    from queue_core.verbs.change_verbs import InStates
    from queue_core.task import TaskState
except ImportError:  # commits in which these were verbs of a store
    Retag = None
url, number, server = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
CALL = 1000
store = open_store(url, durability="relaxed")
clock = store.clock

def run(verb):
    with store.begin() as one:
        return verb(one)

if "bench" in [spec.name for spec in run(lambda one: one.queues())]:
    run(lambda one: one.delete_queue("bench"))
run(lambda one: one.put_queue(QueueSpec("bench", max_leases=1, name_retention_seconds=0.0), now=clock.now()))
took = {}

def cpu():
    ids = [] if not server else [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())]
    return time.process_time() + sum(int(Path(f"/proc/{one}/schedstat").read_text().split()[0]) / 1e9 for one in ids)

def add(named=False):
    for first in range(0, number, CALL):
        tasks = [NewTask(b"x" * 100, name=f"n{first + at}" if named else None) for at in range(CALL)]
        run(lambda one: one.add("bench", tasks, now=clock.now()))

def leased():
    for _ in range(0, number, CALL):
        yield run(lambda one: one.lease("bench", LeaseRequest(CALL, 3000.0, ANY, "w"), now=clock.now())).leases

def timed(name, verb):
    used = cpu()
    try:
        verb()
    except AttributeError:
        return
    except StoreError:  # the store may go on for a while: nothing after it would be right
        print(json.dumps(took))
        sys.exit()
    took[name] = (cpu() - used) / number * 1e6

def by_names(verb):
    def call():
        for first in range(0, number, CALL):
            run(lambda one: verb(one, [f"n{at}" for at in range(first, first + CALL)]))
    return call

def until_none(verb):
    def call():
        while run(verb):
            pass
    return call

def die():
    for leases in leased():
        run(lambda one: one.release("bench", [Release(lease.token, 0.0) for lease in leases], now=clock.now()))

def applied(one, verb, which):
    now = clock.now()
    return one.apply("bench", which, lambda task, _: verb.transition(task, now=now), now=now)

def retag(one, names):
    if Retag is None:
        return one.retag("bench", names, "b", now=clock.now())
    verb = Retag("bench", names, "b")
    return applied(one, verb, verb.selector())

def redrive(one):
    if Retag is None:
        return len(one.redrive("bench", None, ANY, limit=CALL, now=clock.now()))
    verb = Redrive("bench", ANY, None)
    return len(applied(one, verb, InStates((TaskState.DEAD,), ANY, CALL, depth="whole")))

add(named=True)
timed("retag", by_names(retag))
timed("delete by name", by_names(lambda one, names: one.delete_by_name("bench", names, now=clock.now())))
if "retag" not in took:
    run(lambda one: one.purge("bench", ANY, limit=10 * number, now=clock.now()))
add()
timed("purge", until_none(lambda one: one.purge("bench", ANY, limit=CALL, now=clock.now())))
add()
die()
timed("redrive", until_none(redrive))
die()
timed("purge_dead", until_none(lambda one: one.purge_dead("bench", ANY, limit=CALL, now=clock.now())))
add()
for _ in leased():
    pass
timed("release_worker", lambda: run(lambda one: one.release_worker("w", now=clock.now())))
store.close()
print(json.dumps(took))
"""
"""Prints microseconds of processor time a task of each verb."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures of each store, and their ratios to another commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--tasks", nargs="+", type=int, default=(20_000, 100_000))
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="towline-changes-") as folder, ExitStack() as stack:
        trees = {"this": ROOT}
        if chosen.against:
            trees["other"] = stack.enter_context(checked_out(chosen.against, Path(folder) / "other"))
        for store in chosen.stores:
            for number in chosen.tasks:
                rounds = [
                    {name: _measured(tree, store, number, Path(folder)) for name, tree in sorted(trees.items())}
                    for _ in range(chosen.rounds)
                ]
                print(f"{store}, {number:,} tasks, microseconds of processor time a task", flush=True)
                print("\n".join(_lines(rounds)), flush=True)
    return 0


def _lines(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    for verb in rounds[0]["this"]:
        line = f"  {verb:<16}{median(one['this'][verb] for one in rounds):8.1f}"
        if verb in rounds[0].get("other", {}):
            ratios = [one["this"][verb] / one["other"][verb] for one in rounds]
            before = median(one["other"][verb] for one in rounds)
            line += f"  before {before:6.1f}  ratio {median(ratios):.2f} [{min(ratios):.2f} - {max(ratios):.2f}]"
        yield line


def _measured(tree: Path, store: str, number: int, folder: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as place, _served(store, Path(place)) as (url, server):
        done = subprocess.run(
            [sys.executable, "-", url, str(number), str(server)],
            input=PROGRAM,
            text=True,
            env=environment_of(tree),
            cwd=place,
            stdout=subprocess.PIPE,
            check=True,
            timeout=ROUND_SECONDS,
        )
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])  # a log may come first
        return figures


@contextmanager
def _served(store: str, place: Path) -> Iterator[tuple[str, int]]:
    """Return the URL of a new store and the process of its server, 0 for none."""
    if store == "sqlite":
        yield f"sqlite:///{place}/queue.db", 0
    else:
        with (redis if store == "redis" else postgresql)(place) as engine:
            yield engine.url, engine.process.pid


if __name__ == "__main__":
    sys.exit(main())
