"""Run workers as processes of this host: a session each, watched through a pidfd, found again after a restart (ADR 1).

No thread waits for a child, and no signal goes to a bare pid: a pidfd never names another process.
"""

import contextlib
import errno
import os
import resource
import selectors
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Final, Literal

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SpawnError
from orchestrator.capacity.host import HostMeter
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.last_words import last_words_of
from orchestrator.fleet.placement import Placement
from orchestrator.runtime import NOTHING_KNOWN, ApplicationReport, Exit, SpawnRequest, Usage, WorkerHandle
from orchestrator.runtimes import procfs
from orchestrator.runtimes.forked_memory import ForkedMemory, ForkedMemoryMeter
from orchestrator.runtimes.oom_kills import OomKills, Verdict, ended_by_kernel, killed_perhaps
from orchestrator.runtimes.procfs import WorkerProcess
from orchestrator.runtimes.template_process import ForkedWorker
from orchestrator.runtimes.templates import FORKED_VARIABLE, Templates
from orchestrator.runtimes.watchdog_process import WatchdogProcess
from orchestrator.runtimes.worker_logs import MAX_LOG_BYTES, WorkerLogs
from orchestrator.state.private_files import identity_of_folder, is_same_folder
from queue_core.log import get_logger

log = get_logger()

APP_COMMAND: Final = (sys.executable, "-m", "queue_core.worker")
"""The command of an `app` worker."""
TASKS_NAME: Final = "towline-tasks"
"""The kernel's name of the process that runs a recycled worker's handlers (see `respawn`)."""
UPKEEP_SECONDS: Final = 10.0
"""Interval at which logs are trimmed and the watchdog is checked."""
STACK_SIGNAL: Final = signal.SIGRTMIN + 1
"""On this signal a worker writes its threads' stacks to its log (see `queue_core.worker.main`)."""
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})
"""Signals that end a process for a fault of its own; a worker writes its stack before (see `faulthandler`)."""
# The first five address the supervisor's parent, which would take a worker that answers for the supervisor. The others
# are the supervisor's credentials: a worker gets its own with its request.
_NOT_INHERITED: Final = frozenset(
    {
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_FDS",
        "LISTEN_PID",
        "TOWLINE_TOKEN",
        "TOWLINE_TOKEN_FILE",
    }
)


class OtherProcesses:
    """The supervisor's child processes that are no workers: the watchdog and orphans. Belongs to one thread."""

    def __init__(self, state_dir: Path, *, lock: Path | None, identity: str = "") -> None:
        """`lock` is a file that a living supervisor holds locked; without one there is no watchdog.

        identity: the id of the folder `state_dir`, see `identity_of_folder`.
        """
        self._state_dir = state_dir
        self._identity = identity
        self._lock = lock
        self._watchdog = WatchdogProcess("orchestrator.runtimes.watchdog", state_dir / "warden.lock")
        # Children that exist already belong to a program that ran in this process before an exec.
        self._inherited = set(procfs.children_of(os.getpid()))

    def keep_watchdog(self) -> None:
        """Start the watchdog unless one runs: an earlier supervisor's stays, for the workers it left.

        If it can't be started now, a later call may succeed.
        """
        # In a folder that took our folder's place it would keep that one's own watchdog from starting.
        if self._lock is not None and (not self._identity or is_same_folder(self._state_dir, self._identity)):
            with contextlib.suppress(OSError):
                self._watchdog.keep(str(self._state_dir), str(self._lock), self._identity)

    def collect(self, *, others: Collection[int]) -> None:
        """Collect ended children except `others`: workers and templates, whose exits are still to be read.

        As process 1 of a container we inherit every orphan (ADR 16).
        """
        self._watchdog.collect()
        self._inherited.difference_update([pid for pid in self._inherited.difference(others) if _is_collected(pid)])
        if os.getpid() != 1:
            return
        while (pid := _first_ended()) and pid not in others:
            _is_collected(pid)
        if pid:  # a worker's exit hides others' until it is collected
            for orphan in set(procfs.ended_children_of(1)).difference(others):
                _is_collected(orphan)

    def add(self, orphans: Collection[int]) -> None:
        """Collect these children, too, when they have ended."""
        self._inherited.update(orphans)

    def leave(self) -> None:
        """Leave the watchdog running without us, as long as it has workers to watch."""
        self._watchdog.leave()


