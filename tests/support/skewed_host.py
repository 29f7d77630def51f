"""A process with a wrong wall clock, like a badly set host, that calls verbs on request."""

import multiprocessing
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection

from queue_core.client.connect import open_queues
from queue_core.errors import QueueError
from tests.faults.skewed_clock import skew_wall_clock

ANSWER_SECONDS = 20.0


class SkewedHost:
    """Calls verbs in the other process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, queue: str, verb: str, *arguments: object, **settings: object) -> object:
        """Call a verb of `Queue`, or of `Queues` where `queue` is "". Its error is raised here."""
        self._pipe.send((queue, verb, arguments, settings))
        if not self._pipe.poll(ANSWER_SECONDS):
            raise TimeoutError(f"no answer to {verb} within {ANSWER_SECONDS} s")
        answer = self._pipe.recv()
        if isinstance(answer, QueueError):
            raise answer
        return answer


@contextmanager
def a_skewed_host(url: str, *, seconds: float) -> Iterator[SkewedHost]:
    """Run a process that opens the store (or a server) itself, its wall clock `seconds` ahead of ours."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, url, seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        yield SkewedHost(ours)
    finally:
        ours.close()
        process.kill()
        process.join()


def _serve(pipe: Connection, url: str, seconds: float) -> None:
    skew_wall_clock(seconds)
    with closing(open_queues(url)) as queues:
        while True:
            try:
                queue, verb, arguments, settings = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(getattr(queues.queue(queue) if queue else queues, verb)(*arguments, **settings))
            except QueueError as error:
                pipe.send(error)
