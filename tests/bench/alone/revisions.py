"""Compare this tree with another commit on plain tasks, in alternating rounds of one run.

    python -m tests.bench.alone.revisions v1.4.0 --rounds 7
    python -m tests.bench.alone.revisions HEAD~20 --store postgresql://...?schema=of_{tree} --skip-served
    python -m tests.bench.alone.revisions HEAD~20 --without-history     # this tree also with `history: 0`

Speeds by CPU count processor time only, which a busy machine changes little.
Each round runs the same program, with public names only, once with each tree, in another order; the ratio is that of
the round, and its median is printed with the spread. Both trees run in the same environment.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from tests.support.stores.engines import free_port

ROOT: Final = Path(__file__).resolve().parents[3]
ROUND_SECONDS: Final = 300.0
PAYLOAD_BYTES: Final = 100

PROGRAM: Final = """
import json, sys, time
from queue_core import Deletion, NewTask, QueueSpec, open_queues
url, loads, settings = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[4])
payload = b"x" * int(sys.argv[3])
queues = open_queues(url)
if "bench" in [spec.name for spec in queues.queues()]:
    queues.delete_queue("bench")
queues.put_queue(QueueSpec("bench", **settings))
queue = queues.queue("bench")
took = {}

def add(count, size):
    for _ in range(count // size):
        queue.add([NewTask(payload)] * size)

def drain(size):
    leases, _ = queue.exchange([], count=size, worker="w")
    while leases:
        leases, _ = queue.exchange([Deletion(lease.token) for lease in leases], count=size, worker="w")

def timed(name, count, run):
    began, used = time.perf_counter(), time.process_time()
    run()
    took[name] = count / (time.perf_counter() - began)
    took[name + ", by CPU"] = count / (time.process_time() - used)

one, many = loads["one"], loads["many"]
timed("add", one, lambda: add(one, 1))
timed("drain", one, lambda: drain(1))
timed("add x100", many, lambda: add(many, 100))
timed("drain x100", many, lambda: drain(100))
queues.close()
print(json.dumps(took))
"""
"""Adds and drains tasks one by one and by the hundred; prints tasks a second, and tasks a second of processor time."""

SERVED: Final = """
import json, sys, time
from queue_core import NewTask, QueueSpec, open_queues
url, count, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
queues = open_queues(url)
queues.put_queue(QueueSpec("bench", **settings))
queue = queues.queue("bench")
for _ in range(count // 100):
    queue.add([NewTask(b"x" * 100)] * 100)
print("added", flush=True)
input()
began, before = time.perf_counter(), queue.stats().deleted_total
while (done := queue.stats().deleted_total) < count:
    time.sleep(0.05)
print(json.dumps({"served": (count - before) / (time.perf_counter() - began)}))
"""
"""Adds tasks, and measures how fast workers that are started meanwhile finish them."""

APP: Final = """
from queue_core import App
app = App()

@app.task(queue="bench")
def nothing(task):
    return None
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """A tree and the settings of its queue; `name` is in the URL of a store of its own."""

    name: str
    tree: Path
    settings: Mapping[str, int] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the ratios of this tree to another commit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=4_000, help="tasks one by one; ten times as many by the hundred")
    parser.add_argument(
        "--store",
        default="",
        help="URL of a store that both may empty, or with {tree} in it of one each; by default an SQLite file each",
    )
    parser.add_argument("--skip-served", action="store_true", help="leave out `serve` with two workers")
    parser.add_argument("--without-history", action="store_true", help="measure this tree also with `history: 0`")
    chosen = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="towline-revisions-") as folder,
        checked_out(chosen.revision, Path(folder) / "other") as other,
    ):
        contenders = [Contender("other", other), Contender("this", ROOT)]
        if chosen.without_history:
            contenders.append(Contender("this, history 0", ROOT, {"history_keep": 0}))
        ratios: dict[tuple[str, str], list[float]] = {}
        for number in range(chosen.rounds):
            at = number % len(contenders)
            speeds = {one.name: _round(one, Path(folder), chosen) for one in (*contenders[at:], *contenders[:at])}
            print(f"round {number + 1}: {_shown(speeds['other'])}")
            for name, speed in speeds.items():
                for what, figure in speed.items() if name != "other" else ():
                    ratios.setdefault((what, name), []).append(figure / speeds["other"][what])
        for (what, name), found in sorted(ratios.items()):
            print(f"{what:<19} {name:<16} {median(found):.3f} [{min(found):.3f} - {max(found):.3f}]", flush=True)
    return 0


def _shown(speed: Mapping[str, float]) -> str:
    return ", ".join(f"{what} {figure:,.0f}/s" for what, figure in speed.items())


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """Check a commit out into a folder while the block runs."""
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(folder), revision], cwd=ROOT, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=True)


def _round(one: Contender, folder: Path, chosen: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        url = chosen.store.replace("{tree}", re.sub(r"\W+", "_", one.name)) or f"sqlite:///{place}/queue.db"
        loads = json.dumps({"one": chosen.tasks, "many": 10 * chosen.tasks})
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, loads, str(PAYLOAD_BYTES), json.dumps(one.settings)],
            env=environment_of(one.tree),
            cwd=place,
            stdout=subprocess.PIPE,
            check=True,
            timeout=ROUND_SECONDS,
        )
        speeds: dict[str, float] = json.loads(done.stdout)
        return speeds if chosen.skip_served else speeds | _served(one, Path(place), 5 * chosen.tasks)


def _served(one: Contender, place: Path, count: int) -> dict[str, float]:
    """Measure `towline serve` over an SQLite file with two `towline work`."""
    (place / "plain.py").write_text(APP)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = environment_of(one.tree) | {"TOWLINE_URL": url}
    towline = [sys.executable, "-m", "orchestrator"]
    serve = [*towline, "serve", "--store", f"sqlite:///{place}/served.db", "--listen", f"127.0.0.1:{port}"]
    with (place / "log").open("wb") as log:
        started: list[subprocess.Popen[bytes] | subprocess.Popen[str]] = [
            subprocess.Popen(serve, cwd=place, env=environment, stdout=log, stderr=log)
        ]
        try:
            _await(url, started[0])
            measuring = subprocess.Popen(
                [sys.executable, "-c", SERVED, url, str(count), json.dumps(one.settings)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(measuring)
            assert measuring.stdout is not None
            measuring.stdout.readline()
            for _ in range(2):
                command = [*towline, "work", "plain:app"]
                started.append(subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log))
            answer, _ = measuring.communicate("\n", timeout=ROUND_SECONDS)
            speeds: dict[str, float] = json.loads(answer)
            return speeds | {"served, by CPU": count / sum(map(_cpu_seconds, (started[0], *started[2:])))}
        finally:
            for process in reversed(started):
                if process.poll() is None:
                    process.terminate()
                process.wait(ROUND_SECONDS)


def _cpu_seconds(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def _await(url: str, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=1):
                return
        except OSError:
            continue
    raise RuntimeError(f"the server ended with {process.returncode}")


def environment_of(tree: Path) -> dict[str, str]:
    """Return the environment of a program that imports a tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
    return kept | {"PYTHONPATH": str(tree)}


if __name__ == "__main__":
    sys.exit(main())
