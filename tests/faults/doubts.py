"""Tells of a client over HTTP which of its calls were sent again though the first time may have been done."""

import threading

from queue_core.client import HttpQueues
from queue_core.errors import OutcomeUnknownError
from queue_core.http_api.problem_types import problem_type
from queue_core.http_api.transport import Answer, AnswerLostError

UNKNOWN = problem_type(OutcomeUnknownError).encode()


class Doubts:
    """Listens to what a client sends, and counts for each thread the answers that were lost or that left it open."""

    def __init__(self, queues: HttpQueues) -> None:
        caller = queues._caller
        self._of_thread = threading.local()
        self._send = caller._send
        caller._send = self._listen  # type: ignore[method-assign]

    def __call__(self) -> int:
        """How many this thread has met."""
        count: int = getattr(self._of_thread, "count", 0)
        return count

    def _listen(self, *arguments: object, **settings: object) -> Answer:
        try:
            answer = self._send(*arguments, **settings)  # type: ignore[arg-type]
        except AnswerLostError:
            self._of_thread.count = self() + 1
            raise
        if answer.status == 503 and UNKNOWN in answer.body:
            self._of_thread.count = self() + 1
        return answer
