"""Advice on a worker's death: one sentence for each kind, from its certificate. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from orchestrator.fleet.exits import EXIT_BROKEN, EXIT_CHANGED, EXIT_LOOP_ENDED, TRACEBACK_OF, Cause

Json: TypeAlias = Mapping[str, object]

NOTHING_TO_DO: Final = "nothing to do"
_LONG_WORK: Final = (
    "give what it waits for a timeout of its own, or the handler one (`timeout=`); work that takes so long needs a"
    " larger `max_lease` of the queue"
)
_ENDS_IT: Final = "find what ends the process in the handler of the task it held; a handler that only raises never does"
_CATCH_IT: Final = (
    "catch that error where it works on a task, and give the lease back: `queue.release(lease, error=error)`"
)
_FAULTS: Final = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
_OF_CAUSE: Final[Mapping[str, str]] = {
    Cause.OUT_OF_MEMORY: "give the pool's workers more memory, or fewer tasks at a time (concurrency); recycle.memory"
    " replaces a worker that grows slowly before the kernel does",
    Cause.TIMED_OUT: "give what it waits for a timeout of its own, shorter than the handler's, and no worker needs to"
    " end",
    Cause.HUNG: _LONG_WORK,
    Cause.MISCONFIGURED: "fix that and the pool restarts automatically; `towline check` finds the like before a start",
    Cause.QUEUE_LOST: "`towline health` checks whether the server answers; the worker is replaced automatically",
    Cause.OVERDUE: "its handler ran on for longer than the pool's grace: raise grace, or have the handler end sooner",
    Cause.REMOVED: "find out who removes containers: `docker events --filter event=destroy` shows when, for Pods the"
    " apiserver's audit log; `docker stop` lets a worker finish, and `towline drain` all of a host",
    Cause.DISRUPTED: "nothing to do: the cluster has taken its node or its place, and its tasks run again; their leases"
    " do not count. If it happens often: a higher priority_class, requests that fit, or nodes that are not spot",
    Cause.NODE_LOST: "`kubectl describe node` says what became of it; its tasks run again on other nodes",
    Cause.KILLED: "nothing to do: an operator ended it; its tasks run again, and their leases do not count",
    Cause.ASKED_TWICE: "nothing to do: its supervisor was asked twice to stop, which ends workers at once",
}
_OF_CODE: Final[Mapping[int, str]] = {
    EXIT_BROKEN: "that is a mistake in Towline: please report it, with the output of `towline logs {worker}`",
    EXIT_CHANGED: "change the user in a process of its own, or start the worker as that user",
    EXIT_LOOP_ENDED: "an asyncio task that a handler starts must not raise SystemExit or KeyboardInterrupt",
}


def advise(death: Json, *, dead: Sequence[Json], by_hand: str = "") -> str:
    """Return what to do about a death, with its tasks that are `dead` now and the command that starts such a worker."""
    steps = [step for step in _steps(death, by_hand=by_hand) if step]
    if dead:
        first = dead[0]
        steps.append(
            f"{len(dead)} of its tasks {'is' if len(dead) == 1 else 'are'} dead: fix the handler, then run"
            f" `towline redrive {first.get('queue')} --named {first.get('task')}`"
        )
    return "; ".join(steps) or NOTHING_TO_DO


def _steps(death: Json, *, by_hand: str) -> Iterator[str]:
    cause = str(death.get("cause"))
    if cause == Cause.OUT_OF_MEMORY and death.get("forked"):
        yield "it was forked: only its own part is free again, and its template and the other workers continue"
    match cause:
        case Cause.SIGNALLED:
            yield _signal_advice(death)
        case Cause.CRASHED:
            yield _crash_advice(death)
        case Cause.UNRESPONSIVE:
            yield _silence_advice(death)
        case Cause.DRAINED if death.get("held"):
            yield _OF_CAUSE[Cause.OVERDUE]
        case Cause.FINISHED if death.get("held"):
            yield _ENDS_IT
        case Cause.UNKNOWN:
            yield f"nobody saw its end: `towline logs {death.get('worker')}` shows what it wrote until then"
        case _:
            yield _OF_CAUSE.get(cause, "")
    if death.get("failed_start") and cause != Cause.MISCONFIGURED:
        yield "growth of the pool waits and tries again" + (f"; the same start by hand: `{by_hand}`" if by_hand else "")


def _signal_advice(death: Json) -> str:
    detail = str(death.get("detail"))
    if "SIGKILL" in detail:
        return (
            "sent by a person, or by the kernel when memory ran out: `journalctl -k | grep -i -e oom -e killed` shows"
            " what the kernel did"
        )
    fault = next((name for name in _FAULTS if name in detail), "")
    if fault and " at " in detail:
        return f"{fault} comes from the native code that is called there: look for a newer version of it"
    if fault:
        return f"{fault} comes from native code or from outside: env: {{PYTHONFAULTHANDLER: '1'}} shows where"
    return (
        f"somebody sent that signal, or its own code did: `towline logs {death.get('worker')}` shows what it did last"
    )


def _crash_advice(death: Json) -> str:
    code, worker = death.get("code"), death.get("worker")
    if isinstance(code, int) and code in _OF_CODE:
        return _OF_CODE[code].format(worker=worker)
    if death.get("held"):
        return _CATCH_IT if TRACEBACK_OF in str(death.get("detail")) else _ENDS_IT
    if death.get("last_lines"):
        return f"its last lines should say why; `towline logs {worker}` has all of them"
    return "its last lines should say why, but it wrote none: run its command by hand"


def _silence_advice(death: Json) -> str:
    detail = str(death.get("detail"))
    if detail.startswith(("it was stopped", "its control group is frozen")):
        return "something stopped its process, such as SIGSTOP, a debugger or a frozen control group: find out what"
    if detail.startswith("it was paused"):
        return "somebody paused its container: `docker events --filter event=pause` shows when; find out what does it"
    if "interpreter lock" in detail:
        return (
            "run a call that keeps the interpreter lock for long as a program of its own (subprocess, multiprocessing),"
            " so that the worker can renew its lease meanwhile"
        )
    if " hung" in detail:
        return _LONG_WORK
    return "while the next one hangs, `kill -s RTMIN+1 PID` has it write where it stands; `towline logs` shows that"
