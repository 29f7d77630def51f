"""Follow one call, or one turn, file by file: `python3 -m tests.tours add | exchange | turn`.

It prints every file of ours that runs on the way, in the order in which it is first entered, with the first function
called there, and how often the way changes from one file to another.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType

from orchestrator import open_supervisor, read_settings
from queue_core import Deletion, HttpQueues, LocalQueues, NewTask, QueueSpec
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores import open_store
from queue_core.unit.service import QueueService

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(f"{ROOT}/{package}/" for package in ("queue_core", "orchestrator"))
QUEUE = "thumbs"
WARM_UP_CALLS = 20
REST_SECONDS = 0.2
TURN_SECONDS = 20.0
SETTINGS = f"""\
queues: {{{QUEUE}: {{}}}}
pools:
  {QUEUE}: {{queue: {QUEUE}, command: [sleep, "60"], slo: 1s, workers: {{min: 0, max: 4}}}}
"""


@dataclass(slots=True)
class Tour:
    """The functions of ours that were called, in order, by thread."""

    is_recording: bool = False
    calls: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; for `sys.setprofile`."""
        if not self.is_recording or event != "call" or not frame.f_code.co_filename.startswith(PACKAGES):
            return
        file, name = frame.f_code.co_filename.removeprefix(f"{ROOT}/"), frame.f_code.co_qualname
        if file.endswith("__init__.py") or name.startswith("<"):
            return
        self.calls.setdefault(threading.get_ident(), []).append((file, name))
        self.firsts.setdefault(file, name)

    @property
    def changes(self) -> int:
        """How often the way leads from one file to another, within a thread."""
        return sum(before[0] != after[0] for calls in self.calls.values() for before, after in pairwise(calls))

    def clear(self) -> None:
        """Forget the way so far."""
        self.calls, self.firsts = {}, {}


@contextmanager
def profiled(tour: Tour) -> Iterator[None]:
    """Have this thread, and all that are started meanwhile, note their calls."""
    threading.setprofile(tour.profile)
    sys.setprofile(tour.profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@contextmanager
def a_server(folder: Path) -> Iterator[HttpQueues]:
    """A client of a server over an SQLite file."""
    store = open_store(f"sqlite:///{folder}/queue.db")
    server = ServerThread(store, ServeOptions(port=0, lifecycle="off"))
    queues = HttpQueues(server.start())
    try:
        queues.put_queue(QueueSpec(QUEUE))
        yield queues
    finally:
        queues.close()
        server.stop()
        store.close()


def one_call(call: Callable[[HttpQueues], object], folder: Path) -> Tour:
    """The way of one call over HTTP, there and back, once client and server know each other."""
    tour = Tour()
    with profiled(tour), a_server(folder) as queues:
        for _ in range(WARM_UP_CALLS):
            call(queues)
        time.sleep(REST_SECONDS)
        tour.is_recording = True
        call(queues)
        time.sleep(REST_SECONDS)  # what the server does after its answer belongs to the call
        tour.is_recording = False
    return tour


def add(folder: Path) -> Tour:
    """One task is added."""
    return one_call(lambda queues: queues.queue(QUEUE).add([NewTask(b"x")]), folder)


def exchange(folder: Path) -> Tour:
    """A worker deletes the task that it has finished and leases the next one."""
    held: list[Deletion] = []

    def call(queues: HttpQueues) -> None:
        queue = queues.queue(QUEUE)
        if not held:
            queue.add([NewTask(b"x") for _ in range(WARM_UP_CALLS + 2)])
        leases, _ = queue.exchange(held, count=1, seconds=60, worker="worker-1")
        held[:] = [Deletion(lease.token) for lease in leases]

    return one_call(call, folder)


def turn(folder: Path) -> Tour:
    """A supervisor sees that tasks wait, and starts workers: the turn that does."""
    (folder / "towline.yaml").write_text(SETTINGS)
    url = f"sqlite:///{folder}/queue.db"
    tour = Tour()
    with closing(open_store(url)) as store:
        queues = LocalQueues(QueueService(store))
        queues.put_queue(QueueSpec(QUEUE))
        queues.queue(QUEUE).add([NewTask(b"x") for _ in range(8)])
        with profiled(tour), open_supervisor(read_settings(folder / "towline.yaml"), url=url) as supervisor:
            worker = threading.Thread(target=supervisor.run)
            found = _Turns(tour)
            threading.setprofile(found.profile)
            worker.start()
            found.spawned.wait(TURN_SECONDS)
            supervisor.request_stop()
            worker.join()
    return tour


class _Turns:
    """Keeps of a supervisor's turns the first in which a worker is started."""

    def __init__(self, tour: Tour) -> None:
        self._tour = tour
        self._outermost: FrameType | None = None
        self.spawned = threading.Event()

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        if self.spawned.is_set():
            return
        tour, name = self._tour, frame.f_code.co_qualname
        if name == "Supervisor._turns":
            if event == "call" and self._outermost is None:
                tour.clear()
                self._outermost, tour.is_recording = frame, True
            elif event == "return" and frame is self._outermost:
                self._outermost, tour.is_recording = None, False
                if any(called.endswith(".spawn") for calls in tour.calls.values() for _, called in calls):
                    self.spawned.set()
        tour.profile(frame, event, argument)


TOURS: dict[str, Callable[[Path], Tour]] = {"add": add, "exchange": exchange, "turn": turn}


def main(arguments: Sequence[str]) -> int:
    """Print the tours that are named, or all."""
    names = [name for name in arguments if not name.startswith("-")] or list(TOURS)
    unknown = [name for name in names if name not in TOURS]
    if unknown:
        print(f"no such tour: {unknown[0]}; there are {', '.join(TOURS)}", file=sys.stderr)
        return 2
    for name in names:
        # A daemon thread of what ran may still write there as the folder goes.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            tour = TOURS[name](Path(folder))
        if "--json" in arguments:
            print(json.dumps({"tour": name, "files": list(tour.firsts), "changes": tour.changes}))
            continue
        print(f"{name}: {len(tour.firsts)} files, {tour.changes} changes of file")
        for file, first in tour.firsts.items():
            print(f"  {file:48} {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
