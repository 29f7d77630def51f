"""A project of which every command has something to show: a server with tasks, and a supervisor's state folder.

Times are minutes before the test, so that they are shown alike however long the test takes.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.replay import recorded
from orchestrator.state.directory import StateDir
from queue_core.attempts.attempt import Failure
from queue_core.client.http_calls import HttpQueues
from queue_core.clock import MICROSECONDS, Instant, ManualClock
from queue_core.process.wording import shown_seconds, shown_setting
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec, TagFilter
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_pool, a_sample, learn_and_decide

SETTINGS: Final = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
log: events.jsonl
queues:
  thumbs: {lease: 1h, max_leases: 5}
  transcoding: {lease: 6h, max_leases: 2}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 30s, workers: {max: 4}}
  transcode-large: {queue: transcoding, command: [./transcode], slo: 10m, workers: {min: 1, max: 12}}
"""
WRONG: Final = """\
store: sqlite:///queue.db
queues: {thumbs: {lease: 1x}}
pools:
  resize: {quue: thumbs, slo: -1, app: "tasks:app", workers: {max: 0}}
"""
TASKS: Final = """\
from queue_core.worker.app import App
app = App()
@app.task(queue="thumbs", tag="resize")
def resize(task): ...
"""
NO_IMAGE: Final = Failure(
    "raised",
    "ValueError",
    "cannot identify image file 'uploads/2026/11/25/cat-17.jpeg' as any known format",
    "tasks.py:9",
    "app-1",
)
RESIZE: Final = TagFilter.of("resize")
MINUTE: Final = 60.0
ROUNDED_SECONDS: Final = 28.0
"""What the minutes of all times lack, so that they are rounded up for nearly a minute to come."""
ADDING_SECONDS: Final = 69.5
WAITED_SECONDS: Final = 19 * MINUTE - ROUNDED_SECONDS
"""The time in which tasks are added and fail, and the time since."""
FRESH_SECONDS: Final = 15.0
MIB: Final = 1 << 20
WORKERS: Final = (
    ("resize-d2v1k7", "resize", "busy", 1, 1_277, 83),
    ("resize-q8m3xa", "resize", "busy", 1, 1_301, 85),
    ("resize-7f3k2q", "resize", "starting", 0, 0, 31),
    ("transcode-large-x81kqa", "transcode-large", "unresponsive", 1, 4, 498),
    ("transcode-large-m3c0pp", "transcode-large", "draining", 1, 11, 340),
)
WHY_LONG: Final = (
    "1,204 ready, #1204 is 9.1 s old: must be leased within 11.9 s; 2 busy + 0 idle + 1 starting can begin 96; "
    "9 more needed"
)


class SeededProject:
    """A folder that is filled anew when its times may soon be shown as others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seeded = ExitStack()
        self._seeded_at = float("-inf")

    def fresh(self, *, seconds: float = FRESH_SECONDS) -> Path:
        """Return the folder, filled at most `seconds` ago."""
        now = SystemMonotonicClock().monotonic()
        if now - self._seeded_at > seconds:
            self.close()
            for entry in self._folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            self._seeded.enter_context(seeded(self._folder))
            self._seeded_at = now
        return self._folder

    def close(self) -> None:
        """Stop the server."""
        self._seeded.close()


@contextmanager
def seeded(folder: Path) -> Iterator[None]:
    """Fill `folder`, and serve its queues and hold its supervisor's lock during the block."""
    now = SystemMonotonicClock().wall_seconds()
    then = now + ROUNDED_SECONDS
    (folder / "towline.yaml").write_text(SETTINGS)
    (folder / "wrong.yaml").write_text(WRONG)
    (folder / "tasks.py").write_text(TASKS)
    (folder / "transcode").write_text("#!/bin/sh\n")
    (folder / "transcode").chmod(0o755)
    files = StateDir(folder / ".towline")
    files.path.mkdir()
    _write_log(folder / "events.jsonl", now)
    _write_output(files.path / "workers", then)
    _write_state(files, then)
    clock = ManualClock(Instant(round((now - ADDING_SECONDS - WAITED_SECONDS) * MICROSECONDS)))
    store = MemoryStore()
    server = ServerThread(store, ServeOptions(socket_path=folder / "towline.sock"), clock=clock)
    server.start()
    try:
        _add_tasks(server, clock)
        with files.locked():
            yield
    finally:
        server.stop()
        store.close()


