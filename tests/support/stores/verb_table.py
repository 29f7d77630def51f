"""Every verb as one call on a prepared queue, and the queue's state before and after."""

from collections.abc import Callable
from dataclasses import dataclass

from queue_core.client.queue import Queue, Queues
from queue_core.errors import UnknownQueueError
from queue_core.task import ALL_STATES, Lease, NewTask, QueueSpec
from queue_core.verbs import Deletion, ObservationQuery

PREPARED = (NewTask(b"one", name="one"), NewTask(b"two"), NewTask(b"three", tag="x"), NewTask(b"dead", name="dead"))
MOVED_LEASE_SECONDS = 77.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A queue with a leased task "one", a dead task and two ready ones, and the lease's holder."""

    queues: Queues
    queue: Queue
    lease: Lease
    worker: str


Act = Callable[[Prepared], object]

VERBS: dict[str, Act] = {
    "add": lambda on: on.queue.add([NewTask(b"four"), NewTask(b"five", tag="x")]),
    "add by name": lambda on: on.queue.add([NewTask(b"", name="four")]),
    "lease": lambda on: on.queue.lease(1, seconds=60.0, worker=f"another than {on.worker}"),
    "exchange": lambda on: on.queue.exchange([Deletion(on.lease.token)], seconds=60.0, worker=on.worker),
    "renew": lambda on: on.queue.renew(on.lease, seconds=90.0),
    "release": lambda on: on.queue.release(on.lease, delay_seconds=0.0),
    "release as dead": lambda on: on.queue.release(on.lease, dead_reason="broken"),
    "delete": lambda on: on.queue.delete(on.lease),
    "delete, then add": lambda on: on.queue.delete(on.lease, then=[NewTask(b"next")]),
    "delete by name": lambda on: on.queue.delete_by_name(["one"]),
    "redrive": lambda on: on.queue.redrive(["dead"]),
    "pause": lambda on: on.queue.pause(),
    "put queue": lambda on: on.queues.put_queue(QueueSpec(on.queue.name, lease_seconds=MOVED_LEASE_SECONDS)),
    "delete queue": lambda on: on.queues.delete_queue(on.queue.name),
    "release worker": lambda on: on.queues.release_worker(on.worker),
    "retire worker": lambda on: on.queues.retire_worker(f"retired on {on.queue.name}"),
    "let worker finish": lambda on: on.queues.retire_worker(on.worker, busy="finish"),
    "lead": lambda on: on.queues.lead(on.queue.name, "me", seconds=60.0),
    "stats": lambda on: on.queue.stats(),
    "observe": lambda on: on.queues.observe(on.queue.name),
    "observe many": lambda on: on.queues.observe_many([ObservationQuery(on.queue.name), ObservationQuery("nobody's")]),
}


def prepare(queues: Queues, name: str, *, act_on: Queues) -> Prepared:
    """Make the queue through one client, to be used through another."""
    queues.put_queue(QueueSpec(name))
    queue = queues.queue(name)
    worker = f"worker of {name}"
    queue.add(PREPARED[3:])
    queue.release(queue.lease(1, seconds=60.0), dead_reason="made dead")
    queue.add(PREPARED[:3])
    (lease,) = queue.lease(1, seconds=60.0, worker=worker)
    return Prepared(act_on, act_on.queue(name), lease, worker)


def look(queues: Queues, name: str) -> object:
    """Return all that a verb may change, without what differs between two equally treated queues."""
    queue = queues.queue(name)
    try:
        tasks = queue.peek(states=ALL_STATES, limit=100, payload_bytes=100).tasks
        stats = queue.stats()
    except UnknownQueueError:
        return "no such queue"
    (spec,) = [spec for spec in queues.queues() if spec.name == name]
    totals = (stats.added_total, stats.leased_total, stats.deleted_total, stats.released_total, stats.expired_total)
    counts = (stats.ready, stats.delayed, stats.in_flight, stats.dead)
    kept = sorted((task.payload, task.name or "", task.tag or "", task.state.name, task.leases) for task in tasks)
    return kept, counts, totals, spec.paused, spec.lease_seconds
