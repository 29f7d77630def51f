"""Pools of Celery's workers at length: `python3 -m tests.celery.pools`, or one of C6 C7 C9 C16.

Each is a story under `towline up` with a figure and the least that it must be.
"""

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.base.clock import SystemMonotonicClock
from tests.support.docker.engine import PrivateDockerEngine, docker_engine
from tests.support.eventually import eventually
from tests.support.fleet.celery_site import CelerySite, TaskNote, celery_site

if TYPE_CHECKING:
    from tests.celery.claims import Claim, Conditions, Figure

CLOCK: Final = SystemMonotonicClock()
CROWD_SHAPE: Final = (1, 2, 4, 8, 14, 18, 16, 12, 8, 9, 12, 7, 4, 2, 1, 1, 0, 0, 0, 0)
"""Tasks of each three seconds of a recorded crowd: a rise within half a minute, a second wave, and an end."""
CROWD_STEP_SECONDS: Final = 3.0
CROWD_TASK_SECONDS: Final = 1.5
CROWD_SLO_SECONDS: Final = 15.0
LATE_SHARE: Final = 0.005


@dataclass(frozen=True, slots=True)
class PoolFigure:
    """What one story showed, and the least that it must show."""

    text: str
    bar: str
    is_met: bool


def killed_tree() -> PoolFigure:
    """C6: ten 2 s tasks, a worker killed with its children: all end within 60 s; the first runs again at once."""
    with celery_site() as site:
        site.write(shop=site.pool())
        site.up()
        for number in range(10):
            site.send("nap", f"task-{number}", 2.0)
        eventually(lambda: len(site.notes()) >= 2, seconds=60)
        victim = site.notes()[0].worker
        killed_at = _kill_tree(site.pids()[victim])
        lost = _unfinished(site, victim)
        again = eventually(lambda: [one for one in site.notes() if one.at > killed_at and one.task in lost], seconds=60)
        eventually(lambda: len({one.task for one in site.notes("end")}) == 10, seconds=60)
        ended = max(one.at for one in site.notes("end")) - killed_at
        started = [float(str(one["seconds"])) for one in site.logged("worker.started")]
        site.down()
    first, bound = again[0].at - killed_at, max(started) + 0.5
    text = f"0 of 10 unfinished {ended:.1f} s after, first re-run {first:.2f} s after the kill"
    return PoolFigure(text, f"60 s, and {bound:.1f} s: a worker's start + 0.5 s", ended < 60 and first < bound)


def killed_child() -> PoolFigure:
    """C7: a child is killed: its task runs again within 2 s. A poisonous one ends as dead, its neighbour once."""
    with celery_site() as site:
        queues = {"default": {"max_leases": 3, "retry": {"min": "0.1s", "max": "0.1s"}}}
        site.write(queues=queues, shop=site.pool(workers={"max": 1}))
        site.up()
        site.send("nap", "cut", 4.0, queue="odd_images")
        (first,) = eventually(site.notes, seconds=60)
        os.kill(first.pid, signal.SIGKILL)
        killed_at = CLOCK.wall_seconds()
        again = eventually(lambda: site.notes()[1:], seconds=60)[0].at - killed_at
        eventually(lambda: site.notes("end"), seconds=60)
        site.send("nap", "neighbour", 12.0, queue="odd_images")
        site.send("poison", "bad")
        eventually(lambda: site.stats().dead == 1, seconds=60)
        runs = sum(one.task == "bad" for one in site.notes())
        eventually(lambda: len(site.notes("end")) == 2, seconds=60)
        neighbour = sum(one.task == "neighbour" for one in site.notes())
        site.down()
    text = f"run again {again:.2f} s after; poison dead after {runs} runs, its neighbour ran {neighbour} time"
    return PoolFigure(text, "2 s; 3 runs; once", again < 2 and runs == 3 and neighbour == 1)


def stopped_containers() -> PoolFigure:
    """C9: six 15 s tasks in three containers, one of them stopped by somebody else: all end."""
    with docker_engine() as engine, container_site(engine) as (site, container):
        pool = site.pool(workers={"min": 3, "max": 3}, grace="20s", **container)
        site.write(shop=pool)
        site.up()
        eventually(lambda: len(site.logged("worker.started")) == 3, seconds=120)
        for number in range(6):
            site.send("nap", f"task-{number}", 15.0)
        eventually(lambda: len(site.notes()) == 6, seconds=60)
        whom = site.notes()[0].worker
        stop_container(engine, whom)
        eventually(lambda: len({one.task for one in site.notes("end")}) == 6, seconds=120)
        runs = len(site.notes())
        death = eventually(lambda: site.deaths().get(whom), seconds=60)
        site.down()
    text = f"0 of 6 unfinished, {runs} runs; the stopped worker: {death['cause']}"
    return PoolFigure(text, "0 unfinished", is_met=True)


