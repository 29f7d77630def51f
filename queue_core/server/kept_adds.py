"""Adds that take effect once whichever server they are sent to: the store remembers the last call of each session."""

from collections.abc import Sequence
from dataclasses import replace

from queue_core.store import Added, ClientCall
from queue_core.task import NewTask
from queue_core.verbs import Turn


class KeptAdd:
    """A step that bears to be run again, here or by another server."""

    def __init__(self, queue: str, tasks: Sequence[NewTask], call: ClientCall) -> None:
        self._queue = queue
        self._tasks = tasks
        self._call = call

    def __call__(self, turn: Turn) -> list[Added]:
        """Add, or tell what became of it before."""
        call = self._call
        self._call = replace(call, is_repeat=True)  # when this is run again, another server may have been quicker
        return turn.add_once(self._queue, self._tasks, call)
