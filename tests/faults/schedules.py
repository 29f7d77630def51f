"""A schedule of a tick a second under two servers and two supervisors, killed in turn: each tick is added once.

A caller leases and deletes each task at once, so a second add of a tick is another task, not one that is refused.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from calendar import timegm
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.clock import MICROSECONDS
from queue_core.errors import StoreError
from tests.faults.checker import Violation
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.sites import StoreName, a_site
from tests.support.stores.engines import EngineUnavailableError

REPOSITORY = Path(__file__).parents[2]
QUEUE = "ticks"
LEAD_SECONDS = 5
MAX_PAUSE_SECONDS = 3.0
START_SECONDS = 90.0
END_SECONDS = 60.0
POLL_SECONDS = 0.05


@dataclass(slots=True)
class TickedSite:
    """Two servers and two supervisors of one store, in folders of their own; `processes` are those that run."""

    home: Path
    sockets: Path
    store: str
    retention: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL of both servers."""
        return ",".join(f"unix://{self.sockets / name}" for name in ("a", "b"))

    def start(self, name: str) -> None:
        """Start `serve-a`, `serve-b`, `supervise-a` or `supervise-b`."""
        command, _, which = name.partition("-")
        folder = self.home / name
        folder.mkdir(exist_ok=True)
        settings = {
            "store": self.store,
            "server": {"listen": f"unix:{self.sockets / which}"},
            "queues": {QUEUE: {"name_retention": self.retention}},
            "schedules": {"tick": {"queue": QUEUE, "every": "1s", "catch_up": "all"}},
            "supervisor": {"lead": f"{LEAD_SECONDS}s"},
        }
        (folder / "towline.yaml").write_text(json.dumps(settings))
        self.began[name] = (folder / "towline.log").stat().st_size if (folder / "towline.log").exists() else 0
        where = ["--url", self.url] if command == "supervise" else []
        with (folder / "towline.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", command, *where, "towline.yaml"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def is_up(self, name: str) -> bool:
        """Return whether a process that was started has said that it serves, or supervises."""
        with (self.home / name / "towline.log").open("rb") as log:
            log.seek(self.began[name])
            written = log.read()
        return b'"server.started"' in written or b'"supervisor.started"' in written

    def kill(self, name: str) -> None:
        """SIGKILL and reap one of them."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def end(self) -> None:
        """Kill all of them."""
        for name in list(self.processes):
            self.kill(name)


@dataclass(slots=True)
class TickTaker:
    """Leases and deletes every task. `ids` has the ids of the tasks of each name: more than one, and it came twice."""

    url: str
    ids: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    latest_seconds: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Work until stopped, over whatever the servers do."""
        queues = HttpQueues(self.url, retries=Retries(tries=2), timeout_seconds=5.0)
        queue = queues.queue(QUEUE)
        while not self.stop.is_set():
            try:
                for lease in queue.lease(100, worker="taker", wait_seconds=1.0):
                    self.ids[lease.name].add(lease.token.partition(".")[0])
                    late = lease.leased_at / MICROSECONDS - _second_of(lease.name)
                    self.latest_seconds = max(self.latest_seconds, late)
                    queue.delete(lease)
            except StoreError:
                self.stop.wait(POLL_SECONDS)
            except Exception:  # noqa: BLE001 - a queue that is not there yet, or a lease that ran out
                self.stop.wait(POLL_SECONDS)
        queues.close()


def ticks_once(store: StoreName, budget: FaultBudget, folder: Path) -> FaultTally:
    """Kill servers and supervisors in turn while a schedule ticks each second."""
    tally = FaultTally(f"schedules-{store}")
    random = Random(budget.seed)
    try:
        with ExitStack() as stack:
            site = stack.enter_context(a_site(store))
            sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tl-")))
            # A store that commits each verb by itself needs the names of deleted tasks.
            retention = "0s" if store == "postgresql" else "1h"
            ticked = TickedSite(folder, sockets, site.new_place(1).url, retention)
            stack.callback(ticked.end)
            _run(tally, ticked, random, budget)
    except EngineUnavailableError as error:
        tally.skipped = str(error)
    return tally


def _run(tally: FaultTally, site: TickedSite, random: Random, budget: FaultBudget) -> None:
    for name in ("serve-a", "serve-b", "supervise-a", "supervise-b"):
        site.start(name)
        _wait(partial(site.is_up, name), START_SECONDS, f"{name} did not start")
    taker = TickTaker(site.url)
    thread = threading.Thread(target=taker.run)
    thread.start()
    try:
        _wait(lambda: bool(taker.ids), START_SECONDS, "no tick came")
        deadline = budget.started()
        while not deadline.is_over:
            for name in ("supervise-a", "serve-a", "supervise-b", "serve-b"):
                time.sleep(random.uniform(0.5, MAX_PAUSE_SECONDS))
                site.kill(name)
                tally.kills += 1
                time.sleep(random.uniform(0.0, MAX_PAUSE_SECONDS))
                site.start(name)
                tally.reopenings += 1
                _wait(partial(site.is_up, name), START_SECONDS, f"{name} did not start")
        until = _name_of(time.time() + 1)
        _wait(lambda: any(name >= until for name in list(taker.ids)), END_SECONDS, f"no tick after {until} came")
    except TimeoutError as error:
        tally.found([Violation("I1", str(error))], "at the end")
    finally:
        taker.stop.set()
        thread.join()
    tally.operations = sum(map(len, taker.ids.values()))
    tally.figures["latest_tick_s"] = taker.latest_seconds
    twice = sorted(name for name, ids in taker.ids.items() if len(ids) > 1)
    seconds = sorted(map(_second_of, taker.ids))
    lost = sorted(set(range(seconds[0], seconds[-1] + 1)) - set(seconds)) if seconds else []
    tally.found([Violation("I5", f"{name} was added twice") for name in twice], "two servers, two supervisors")
    tally.found([Violation("I1", f"{_name_of(at)} was not added") for at in lost], "two servers, two supervisors")
    tally.summary = f"{len(seconds):,} ticks, each once, the latest {taker.latest_seconds:.1f} s after its time"


def _wait(is_done: Callable[[], bool], seconds: float, why: str) -> None:
    deadline = Deadline(time.monotonic() + seconds)
    while not is_done():
        if deadline.is_over:
            raise TimeoutError(why)
        time.sleep(POLL_SECONDS)


def _name_of(seconds: float) -> str:
    return time.strftime("tick-%Y%m%dT%H%M%SZ", time.gmtime(seconds))


def _second_of(name: str) -> int:
    return timegm(time.strptime(name, "tick-%Y%m%dT%H%M%SZ"))