def _first_ended() -> int:
    """Return a child that has ended and is not collected yet; 0 without one."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return ended.si_pid if ended else 0


def _is_collected(pid: int) -> bool:
    """Collect a child if it has ended; return whether it is collected, now or before."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True


@dataclass(frozen=True, slots=True)
class _Process:
    """A live worker: `pid` leads a session, `start_ticks` distinguishes it from a later process with that pid."""

    handle: WorkerHandle
    pid: int
    start_ticks: int
    pidfd: int


class ProcessRuntime:
    """A `Runtime` of child processes. All but `wake` belong to one thread.

    Each worker leads a session of its own, so a key pressed in the supervisor's terminal does not reach it; what it
    leaves behind in its process group is killed when it is reaped.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        lock: Path | None = None,
        withheld: Collection[str] = (),
        logs: WorkerLogs | None = None,
    ) -> None:
        """Args:
        state_dir: identifies the supervisor; workers of another state directory are never touched.
        lock: a file that a living supervisor holds locked: with it, a watchdog ends orphans.
        withheld: environment variables that no worker inherits, such as secrets.
        logs: the workers' logs; a folder of `state_dir` by default.
        """
        self._withheld = frozenset(withheld)
        self._state_dir = state_dir.resolve()
        self.logs = logs or WorkerLogs(self._state_dir / "workers")
        self._processes: dict[str, _Process] = {}
        self._selector = selectors.EpollSelector()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake_fd, selectors.EVENT_READ, "")
        self._killed: set[str] = set()
        self._examined: set[str] = set()
        self._rotated: set[str] = set()
        self._peaks: dict[str, int] = {}
        self._forked_memory = ForkedMemoryMeter()
        self._oom_kills = OomKills()
        self._upkeep_at = Monotonic(float("-inf"))
        self._identity = identity_of_folder(self._state_dir)
        self._templates = Templates(self._state_dir, open_log=self.logs.open, identity=self._identity)
        self._other_processes = OtherProcesses(self._state_dir, lock=lock, identity=self._identity)

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """See `Runtime.spawn`. The environment: ours without withheld variables, the pool's, the request's."""
        pool = request.pool
        environment = self._environment(request)
        if not self._processes:
            self._other_processes.keep_watchdog()
        output = None
        try:
            output = self.logs.open(request.worker)
            forked = self._templates.fork(request, environment, log_descriptor=output, now=now)
            if forked is not None:
                return self._spawned(request, forked, now=now)
            child = subprocess.Popen(
                list(request.program(sys.executable, app=APP_COMMAND)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=pool.cwd,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SpawnError(_reason(error, request)) from error
        finally:
            if output is not None:
                os.close(output)
        pidfd = None
        try:
            pidfd = os.pidfd_open(child.pid)
            stat = procfs.read_stat(child.pid)
        except OSError as error:
            if pidfd is not None:
                os.close(pidfd)
            child.kill()
            child.wait()
            raise SpawnError(f"can't watch a worker of pool {pool.name}: {error.strerror}") from error
        # From here on the child is collected through its pidfd; Popen must not collect it.
        child.returncode = 0
        start_ticks = stat.start_ticks if stat else 0
        ref = procfs.ref_of(child.pid, start_ticks)
        handle = WorkerHandle(request.worker, pool.name, ref, request.environment["TOWLINE_SPEC"], now)
        self._add(_Process(handle, child.pid, start_ticks, pidfd))
        return handle

    def _environment(self, request: SpawnRequest) -> dict[str, str]:
        return variables_of(request, self._withheld)

    def _spawned(self, request: SpawnRequest, forked: ForkedWorker, *, now: Monotonic) -> WorkerHandle:
        """Return the handle of a forked worker, and let it begin: from then on it can be found by its environment."""
        ref = procfs.ref_of(forked.pid, forked.start_ticks)
        handle = WorkerHandle(
            request.worker, request.pool.name, ref, request.environment["TOWLINE_SPEC"], now, is_forked=True
        )
        try:
            self._add(_Process(handle, forked.pid, forked.start_ticks, forked.pidfd))
        except BaseException:
            forked.abandon()
            self._other_processes.add({forked.pid})
            raise
        forked.send_go()
        return handle

    def forks(self, pool: PoolSpec) -> bool:
        """See `Runtime.forks`."""
        return self._templates.can_fork(pool)

    def application(self, request: SpawnRequest, *, since: Monotonic, now: Monotonic) -> ApplicationReport | None:
        """See `Runtime.application`; of a pool with a command, or of Celery's workers, nothing is known."""
        if request.command or request.pool.celery is not None:
            return NOTHING_KNOWN
        return self._templates.application(request, self._environment(request), since=since, now=now)

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`: SIGTERM to the worker only; it ends what it started itself."""
        process = self._processes.get(worker)
        if process is not None:
            procfs.send_signal(process.pidfd, signal.SIGTERM)

    def insist(self, worker: str, signal: str) -> None:
        """See `Runtime.insist`."""
        process = self._processes.get(worker)
        if process is not None:
            procfs.send_signal(process.pidfd, Signals[signal])

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`: SIGKILL to the worker and its process group."""
        process = self._processes.get(worker)
        if process is None:
            return
        self._killed.add(worker)
        if _is_child(process.pidfd):
            # Not collected yet, so the group's number can't be reused.
            _kill_group(process.pid)
        elif procfs.send_signal(process.pidfd, signal.SIGKILL):  # first, as its handler may wait for the others
            self._kill_strays(worker)

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        """See `Runtime.examine`. Requests a stack dump only if the worker handles the signal for it."""
        process = self._processes.get(worker)
        if process is None:
            return ""
        try:
            stat = procfs.read_stat(process.pid)
            if stat is None or stat.start_ticks != process.start_ticks:
                return ""
            child = procfs.named_child_of(process.pid, TASKS_NAME)
            condition = procfs.standstill(stat) or (procfs.standstill(child) if child else "")
            if before == "end" and not condition and procfs.catches(process.pid, STACK_SIGNAL):
                self._examined.add(worker)
                procfs.send_signal(process.pidfd, STACK_SIGNAL)
            condition = condition or last_words_of(self.logs.last_lines(worker, without_stack=True)).condition
        except OSError:  # no descriptor left, or not ours to read
            return ""
        return condition

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """See `Runtime.reap`. Also rotates logs, and checks the watchdog now and then."""
        self._oom_kills.watch(now=now)
        ended = [key.data for key, _ in self._selector.select(0) if key.data]
        exits = [self._collect(self._processes[worker], now=now) for worker in ended]
        self._rotate_logs()
        if now >= self._upkeep_at:
            self._upkeep_at = Monotonic(now + UPKEEP_SECONDS)
            self.logs.trim({*self._processes, *self._templates.logs()})
            if self._processes:
                self._other_processes.keep_watchdog()
            self._templates.maintain(busy={process.handle.pool for process in self._processes.values()}, now=now)
        self._other_processes.add(self._templates.take_orphans())
        self._other_processes.collect(
            others={process.pid for process in self._processes.values()} | self._templates.pids()
        )
        return exits

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt`: those of this folder, as no other host's or folder's can be adopted."""
        return self.adopt_own(remembered=remembered, now=now)

    def let_go(self, workers: Collection[str]) -> None:
        """See `Runtime.let_go`: a process is led by the supervisor of its own folder only."""

    def adopt_own(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt_own`. Processes that an unseen dead worker left behind are killed."""
        found = procfs.worker_processes(str(self._state_dir), self._identity)
        leading = {process.worker for process in found if process.leads}
        # A living worker's environment can be unreadable: overwritten by its title, or in an exec (ADR 5).
        hidden = [process for handle in remembered if handle.worker not in leading and (process := _process_of(handle))]
        found += hidden
        leading.update(process.worker for process in hidden)
        adopted = []
        procfs.kill_together([process for process in found if process.worker not in leading])
        for process in found:
            if process.leads and process.worker not in self._processes:
                handle = self._adopt(process, now=now)
                if handle is not None:
                    adopted.append(handle)
        if adopted:
            self._other_processes.keep_watchdog()
        return sorted(adopted, key=lambda handle: handle.spawned_at)

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`. Memory is the worker's own, without its children; of a recycled worker, its handlers'
        process'; of a forked one, without what it shares (see `forked_memory`)."""
        used: dict[str, Usage] = {}
        forked: list[ForkedMemory] = []
        for worker, process in self._processes.items():
            try:
                stat = procfs.read_stat(process.pid)
                if stat is None or stat.start_ticks != process.start_ticks or not stat.is_alive:
                    continue
                handlers = procfs.named_child_of(process.pid, TASKS_NAME) or stat
                used[worker] = Usage(handlers.memory_bytes, *procfs.effort(stat))
            except OSError:  # no descriptor left: another time
                continue
            if process.handle.is_forked:
                forked.append(ForkedMemory(worker, process.handle.pool, handlers.pid, handlers.memory_bytes))
        for worker, own_bytes in self._forked_memory.own_bytes(forked).items():
            used[worker] = replace(used[worker], memory_bytes=own_bytes)
        for worker, usage in used.items():
            self._peaks[worker] = max(self._peaks.get(worker, 0), usage.memory_bytes)
        return used

    def placements(self) -> Mapping[str, Placement]:
        """See `Runtime.placements`: nothing, as they are on this host."""
        return {}

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        ready = {key.data for key, _ in self._selector.select(max(0.0, timeout_seconds))}
        if "" in ready:
            os.eventfd_read(self._wake_fd)
        return bool(ready - {""})

    def wake(self) -> None:
        """See `Runtime.wake`. Safe in other threads and signal handlers; does nothing once closed."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """See `Runtime.close`. The watchdog stays as long as there are workers to watch."""
        for process in self._processes.values():
            os.close(process.pidfd)
        self._processes.clear()
        self._templates.close()
        self._selector.close()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1
        self._other_processes.leave()

    def _add(self, process: _Process) -> None:
        self._selector.register(process.pidfd, selectors.EVENT_READ, process.handle.worker)
        self._processes[process.handle.worker] = process

    def _adopt(self, process: WorkerProcess, *, now: Monotonic) -> WorkerHandle | None:
        pidfd = procfs.open_exactly(process.pid, process.start_ticks)
        if pidfd is None:
            return None
        handle = WorkerHandle(
            process.worker,
            process.environment["TOWLINE_POOL"],
            procfs.ref_of(process.pid, process.start_ticks),
            process.environment["TOWLINE_SPEC"],
            Monotonic(now - procfs.age_seconds(process.start_ticks)),
            is_forked=FORKED_VARIABLE in process.environment,
        )
        self._add(_Process(handle, process.pid, process.start_ticks, pidfd))
        return handle

    def _collect(self, process: _Process, *, now: Monotonic) -> Exit:
        worker = process.handle.worker
        if _is_child(process.pidfd):
            # Not collected yet, so the group's number can't be reused.
            _kill_group(process.pid)
            ended, peak = _waited_for(process.pid, process.pidfd, is_forked=process.handle.is_forked)
        else:
            self._kill_strays(worker)
            ended, peak = None, None
        self._selector.unregister(process.pidfd)
        os.close(process.pidfd)
        del self._processes[worker]
        self._rotated.discard(worker)
        code, number = _code_and_signal(ended)
        out_of_memory = self._out_of_memory(process, number)
        is_out_of_memory = out_of_memory == "yes"
        own_peak = self._peaks.pop(worker, None)
        return Exit(
            worker,
            process.handle.pool,
            process.handle.ref,
            now,
            code=code,
            signal=number,
            out_of_memory=is_out_of_memory,
            memory_limit_bytes=HostMeter().memory_limit_bytes() if is_out_of_memory else None,
            memory_peak_bytes=max(filter(None, (peak, own_peak)), default=None),
            memory_own_bytes=own_peak if process.handle.is_forked else None,
            is_forked=process.handle.is_forked,
            reason=killed_perhaps(self._oom_kills.recent) if out_of_memory == "unknown" else "",
            last_lines=self.logs.last_lines(worker, without_stack=worker in self._examined),
            stack=self.logs.fatal_stack(worker) if number in _FAULTS else self._stack(worker),
        )

    def _stack(self, worker: str) -> tuple[str, ...]:
        if worker not in self._examined:
            return ()
        self._examined.discard(worker)
        return self.logs.stack(worker)

    def _rotate_logs(self) -> None:
        """Bound the workers' output; logged once for each worker."""
        rotated = self.logs.rotate(self._processes)
        for worker in set(rotated) - self._rotated:
            log.warning(
                events.WORKER_OUTPUT_ROTATED,
                pool=self._processes[worker].handle.pool,
                worker=worker,
                kept_bytes=2 * MAX_LOG_BYTES,
                file=str(self.logs.path(worker)),
                reason="it writes much: the last 16 MiB are kept, older output is dropped; logged once for each worker",
            )
        self._rotated.update(rotated)

    def _out_of_memory(self, process: _Process, number: int | None) -> Verdict:
        """Return whether the kernel ended a worker for want of memory; unknown for a SIGKILL that it may have sent."""
        worker = process.handle.worker
        if worker in self._killed:
            self._killed.discard(worker)
            return "no"
        if number != signal.SIGKILL:
            return "no"
        return ended_by_kernel(process.pid, since_boot_seconds=procfs.seconds_of(process.start_ticks))

    def _kill_strays(self, worker: str) -> None:
        """Kill the processes of an adopted worker one by one: its process group's number may be another's by now."""
        strays = procfs.worker_processes(str(self._state_dir), self._identity)
        procfs.kill_together([process for process in strays if process.worker == worker])


def variables_of(request: SpawnRequest, withheld: Collection[str]) -> dict[str, str]:
    """Return the variables of a worker: ours without those that are `withheld`, the pool's, the request's."""
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED and name not in withheld}
    return {**ours, **request.variables, **request.environment}