def _add_tasks(server: ServerThread, clock: ManualClock) -> None:
    """Add tasks in every state through the server, so that it remembers their events."""
    queues = HttpQueues(server.url)
    queues.put_queue(QueueSpec("thumbs", lease_seconds=3_600.0, max_leases=5, retry_min_seconds=0.0))
    queues.put_queue(QueueSpec("transcoding", lease_seconds=21_600.0, max_leases=2, retry_min_seconds=0.0))
    thumbs, transcoding = queues.queue("thumbs"), queues.queue("transcoding")
    thumbs.add([NewTask(b'{"path": "uploads/2026/11/25/cat-17.jpeg", "width": 320}', name="cat-17", tag="resize")])
    for seconds in (2.0, 2.0, 2.0, 2.0, MINUTE):
        (held,) = thumbs.lease(tags=RESIZE, worker="resize-d2v1k7")
        clock.advance(seconds)
        thumbs.release(held, delay_seconds=0.0, error=NO_IMAGE)
    thumbs.add([NewTask(b"cat-18", name="cat-18", tag="resize")])
    (held,) = thumbs.lease(tags=RESIZE, worker="resize-q8m3xa")
    clock.advance(1.5)
    thumbs.delete(held)
    thumbs.add([NewTask(f"cat {number}".encode(), tag="resize") for number in range(19, 31)])
    thumbs.lease(2, tags=RESIZE, worker="resize-d2v1k7")
    thumbs.add([NewTask(b"later", name="newsletter-2026-11", tag="mail", delay_seconds=24 * MINUTE)])
    transcoding.add([NewTask(b"\xff\xd8\xff\xe0 a film", name="film-1"), NewTask(b"another film", name="film-2")])
    transcoding.lease(worker="transcode-large-x81kqa")
    clock.advance(WAITED_SECONDS)
    queues.close()


def _write_log(path: Path, now: float) -> None:
    """Write a lifecycle log of a quarter of an hour, for `backtest`."""
    lines = []
    for number in range(60):
        at = round((now - 900 + 10 * number) * MICROSECONDS)
        pool = {"queue": "thumbs", "tag": "resize"} if number % 3 else {"queue": "transcoding"}
        task = {**pool, "task": f"t{number}"}
        waited = 2.0 if number != 40 else 34.0
        lines.append({"event": "task.added", "at": at, **task})
        lines.append(
            {"event": "task.leased", "at": at + round(waited * MICROSECONDS), **task, "waited_seconds": waited}
        )
        ended = {"held_seconds": 3.0, "waited_seconds": waited}
        lines.append({"event": "task.deleted", "at": at + round((waited + 3.0) * MICROSECONDS), **task, **ended})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_output(folder: Path, now: float) -> None:
    folder.mkdir()
    stamp = datetime.fromtimestamp(now - 9 * MINUTE, UTC).isoformat()
    entry = {
        "timestamp": stamp,
        "level": "error",
        "event": "task.failed",
        "task": "cat-17",
        "error": "ValueError: cannot identify image file 'uploads/2026/11/25/cat-17.jpeg' as any known format",
        "traceback": 'Traceback (most recent call last):\n  File "tasks.py", line 9, in resize\nValueError: no image',
    }
    (folder / "resize-d2v1k7.log").write_text(
        "resizing cat-16, which is 4,912 pixels wide, to 320, 640 and 1,280 pixels, as the page requested it\n"
        + json.dumps(entry)
        + "\n"
    )
    (folder / "resize-q8m3xa.log").write_text(f'{{"timestamp": "{stamp}", "event": "resized", "task": "cat-18"}}\n')