def crowd() -> PoolFigure:
    """C16: a recorded crowd of real tasks: few are late, 0 -> n -> 0, and no busy worker gets a signal."""
    with celery_site() as site:
        pool = site.pool(slo=f"{CROWD_SLO_SECONDS:g}s", workers={"min": 0, "max": 8}, celery={"concurrency": 2})
        site.write(shop=pool)
        site.up()
        sent: dict[str, float] = {}
        began_at = CLOCK.monotonic()
        for step, count in enumerate(CROWD_SHAPE):
            for place in range(count):
                _sleep_until(began_at + (step + place / count) * CROWD_STEP_SECONDS)
                name = f"task-{step}-{place}"
                sent[name] = CLOCK.wall_seconds()
                site.send("nap", name, CROWD_TASK_SECONDS, queue=("default", "odd_images")[place % 2])
        eventually(lambda: len(site.notes("end")) >= len(sent), seconds=60)
        eventually(lambda: len(site.logged("worker.reaped")) == len(site.pids()), seconds=120)
        cut = _signalled_while_busy(site)
        most = max(int(str(one["target"])) for one in site.logged("pool.decided"))
        waits = sorted(note.at - sent[note.task] for note in _first_runs(site))
        ends = len(site.notes("end"))
        site.down()
    late = sum(wait > CROWD_SLO_SECONDS for wait in waits)
    text = (
        f"{late} of {len(waits)} late, wait p50 {statistics.median(waits):.1f} s, longest {waits[-1]:.1f} s; "
        f"0 -> {most} -> 0; {ends - len(waits)} run twice, {cut} busy workers signalled"
    )
    is_met = late <= LATE_SHARE * len(waits) and not cut and ends == len(waits) == len(sent)
    return PoolFigure(text, "late <= 0.5 %, none signalled, none twice", is_met)


STORIES: Final[dict[str, tuple[str, Callable[[], PoolFigure]]]] = {
    "C6": ("ten 2 s tasks, a worker killed with its children", killed_tree),
    "C7": ("a child killed, and a poisonous task", killed_child),
    "C9": ("`docker stop` with six 15 s tasks", stopped_containers),
    "C16": ("a recorded crowd with real tasks", crowd),
}


def claims() -> "list[Claim]":
    """Return the stories as claims of the laboratory."""
    from tests.celery.claims import Claim, Figure

    def measured(story: Callable[[], PoolFigure]) -> "Callable[[Conditions], Figure]":
        def measure(_: "Conditions") -> "Figure":
            figure = story()
            return Figure(figure.text, figure.bar, figure.is_met)

        return measure

    return [Claim(name, title, measured(story)) for name, (title, story) in STORIES.items()]


@contextmanager
def container_site(engine: PrivateDockerEngine) -> Iterator[tuple[CelerySite, dict[str, object]]]:
    """Make a site whose workers are containers of this engine; also return its pools' `runtime`."""
    with celery_site() as site:
        docker = {
            "image": engine.image(),
            "engine": engine.url,
            "network": "none",
            "pull": "never",
            "volumes": [f"{site.folder}:{site.folder}"],
        }
        try:
            yield site, {"runtime": {"docker": docker}}
        finally:
            engine.remove_containers()


def stop_container(engine: PrivateDockerEngine, worker: str) -> None:
    """Stop a worker's container as `docker stop` does: its stop signal, and SIGKILL when its time is over."""
    with engine.client() as client:
        found = {one["Labels"].get("towline.worker"): one["Id"] for one in client.containers()}
        client.stop(found[worker])


def _kill_tree(pid: int) -> float:
    """Kill a worker and its children; return when."""
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    killed_at = CLOCK.wall_seconds()
    for one in (pid, *children):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:  # it died with its parent
            continue
    return killed_at


def _unfinished(site: CelerySite, worker: str) -> set[str]:
    ended = {one.task for one in site.notes("end")}
    return {one.task for one in site.notes() if one.worker == worker and one.task not in ended}


def _first_runs(site: CelerySite) -> list[TaskNote]:
    first: dict[str, TaskNote] = {}
    for note in site.notes():
        first.setdefault(note.task, note)
    return list(first.values())


def _signalled_while_busy(site: CelerySite) -> int:
    """Return how many workers that held tasks were told to end, or ended otherwise than asked to."""
    told = [one for event in ("worker.draining", "worker.killed", "worker.cut_short") for one in site.logged(event)]
    reaped = [one for one in site.logged("worker.reaped") if one["held"] or one["cause"] not in ("drained", "finished")]
    return len(told) + len(reaped)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - CLOCK.monotonic()))


def main(names: list[str]) -> int:
    """Tell the figures of the stories; return 1 where one is not met."""
    is_met = True
    for name in names or list(STORIES):
        title, story = STORIES[name]
        figure = story()
        is_met &= figure.is_met
        verdict = "met" if figure.is_met else "MISSED"
        sys.stdout.write(f"{name}  {title}\n    {figure.text}\n    {verdict}: {figure.bar}\n")
        sys.stdout.flush()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
