"""A producer and a consumer by hand, as a user writes them."""

import sys

from queue_core import (
    ANY,
    Added,
    Instant,
    Lease,
    LeaseLostError,
    NewTask,
    Queue,
    QueueError,
    Queues,
    QueueSpec,
    QueueStats,
    TagFilter,
    TaskState,
    open_queue,
    open_queues,
)


def produce(queue: Queue) -> list[str]:
    added: list[Added] = queue.add([NewTask(b"cat.jpg", tag="resize"), NewTask(b"dog.jpg", tag="resize")])
    return [one.name for one in added]


def consume(queue: Queue) -> None:
    leases: list[Lease] = queue.lease(10, tags=TagFilter.of("resize"), seconds=30)
    until: Instant = leases[0].expires_at
    assert until > leases[0].leased_at
    queue.delete(leases[0], then=[NewTask(leases[0].payload, tag="publish")])
    try:
        queue.renew(leases[0])
    except LeaseLostError as error:
        assert error.tokens == (leases[0].token,)
    queue.release(leases[1:], dead_reason="not wanted")


def count(queues: Queues) -> tuple[int, int]:
    stats: QueueStats = queues.queue("thumbs").stats(tags=ANY)
    dead = queues.queue("thumbs").peek(states=frozenset({TaskState.DEAD}))
    return stats.ready, len(dead.tasks)


def main(url: str) -> int:
    thumbs = open_queue(url, "thumbs")
    assert len(produce(thumbs)) == 2
    consume(thumbs)
    thumbs.close()
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs", max_leases=5))
    assert count(queues) == (1, 1)
    try:
        queues.queue("nowhere").stats()
    except QueueError as error:
        print("refused:", error)
    queues.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
