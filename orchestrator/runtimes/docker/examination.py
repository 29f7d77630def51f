"""Find out why the worker in a container of this host's engine does not run, and whether it can write its stack."""

from typing import Final

from orchestrator.runtimes import procfs
from orchestrator.runtimes.process import STACK_SIGNAL, TASKS_NAME

STACK_SIGNAL_NAME: Final = "RTMIN+1"
"""The engine's name for `STACK_SIGNAL`."""
_INITS: Final = frozenset({"docker-init", "tini"})
"""The names of inits, which hand signals on to their child."""


def standstill_in(pid: int) -> str:
    """Return why the worker does not run whose container's first process this is; "" when it may run."""
    try:
        return next(filter(None, map(procfs.standstill, _family(pid))), "")
    except OSError:  # it has ended, or is not ours to read
        return ""


def writes_its_stack(pid: int) -> bool:
    """Return whether the stack signal, sent to a container's first process, reaches a process that handles it."""
    try:
        first = procfs.read_stat(pid)
        if first is None:
            return False
        reached = _children(pid) if first.name in _INITS else [first]
        return bool(reached) and all(procfs.catches(process.pid, STACK_SIGNAL) for process in reached)
    except OSError:
        return False


def _family(pid: int) -> list[procfs.ProcessStat]:
    """Return a container's first process, its children, and the processes in which these run handlers."""
    first = procfs.read_stat(pid)
    family = [*([first] if first else []), *_children(pid)]
    handlers = [procfs.named_child_of(process.pid, TASKS_NAME) for process in family]
    return [*family, *(process for process in handlers if process is not None)]


def _children(pid: int) -> list[procfs.ProcessStat]:
    found = [procfs.read_stat(child) for child in procfs.children_of(pid)]
    return [process for process in found if process is not None and process.is_alive]
