"""The last program of a worker whose handlers left child processes: ends them, then exits with the worker's code.

A handler that waits for a child must not go on when the child is ended: it would publish half a result. So the worker
becomes this program by an exec, which ends all its threads at one instant and leaves its pid, its parent and its
children as they are. This file also runs as a script, so it imports little.
"""

import os
import select
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NoReturn

TERMINATE_SECONDS = 0.5
"""Seconds between SIGTERM and SIGKILL for child processes that still run when the worker exits."""


def become_last_program(code: int, children: Collection[int]) -> NoReturn:
    """Replace this process by a program that ends its children, and exits with `code`.

    Where no program can be started the process exits at once: its supervisor ends the children.

    Args:
        code: the exit code.
        children: the pids of all descendants.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # an exec keeps the mask, and no handler
    opened = []
    with suppress(OSError):
        for pid in children:
            with suppress(ProcessLookupError):
                opened.append(os.pidfd_open(pid))
                os.set_inheritable(opened[-1], True)  # noqa: FBT003 - a parameter of os
        program = [sys.executable, "-I", "-S", __file__, str(code), *map(str, opened)]
        os.execv(sys.executable, program)  # noqa: S606 - this very file
    os._exit(code)


def end_children(opened: Sequence[int]) -> None:
    """Send SIGTERM to processes by their pidfds, and SIGKILL to those that have not ended after a while."""
    waiting = select.poll()
    living = set(opened)
    for pidfd in opened:
        _send(pidfd, signal.SIGTERM)
        waiting.register(pidfd, select.POLLIN)
    for _ in opened:
        ended = {pidfd for pidfd, _ in waiting.poll(TERMINATE_SECONDS * 1000)}
        for pidfd in ended:
            waiting.unregister(pidfd)
        living -= ended
        if not living or not ended:
            break
    for pidfd in living:
        _send(pidfd, signal.SIGKILL)


def _send(pidfd: int, number: int) -> None:
    with suppress(OSError):  # it has ended, or is another user's
        signal.pidfd_send_signal(pidfd, number)


if __name__ == "__main__":
    end_children([int(text) for text in sys.argv[2:]])
    os._exit(int(sys.argv[1]))
