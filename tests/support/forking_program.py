"""A program that forks with an open queue, like prefork servers and `multiprocessing`: `python -m ... STORY URL`.

It prints what was acknowledged, as JSON. A child that fails or hangs makes the program fail.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from queue_core.client.connect import open_queue
from queue_core.client.queue import Queue
from queue_core.task import NewTask
from queue_core.verbs import Deletion

CHILD_SECONDS = 30
Results = dict[str, object]


def fork(story: Callable[[], object]) -> "Child":
    """Run `story` in a child process; `Child.result` returns its result."""
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return Child(process, reader)
    signal.alarm(CHILD_SECONDS)
    try:
        answer: object = {"result": story()}
    except BaseException:  # noqa: BLE001 - reported by the parent
        answer = {"error": traceback.format_exc()}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


class Child:
    """A forked child process."""

    def __init__(self, process: int, reader: int) -> None:
        self._process = process
        self._reader = reader

    def result(self) -> object:
        """Return the story's result once the child has ended. Raises its error."""
        with os.fdopen(self._reader, "rb") as answers:
            data = answers.read()
        os.waitpid(self._process, 0)
        answer = json.loads(data or '{"error": "hung"}')
        if "error" in answer:
            raise RuntimeError(f"in the child: {answer['error']}")
        return answer["result"]


def add(queue: Queue, name: str, count: int) -> list[str]:
    """Add `count` tasks one by one and return their payloads."""
    made = [f"{name}-{number}" for number in range(count)]
    for payload in made:
        queue.add([NewTask(payload.encode())])
    return made


def _all(children: list[Child]) -> list[str]:
    return [payload for child in children for payload in child.result()]  # type: ignore[attr-defined]


def siblings(queue: Queue) -> Results:
    """Let children and parent add at the same time."""
    added = add(queue, "before", 1)
    children = [fork(lambda child=child: add(queue, f"child{child}", 25)) for child in range(4)]
    added += add(queue, "parent", 25)
    return {"added": added + _all(children)}


_POOLED: list[Queue] = []


def _add_one(number: int) -> str:
    _POOLED[0].add([NewTask(f"pool-{number}".encode())])
    return f"pool-{number}"


def pool(queue: Queue) -> Results:
    """Use `multiprocessing.Pool` in a producer."""
    added = add(queue, "before", 1)
    _POOLED.append(queue)
    with multiprocessing.get_context("fork").Pool(3) as workers:
        added += workers.map(_add_one, range(60), chunksize=1)
    return {"added": added}


def grandchildren(queue: Queue) -> Results:
    """Fork from a forked child that has used the queue, and from one that has not."""

    def child(name: str, count: int) -> list[str]:
        added = add(queue, name, count)
        grandchild = fork(lambda: add(queue, f"{name}-child", 10))
        added += add(queue, f"{name}-again", 10)
        return added + _all([grandchild])

    added = add(queue, "before", 1)
    children = [fork(lambda: child("used", 5)), fork(lambda: child("unused", 0))]
    return {"added": added + _all(children) + add(queue, "after", 3)}


def busy(queue: Queue) -> Results:
    """Fork while other threads of the parent are in calls: adds, reads, and a waiting lease."""
    stop = threading.Event()
    added = add(queue, "before", 1)
    failed: list[str] = []

    def forever(call: Callable[[int], object]) -> Callable[[], None]:
        def run() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    call(number)
                except Exception:  # noqa: BLE001 - reported at the end
                    failed.append(traceback.format_exc())
                    return

        return run

    def add_one(number: int) -> None:
        name = f"{threading.current_thread().name}-{number}"
        queue.add([NewTask(name.encode())])
        added.append(name)

    nothing = open_queue(sys.argv[2], "nothing")
    calls = [add_one, add_one, lambda _: queue.stats(), lambda _: nothing.lease(1, worker="waits", wait_seconds=0.2)]
    threads = [threading.Thread(target=forever(call), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for child in range(12):
        added += _all([fork(lambda child=child: add(queue, f"child{child}", 3))])
    stop.set()
    for thread in threads:
        thread.join(CHILD_SECONDS)
    return {"added": added, "failed": failed}


def verbs(queue: Queue) -> Results:
    """Use every verb of a worker in the child; a lease of the parent stays its own."""
    names = [f"task{number}" for number in range(4)]
    queue.add([NewTask(name=name) for name in names])
    (held,) = queue.lease(1, worker="parent", seconds=60)

    def child() -> dict[str, object]:
        first, second = queue.lease(2, worker="child", seconds=60)
        queue.renew(first, seconds=90)
        queue.release(second, delay_seconds=0)
        exchanged, lost = queue.exchange([Deletion(first.token)], count=1, worker="child", seconds=60)
        queue.delete(exchanged, then=[NewTask(name="handed-on")])
        return {"lost": list(lost), "in_flight": queue.stats().in_flight, "listed": len(queue.peek().tasks)}

    results = fork(child).result()
    queue.delete(held)
    left = sorted(lease.name for lease in queue.lease(10, worker="parent"))
    return {"child": results, "left": left}


def woken(queue: Queue) -> Results:
    """Check that a waiter in the child is woken by the parent, and the other way round, within a second."""
    queue.lease(1, worker="parent", wait_seconds=0.05)
    waits_in_child = fork(lambda: [lease.payload.decode() for lease in queue.lease(1, worker="c", wait_seconds=20)])
    added = add(queue, "from-parent", 1)
    leased = waits_in_child.result()
    adds = fork(lambda: add(queue, "from-child", 1))
    (lease,) = queue.lease(1, worker="parent", wait_seconds=20)
    return {"child": leased, "parent": lease.payload.decode(), "added": added + _all([adds])}


def orphan(queue: Queue) -> Results:
    """Close the parent's queue, and open and close others, while the child goes on."""
    added = add(queue, "before", 1)
    to_child, from_parent = os.pipe()

    def child() -> list[str]:
        made = add(queue, "first", 5)
        os.write(ready, b"r")
        os.read(to_child, 1)
        return made + add(queue, "then", 5)

    is_ready, ready = os.pipe()
    forked = fork(child)
    os.read(is_ready, 1)
    queue.close()
    another = open_queue(sys.argv[2])
    added += add(another, "another", 2)
    another.close()
    os.write(from_parent, b"g")
    return {"added": added + _all([forked])}


def closed(queue: Queue) -> Results:
    """Check that a queue closed before the fork is closed in the child."""
    queue.close()

    def child() -> str:
        try:
            queue.add([NewTask(b"x")])
        except Exception as error:  # noqa: BLE001 - reported by the parent
            return type(error).__name__
        return "added"

    return {"child": fork(child).result()}


def memory(queue: Queue) -> Results:
    """Check that a forked copy of a memory store reaches no other process."""

    def child() -> list[str]:
        results = []
        for call in (lambda: queue.add([NewTask(b"x")]), queue.stats, lambda: queue.lease(1, wait_seconds=0.1)):
            try:
                call()
                results.append("done")
            except Exception as error:  # noqa: BLE001 - reported by the parent
                results.append(f"{type(error).__name__}: {error}")
        return results

    results = fork(child).result()
    return {"child": results, "added": add(queue, "parent", 1)}


STORIES = (siblings, pool, grandchildren, busy, verbs, woken, orphan, closed, memory)

if __name__ == "__main__":
    _story = {story.__name__: story for story in STORIES}[sys.argv[1]]
    sys.stdout.write(json.dumps(_story(open_queue(sys.argv[2]))))
