"""Read a worker's process from /proc: identity, usage, environment; and signal exactly that process.

The watchdog process imports this too and must stay small, hence no dataclasses and no typing (2 MB) here.
"""

import os
import signal
import time

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OURS = b"TOWLINE_"
# Only a process with all of these was started by a supervisor (ADR 1).
_MARKS = ("TOWLINE_WORKER", "TOWLINE_POOL", "TOWLINE_SPEC", "TOWLINE_STATE_DIR")

_KERNEL_THREAD = 0x0020_0000
_YOUNG_SECONDS = 1.0
_ATTEMPTS = 20  # a millisecond apart


class ProcessStat:
    """A process at one instant. `pid` and `start_ticks` together identify it until the host reboots."""

    __slots__ = (
        "cpu_seconds",
        "ended_cpu_seconds",
        "is_kernel_thread",
        "memory_bytes",
        "name",
        "parent",
        "pid",
        "session",
        "start_ticks",
        "state",
    )

    def __init__(self, pid: int, name: str, fields: list[str]) -> None:
        """`fields` are those of /proc/PID/stat from the third, the state, on; see proc_pid_stat(5)."""
        self.pid = pid
        self.name = name
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.is_kernel_thread = bool(int(fields[6]) & _KERNEL_THREAD)
        self.cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
        self.ended_cpu_seconds = (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND  # of children, collected
        self.start_ticks = int(fields[19])
        self.memory_bytes = int(fields[21]) * _PAGE_BYTES

    @property
    def is_alive(self) -> bool:
        """False for a zombie, which has ended and waits to be collected."""
        return self.state not in "ZX"


class WorkerProcess:
    """A process with a worker's variables in its environment; `leads` if it is the worker and not its child."""

    __slots__ = ("environment", "leads", "pid", "start_ticks")

    def __init__(self, stat: ProcessStat, environment: dict[str, str]) -> None:
        self.pid = stat.pid
        self.start_ticks = stat.start_ticks
        self.leads = stat.session == stat.pid
        self.environment = environment

    @property
    def worker(self) -> str:
        """The worker's name."""
        return self.environment["TOWLINE_WORKER"]


def read_stat(pid: int) -> ProcessStat | None:
    """Return the process as it is now, or None when there is none."""
    try:
        # pathlib would double the watchdog's imports; the name may be cut in the middle of a character.
        with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may contain anything.
    end = text.rindex(")")
    return ProcessStat(pid, text[text.index("(") + 1 : end], text[end + 2 :].split())


def private_bytes(pid: int) -> int | None:
    """Return the resident memory of a process that no other one shares; None where that can't be read.

    The kernel looks at every page for it: 0.2 ms for a small process, 27 ms for 1 GiB.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:  # it has ended, or is not ours to read
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def effort(stat: ProcessStat) -> tuple[float, float]:
    """Return what a process and all its descendants, ended or not, have used so far.

    First their CPU seconds; then the seconds that the threads alive now were ready to run without a core, in total: 0
    where the kernel does not count them.
    """
    cpu_seconds, waited_nanoseconds, family = 0.0, 0, [stat]
    for member in family:  # grows while we iterate
        cpu_seconds += member.cpu_seconds + member.ended_cpu_seconds
        task = f"/proc/{member.pid}/task"
        for thread in _entries(task):
            waited_nanoseconds += sum(map(int, _words(f"{task}/{thread}/schedstat")[1:2]))
            children = [read_stat(int(pid)) for pid in _words(f"{task}/{thread}/children")]
            family += [child for child in children if child is not None]
    return cpu_seconds, waited_nanoseconds / 1e9


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, ProcessLookupError):
        return []


def _words(path: str) -> list[str]:
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def standstill(stat: ProcessStat) -> str:
    """Return why a process does not run at all, one of `STANDSTILLS` or a debugger; "" for one that may run."""
    if stat.state == "T":
        return "stopped (SIGSTOP)"
    if stat.state == "t":
        return "stopped by a debugger"
    if _is_frozen(stat.pid):
        return "its control group is frozen"
    return ""


def _is_frozen(pid: int) -> bool:
    with open(f"/proc/{pid}/cgroup") as file:  # noqa: PTH123
        groups = file.read().splitlines()
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "freezer"):
            name = f"{path.rstrip('/')}/cgroup.events" if controllers == "" else f"/freezer{path}/freezer.state"
            try:
                with open(f"/sys/fs/cgroup{name}") as file:  # noqa: PTH123
                    words = file.read().split()
            except OSError:
                continue
            if "FROZEN" in words or words[-2:] == ["frozen", "1"]:
                return True
    return False


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def children_of(parent: int) -> list[int]:
    """Return a process's children, ended or not."""
    return [stat.pid for stat in _stats() if stat.parent == parent]


def named_child_of(parent: int, name: str) -> ProcessStat | None:
    """Return a living child of a process's first thread that has this name in the kernel."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as file:  # noqa: PTH123
            children = [read_stat(int(pid)) for pid in file.read().split()]
    except OSError:  # the process has ended, or the kernel lacks the file
        return None
    return next((child for child in children if child is not None and child.is_alive and child.name == name), None)


def ended_children_of(parent: int) -> list[int]:
    """Return a process's children that have ended and wait to be collected."""
    return [stat.pid for stat in _stats() if stat.parent == parent and not stat.is_alive]


def _stats() -> list[ProcessStat]:
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208
    return [stat for pid in pids if (stat := read_stat(pid)) is not None]


def boot() -> str:
    """Return an id of this boot of the host, as pids and start ticks are reused after it; empty where unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read(8)
    except OSError:
        return ""


def ref_of(pid: int, start_ticks: int) -> str:
    """Return a reference to one process that is never reused."""
    return f"pid:{pid}@{start_ticks}/{boot()}"


def find(ref: str) -> ProcessStat | None:
    """Return the process with this `ref_of`; None when it has ended, or `ref` names no process."""
    digits, _, rest = ref.removeprefix("pid:").partition("@")
    stat = read_stat(int(digits)) if digits.isdecimal() else None
    if stat is None or not stat.is_alive or rest != f"{stat.start_ticks}/{boot()}":
        return None
    return stat


def environment_of(pid: int) -> dict[str, str] | None:
    """Return a process's TOWLINE_ variables; empty when it is gone or not ours to read.

    None when it has no environment at all, as for an instant during an exec.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return {}
    if not text:
        return None
    found = {}
    for entry in text.split(b"\0"):
        if entry.startswith(_OURS):
            name, _, value = entry.partition(b"=")
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def worker_processes(state_dir: str, identity: str = "") -> list[WorkerProcess]:
    """Return all living processes of the workers, and of their children, of the supervisor with this state directory.

    With an `identity`, those of an earlier folder of the same path are left out: another supervisor started them, and
    may still live. A worker without one is of an earlier version.
    Takes up to 20 ms when a process has just been started and has no environment yet: it may be a worker.
    """
    found: list[WorkerProcess] = []
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(0.001)
        pids = _scan(pids, state_dir, identity, found)
        if not pids:
            break
    return found


def _scan(pids: list[int], state_dir: str, identity: str, found: list[WorkerProcess]) -> list[int]:
    """Add the workers among these processes to `found`; return the processes that can't be classified yet."""
    unclassified = []
    for pid in pids:
        environment = environment_of(pid)
        if environment is None:
            stat = read_stat(pid)
            if stat is not None and stat.is_alive and not stat.is_kernel_thread and _is_young(stat):
                unclassified.append(pid)
        elif _is_of(environment, state_dir, identity) and all(mark in environment for mark in _MARKS):
            stat = read_stat(pid)
            if stat is not None and stat.is_alive:
                found.append(WorkerProcess(stat, environment))
    return unclassified


def _is_of(environment: dict[str, str], state_dir: str, identity: str) -> bool:
    if environment.get("TOWLINE_STATE_DIR") != state_dir:
        return False
    return not identity or environment.get("TOWLINE_STATE_ID", identity) == identity


def _is_young(stat: ProcessStat) -> bool:
    return age_seconds(stat.start_ticks) < _YOUNG_SECONDS


def open_exactly(pid: int, start_ticks: int) -> int | None:
    """Open a pidfd of exactly this process; None when it is gone, even if its pid is in use again."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # The pidfd pins the pid's current process, so the start time read next is that process's.
    stat = read_stat(pid)
    if stat is None or stat.start_ticks != start_ticks:
        os.close(pidfd)
        return None
    return pidfd


def send_signal(pidfd: int, number: int) -> bool:
    """Signal the process of a pidfd; False when it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def signal_exactly(process: WorkerProcess, number: int) -> bool:
    """Signal exactly this process; False when it is gone."""
    pidfd = open_exactly(process.pid, process.start_ticks)
    if pidfd is None:
        return False
    try:
        return send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def kill_together(processes: list[WorkerProcess]) -> None:
    """Kill exactly these processes. All are stopped before one is killed: none sees another one end and goes on."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            signal_exactly(process, number)


def age_seconds(start_ticks: int) -> float:
    """Return how long ago a process with these start ticks was started, 0 or more."""
    with open("/proc/uptime") as file:  # noqa: PTH123
        uptime_seconds = float(file.read().split()[0])
    return max(0.0, uptime_seconds - seconds_of(start_ticks))


def seconds_of(start_ticks: int) -> float:
    """Return how long after the boot a process with these start ticks was started."""
    return start_ticks / _TICKS_PER_SECOND


def out_of_memory_kills() -> int:
    """Return how many processes of our control group the kernel has killed for lack of memory; 0 where unknown."""
    try:
        with open("/proc/self/cgroup") as file:  # noqa: PTH123
            groups = file.read().splitlines()
    except OSError:
        return 0
    kills = 0
    for line in groups:
        _, controllers, path = line.split(":", 2)
        path = path.rstrip("/")
        if controllers == "":
            kills += _counted(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            kills += _counted(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return kills


def _counted(path: str) -> int:
    try:
        with open(path) as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