def _write_state(files: StateDir, now: float) -> None:
    decisions = list(_decisions(now))
    for decision, inputs in decisions:
        files.decisions.append(decision)
        files.replays.append({"at": decision["at"], "pool": "resize", "target": decision["target"], "inputs": inputs})
    latest = decisions[-1][0]
    pools = {
        "resize": _pool(
            a_pool(most=4, tags=["resize"]), current=3, decision=latest, ready=12, in_flight=2, oldest=9 * MINUTE
        ),
        "transcode-large": _pool(
            a_pool("transcode-large", queue="transcoding", slo=600.0, most=12),
            current=2,
            decision=latest
            | {"pool": "transcode-large", "rule": "deadline", "why": WHY_LONG, "target": 11}
            | {"limited_by": ["spawn_parallelism", "memory"], "limits": ["4 at a time", "room for 2 more"]}
            | {"notes": ["scaled to 11 by hand, for 30 min more"]},
            ready=1_204,
            in_flight=2,
            oldest=7 * MINUTE,
        ),
    }
    files.write_snapshot(
        {
            "version": 1,
            "pid": 4_242,
            "phase": "leading",
            "url": f"unix://{files.path.parent}/towline.sock",
            "started_at": now - 3 * 3_600,
            "shown_at": now + 600.0,  # so that it is not old when the last command runs
            "pools": pools,
            "workers": [_worker(number, *worker, now=now) for number, worker in enumerate(WORKERS)],
        }
    )
    held = {"queue": "thumbs", "task": "cat-17", "tag": "resize", "held_seconds": 9.0, "lease_number": 2, "deaths": 2}
    files.deaths.append(
        _death("resize-k2ac81", now - 9 * MINUTE, "signalled", "ended by SIGSEGV")
        | {"held": [held | {"fate": "held back"}], "held_total": 1, "memory_peak_bytes": 212 * MIB}
        | {"last_lines": ["resizing cat-17", "Segmentation fault"], "stack": ['File "tasks.py", line 9 in resize']}
    )
    why = "the kernel ended it: out of memory, it had 498 MiB, with a limit of 512 MiB"
    files.deaths.append(
        _death("transcode-large-a81kqq", now - 4 * MINUTE, "out of memory", why, pool="transcode-large")
    )


def _decisions(now: float) -> Iterator[tuple[dict[str, object], object]]:
    state, spec = PolicyState(), a_pool(most=4)
    for ago, ready, busy in ((3 * 60 * MINUTE, 2, 1), (60 * MINUTE, 900, 2), (9 * MINUTE, 12, 2)):
        sample, fleet = a_sample(ages=[9.1], positions=[ready]), a_fleet_of(busy=busy, starting=1)
        decision, state = learn_and_decide(sample, fleet=fleet, spec=spec, state=state, now=NOW)
        inputs = recorded(sample, fleet, spec=spec, state=state, now=NOW, conditions=Conditions())
        yield {"at": round(now - ago, 3), **decision.record()}, inputs


def _pool(
    spec: PoolSpec, *, current: int, decision: dict[str, object], ready: int, in_flight: int, oldest: float
) -> dict[str, object]:
    return {
        "settings": {"queue": spec.queue, "slo_seconds": spec.slo, "min": 0, "max": spec.workers.max}
        | {"tags": list(spec.tags or ())},
        "current": current,
        "target": decision["target"],
        "leaving": 0,
        "suspects": 1,
        "is_stale": False,
        "sample": {"at": decision["at"], "ready": ready, "delayed": 1, "in_flight": in_flight, "dead": 1}
        | {"paused": False, "oldest_seconds": oldest},
        "decision": decision,
        "waited": {"leases": 812, "p99_over_slo": 3.217, "worst_over_slo": 9.5},
        "concern": {
            "kinds": ["late", "at_max"],
            "why": f"{ready:,} tasks have waited up to {shown_seconds(oldest)} past their SLO of "
            f"{shown_setting(spec.slo)}: all {current} workers are busy and max is {spec.workers.max}",
        },
    }


def _worker(
    number: int, name: str, pool: str, state: str, holding: int, finished: int, memory: int, *, now: float
) -> dict[str, object]:
    return {
        "worker": name,
        "pool": pool,
        "state": state,
        "ref": f"pid:{4_300 + number}@1",
        "pid": 4_300 + number,
        "since": now - (2 + number) * MINUTE,
        "spawned_at": now - 3 * 3_600 - number * MINUTE,
        "started_at": None if state == "starting" else now - 3 * 3_600,
        "holding": holding,
        "finished": finished,
        "memory_bytes": memory * MIB,
        "spec_digest": "d",
        "forked": pool == "resize",
        "adopted": False,
        "condition": "its handler has kept the interpreter lock" if state == "unresponsive" else "",
    }


def _death(worker: str, at: float, cause: str, detail: str, *, pool: str = "resize") -> dict[str, object]:
    told = {"at": at, "worker": worker, "pool": pool, "cause": cause, "detail": detail, "lived_seconds": 2_460.0}
    return told | {"held": [], "held_total": 0}