def _process_of(handle: WorkerHandle) -> WorkerProcess | None:
    """Return the handle's process, whatever its environment looks like; None when it has ended."""
    stat = procfs.find(handle.ref)
    if stat is None:
        return None
    known = {"TOWLINE_WORKER": handle.worker, "TOWLINE_POOL": handle.pool, "TOWLINE_SPEC": handle.spec_digest}
    return WorkerProcess(stat, known | ({FORKED_VARIABLE: "1"} if handle.is_forked else {}))


def _is_child(pidfd: int) -> bool:
    """Return whether the process is ours to collect and not collected yet; an adopted one is not."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _waited_for(pid: int, pidfd: int, *, is_forked: bool) -> tuple[os.waitid_result | None, int | None]:
    """Collect an ended child; also return its peak memory in bytes, where that is known to be its own.

    The kernel's figure includes the time before the child's exec, when it shared our memory: a figure below our own
    peak may be ours. A forked worker was never our copy.
    """
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None, None
    _, _, used = os.wait4(pid, os.WNOHANG)
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return ended, used.ru_maxrss * 1024 if is_forked or used.ru_maxrss > ours else None


def _code_and_signal(ended: os.waitid_result | None) -> tuple[int | None, int | None]:
    if ended is None:
        return None, None
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status, None
    return None, ended.si_status


def _kill_group(leader: int) -> None:
    """Kill a worker with all that it started. All are stopped first: a handler must not see its child end and go on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGSTOP)
        os.killpg(leader, signal.SIGKILL)


def _reason(error: Exception, request: SpawnRequest) -> str:
    pool = request.pool
    what = f"can't start a worker of pool {pool.name}"
    program = request.program(sys.executable, app=APP_COMMAND)[0]
    if not isinstance(error, OSError):
        return f"{what}: {error}"
    if pool.cwd is not None and error.filename == pool.cwd:
        return f"{what}: its cwd {pool.cwd} is not a folder it may enter ({error.strerror}); fix pools.{pool.name}.cwd"
    if isinstance(error, FileNotFoundError):
        return f"{what}: no such command: {program}; give its full path, or put its folder on PATH"
    if isinstance(error, PermissionError):
        return f"{what}: {program} may not be executed ({error.strerror}); chmod +x it, or name its interpreter first"
    if error.errno == errno.ENOEXEC:
        return f"{what}: {program} is not a program; give it a #! line, or name its interpreter first"
    if error.errno in {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}:
        return f"{what}: the host has no room for another process or file ({error.strerror})"
    return f"{what}: {program}: {error.strerror}"
