"""The stacks of threads in a worker's output, as a person reads them: the lines of the user's program alone. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from orchestrator.supervisor.output import WorkerLine
from queue_core.cli.event_lines import is_library_file

_THREAD: Final = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME: Final = re.compile(r'  File "([^"]*)", line \d+ in .')


@dataclass(slots=True)
class StackFolder:
    """Leaves out of a dump by `faulthandler` what is not the user's: a worker that hangs has 60 lines of it.

    The lines come one by one, those of several workers mixed. All of them are in the worker's log and in `why-died`.
    """

    _threads: dict[str, WorkerLine] = field(default_factory=dict)

    def shown(self, line: WorkerLine) -> Iterator[WorkerLine]:
        """Yield what is shown for the next line: a thread's heading only before a line of the user's program."""
        if _THREAD.match(line.text):
            self._threads[line.worker] = line
            return
        frame = _FRAME.match(line.text)
        if frame is not None and is_library_file(frame[1]):
            return
        heading = self._threads.pop(line.worker, None)
        if frame is not None and heading is not None:
            yield heading
        yield line
