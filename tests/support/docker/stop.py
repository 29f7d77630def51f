"""Measures what becomes of the tasks of a container stopped from outside, as with `docker stop`."""

from dataclasses import dataclass
from typing import Any

from tests.support.docker.site import DockerSite, HandlerRecord
from tests.support.eventually import eventually

TASKS = 6
BEGIN_SECONDS = 30.0
AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Stopped:
    """The figures of one stop: time until the container had ended, and from then until all tasks ran elsewhere.

    `lease_numbers` are those of the tasks' second lease: 1 if the first was not counted.
    """

    worker: str
    end_seconds: float
    again_seconds: float
    lease_numbers: set[int]


def stopped(site: DockerSite, *, timeout: int, payload: str, **pool: Any) -> Stopped:
    """Let a worker with six slots begin six tasks, start a second worker, and `docker stop` the first.

    Args:
        timeout: the seconds that Docker waits.
        pool: settings of the pool.
    """
    site.write(resize=site.pool(**pool, concurrency=TASKS, workers={"min": 1, "max": 1}))
    site.start()
    held = set(site.add(*[payload] * TASKS))
    begun = eventually(lambda: found if len(found := site.notes("begin")) >= TASKS else [], seconds=BEGIN_SECONDS)
    (worker,) = {note.worker for note in begun}
    site.write(resize=site.pool(**pool, concurrency=TASKS, workers={"min": 2, "max": 2}))
    eventually(lambda: len(site.logged("worker.started")) == 2, seconds=BEGIN_SECONDS)
    stopped_at = site.now()
    with site.engine.client() as client:
        client.stop(site.living()[worker], timeout=timeout)
    ended_at = site.now()
    again = eventually(lambda: _begun_elsewhere(site, held, worker), seconds=AGAIN_SECONDS)
    last_at = max(note.at for note in again)
    return Stopped(worker, ended_at - stopped_at, last_at - ended_at, {note.lease_number for note in again})


def _begun_elsewhere(site: DockerSite, tasks: set[str], worker: str) -> list[HandlerRecord]:
    """Return the records of other workers that began these tasks; nothing until all were begun."""
    found = [note for note in site.notes("begin") if note.task in tasks and note.worker != worker]
    return found if {note.task for note in found} == tasks else []
