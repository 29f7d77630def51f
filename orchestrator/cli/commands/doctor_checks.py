"""The checks of `towline doctor`: each looks at one thing and reports ok, warn or bad, with a fix."""

import glob
import os
import platform
import pwd
import resource
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.fleet import Json, concerns_in, titled
from orchestrator.cli.finding import Finding
from orchestrator.cli.store_leader import leader_of
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.figures import DRAINED, describe_pause, figures_of
from orchestrator.runtimes.procfs import worker_processes
from orchestrator.settings_file import Project, state_of
from orchestrator.sources.pull_queue import as_reported, tags_of, unserved_in
from orchestrator.state.directory import StateDir
from orchestrator.state.private_files import known_identity
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError
from queue_core.cli.settings_file import store_url
from queue_core.cli.target import TargetOptions, opened
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.client.http.probe import is_listening
from queue_core.config.pool_tags import PoolTags
from queue_core.config.store_urls import is_shared, masked
from queue_core.config.units import format_bytes
from queue_core.errors import QueueError, StoreUnsafeError
from queue_core.process.own_addresses import is_of_this_machine
from queue_core.process.wording import clock_step_words, counted
from queue_core.stores import open_store, sqlite_path
from queue_core.stores.sqlite.driver import WAL_RESET_FIXED, best_driver
from queue_core.stores.sqlite.file import real_path, unused_bytes_in
from queue_core.stores.sqlite.session import steps_in
from queue_core.stores.sqlite.wal import held_snapshot
from queue_core.task import ANY
from queue_core.unit.service import QueueService
from queue_core.worker.settings import DEFAULT_URL

MIN_FREE_BYTES: Final = 256 << 20
LOW_FREE_BYTES: Final = 2 << 30
MANY_UNUSED_BYTES: Final = 16 << 20
SLOW_SYNC_SECONDS: Final = 0.02
UNREAL_SYNC_SECONDS: Final = 0.000_02
SYNCS: Final = 20
LOOKS: Final = 20
SLOW_LOOK_SECONDS: Final = 0.02
HELD_SECONDS: Final = 30.0
"""A snapshot of PostgreSQL that is held for so long is told."""
MIN_FILES: Final = 1024
_NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph"})
_EARLIEST_CLOCK: Final = 1_735_689_600.0  # 2025: older than this program
_STUCK_SECONDS: Final = 30.0
_SHOWN_PIDS: Final = 5
_PHASES: Final = {
    "standby": ("; another supervisor leads its store, or none is known while the store is silent", ""),
    "stopping": (
        "; it has given up its lead, and ends with its workers",
        "`towline workers` shows what they hold, and until when; a second SIGTERM ends them now",
    ),
}
"""The meaning of a phase, and the remedy where it does not last."""
_LATELY_SECONDS: Final = 3600.0
_DEATHS: Final = 1_000
"""Certificates that are read, the newest first."""


def findings(project: Project | None, *, file: Path | None = None) -> Iterator[Finding]:
    """Yield the results of all checks, in order; checks of settings, those of `file`, run only when there are some."""
    yield _python()
    yield _driver()
    folder, file_store = Path.cwd(), None
    if project is not None and project.store.startswith("sqlite:"):
        store = file_store = real_path(sqlite_path(project.store))
        folder = store.parent
        yield from _store_file(store)
    elif project is not None and is_shared(project.store):
        yield _shared_store(project)
    if folder.is_dir():
        yield _disk(folder)
        yield _file_system(folder)
        yield _sync(folder)
    yield from _limits()
    yield _clock(folder, file_store)
    yield _server(project)
    if project is not None:
        yield from _queues(project, file)
        yield from _drained(project)
        yield from _supervisor(project, file)


def _python() -> Finding:
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.release()}"
    )
    if platform.system() != "Linux":
        return Finding(
            "python", "warn", found, "the supervisor needs Linux (pidfd); queue and workers run elsewhere too"
        )
    return Finding("python", "ok", found)


def _driver() -> Finding:
    driver = best_driver()
    if driver.name.startswith("apsw"):
        return Finding("sqlite", "ok", driver.name)
    fixed = ".".join(map(str, WAL_RESET_FIXED))
    fix = f"`pip install apsw`: an SQLite before {fixed} can, rarely, damage a file that several processes write"
    return Finding("sqlite", "warn", driver.name, fix)


def _store_file(store: Path) -> Iterator[Finding]:
    folder = store.parent
    if not folder.is_dir():
        yield Finding("store", "bad", f"{folder} does not exist", "make the folder, or change `store:`")
        return
    if not os.access(folder, os.W_OK) or (store.exists() and not os.access(store, os.W_OK)):
        yield Finding("store", "bad", f"{store} can't be written by this user", "change its owner or mode, or `store:`")
        return
    log = store.with_name(f"{store.name}-wal")
    if not store.exists():
        if log.exists() and log.stat().st_size:
            fix = "put the file back; a server that has it open saves what it holds with `towline backup FILE`"
            yield Finding("store", "bad", f"{store} is missing, but its log {log.name} is there", fix)
        else:
            yield Finding("store", "ok", f"{store} will be made")
        return
    size = format_bytes(store.stat().st_size)
    names = store.stat().st_nlink
    beside = [path for path in store.parent.glob(f"{glob.escape(store.name)}*") if path.is_file()]
    wide = sorted(path.name for path in beside if path.stat().st_mode & 0o007)
    if names > 1:
        fix = f"find the others with `find / -xdev -samefile {store}`, and remove all but one"
        yield Finding("store", "bad", f"{store} has {names} names (hard links): it can't be opened", fix)
    elif wide:
        message = f"{', '.join(wide)} in {store.parent} ({size}) can be read or written by every user of this machine"
        yield Finding("store", "warn", message, f"if payloads are private: chmod o-rwx {store}*")
    else:
        yield _unused(store, size)
    held = held_snapshot(log, store.with_name(f"{store.name}-shm"))
    if held is not None:
        yield Finding("store", "warn", held.sentence, held.remedy)


def _unused(store: Path, size: str) -> Finding:
    """Report the size of the file, and of the part that deleted tasks left."""
    try:
        unused = unused_bytes_in(best_driver(), store)
    except QueueError as error:
        return Finding("store", "bad", str(error), "name another file in `store:`, or restore a backup")
    if unused < MANY_UNUSED_BYTES:
        return Finding("store", "ok", f"{store} ({size})")
    free = shutil.disk_usage(store.parent).free
    found = f"{store} ({size}, {format_bytes(unused)} of it free for new tasks)"
    if free >= LOW_FREE_BYTES:
        return Finding("store", "ok", found)
    return Finding("store", "warn", found, "`towline vacuum` returns that to the disk, which is nearly full")


def _shared_store(project: Project) -> Finding:
    """Open a store across a network; check its answer times and its clock against ours."""
    settings, place = project.queue_file, masked(project.store)
    try:
        store = open_store(store_url(settings, project.directory), durability=settings.durability)
    except CommandError as error:
        return Finding("store", "bad", "; ".join(error.lines), error.fix)
    except StoreUnsafeError as error:
        return Finding("store", "bad", str(error), "correct the engine's settings")
    except QueueError as error:
        return Finding("store", "bad", f"{place}: {error}", "start it, or correct `store:`")
    clock = SystemMonotonicClock()
    took = []
    try:
        for _ in range(LOOKS):
            began = clock.monotonic()
            QueueService(store).read(lambda turn: turn.transaction.queues())
            took.append(clock.monotonic() - began)
        ahead = clock.wall_seconds() - store.clock.now() / 1_000_000
        store.signals.subscribe("doctor", ANY).close()
        trouble = store.signals.trouble
        held = store.held_snapshot(min_seconds=HELD_SECONDS)
    except QueueError as error:
        return Finding("store", "bad", f"{place}: {error}", "look at the engine's log")
    finally:
        store.close()
    median = statistics.median(took)
    message = f"{store.url} answers in {median * 1000:.2f} ms, {store.durability}"
    if abs(ahead) >= 1.0:
        message += (
            f"; this host's clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}, which changes nothing"
        )
    if median > SLOW_LOOK_SECONDS:
        return Finding("store", "warn", message, "every lease waits for it: run the server closer to the store")
    if trouble:
        return Finding("store", "warn", message, trouble)
    if held is not None:
        return Finding("store", "warn", held.sentence, held.remedy)
    return Finding("store", "ok", message)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    message = f"{free / (1 << 30):.1f} GiB free for {folder}"
    if free < MIN_FREE_BYTES:
        return Finding(
            "disk", "bad", message, "make room: a full disk refuses adds; tasks are still leased and deleted"
        )
    return Finding("disk", "warn" if free < LOW_FREE_BYTES else "ok", message)


def _file_system(folder: Path) -> Finding:
    kind = _kind_of_file_system(folder.resolve())
    if kind in _NETWORK_FILE_SYSTEMS:
        fix = "keep the store on a local disk: locks and syncs over a network can't be trusted"
        return Finding("file system", "bad", kind, fix)
    if kind in ("tmpfs", "ramfs"):
        return Finding("file system", "warn", f"{kind}: gone after a reboot", "keep the store on a disk")
    return Finding("file system", "ok", kind or "unknown")


def _kind_of_file_system(folder: Path) -> str:
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    best = ("", "")
    for line in mounts:
        _, place, kind, *_ = line.split()
        if folder.is_relative_to(place) and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1]


def _sync(folder: Path) -> Finding:
    """Time a 4 KiB write with fdatasync: the price of a durable change."""
    clock = SystemMonotonicClock()
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(SYNCS):
                began = clock.monotonic()
                os.write(file.fileno(), b"\0" * 4096)
                os.fdatasync(file.fileno())
                took.append(clock.monotonic() - began)
    except OSError as error:
        return Finding("sync", "bad", f"can't write in {folder}: {error.strerror}", "free space, or change its mode")
    median = statistics.median(took)
    message = f"{median * 1000:.2f} ms to make 4 KiB durable in {folder}"
    if median > SLOW_SYNC_SECONDS:
        return Finding(
            "sync", "warn", message, "changes wait for it: add in batches, or use a disk with a fast write cache"
        )
    if median < UNREAL_SYNC_SECONDS:
        return Finding(
            "sync", "warn", message, "suspiciously fast: this disk may lose acknowledged changes in a power cut"
        )
    return Finding("sync", "ok", message)


def _limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    message = f"{counted(files, 'open file')}"
    if files < MIN_FILES:
        yield Finding("limits", "warn", message, f"`ulimit -n {MIN_FILES * 4}`: each waiting worker takes one")
    else:
        yield Finding("limits", "ok", message)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes not in (-1, resource.RLIM_INFINITY) and processes < 256:
        yield Finding(
            "limits", "warn", f"{counted(processes, 'process', 'processes')}", "`ulimit -u 1024`: each worker is one"
        )


def _clock(folder: Path, store: Path | None) -> Finding:
    now = SystemMonotonicClock().wall_seconds()
    newest = max((path.stat().st_mtime for path in folder.glob("*.db*") if path.is_file()), default=0.0)
    if now < _EARLIEST_CLOCK:
        return Finding("clock", "bad", "before 2025", "set the clock: leases and etas depend on it")
    if newest > now + 60:
        message = f"{newest - now:.0f} s behind the store's newest change"
        return Finding("clock", "bad", message, "set the clock: tasks seem to be in the future, and wait")
    return _stepped_clock(store) or Finding("clock", "ok", "not before the store's newest change")


def _stepped_clock(store: Path | None) -> Finding | None:
    """Return the step of the wall clock that the store's time has not made up for yet."""
    if store is None or not store.is_file():
        return None
    try:
        steps = steps_in(best_driver(), store)
    except QueueError:  # told by the checks of the store
        return None
    if abs(steps.lag_seconds) < 1.0:
        return None
    fix = "no lease is affected; keep the clock with a time server that runs all the time (chrony)"
    return Finding("clock", "warn", clock_step_words(steps), fix)


def _server(project: Project | None) -> Finding:
    url = project.queue_file.server.url(project.directory) if project else DEFAULT_URL
    if not is_listening(url):
        return Finding("server", "warn", f"nothing answers at {url}", "`towline up` starts it")
    token = bearer_token() if is_of_this_machine(url) else None
    caller = HttpCaller(url, token=token, retries=Retries(timeouts=1), timeout_seconds=5.0)
    try:
        caller.get("/readyz")
    except QueueError as error:
        return Finding("server", "bad", f"{url}: {error}", "look at its log; `towline serve` says why it can't start")
    finally:
        caller.close()
    return Finding("server", "ok", f"{url} takes changes")


def _supervisor(project: Project, file: Path | None) -> Iterator[Finding]:
    files = state_of(project)
    yield from _earlier_folder(files)
    snapshot = files.read_snapshot()
    try:
        is_alive = files.is_supervised()
    except OSError as error:
        message = f"its state directory {files.path} can't be read by this user: {error.strerror}"
        fix = f"use the user of its supervisor{_owner(files.path)}, or a supervisor.state_dir of your own"
        yield Finding("supervisor", "bad", message, fix)
        return
    if not is_alive:
        leader = leader_of(url=None, store=None, token_file=None, file=file)
        if leader is not None:
            known = leader.supervisor
            found = f"the one that leads this store runs {known.place}: {counted(len(known.pools), 'pool')}"
            yield Finding("supervisor", "ok", found)
            return
        message = "none is alive" if snapshot else "none has run here"
        yield Finding("supervisor", "warn" if project.pools else "ok", message, "`towline up` starts it")
        return
    shown_at = (snapshot or {}).get("shown_at")
    age = SystemMonotonicClock().wall_seconds() - shown_at if isinstance(shown_at, int | float) else 0.0
    if age > _STUCK_SECONDS:
        yield Finding("supervisor", "bad", f"alive, but silent for {age:.0f} s", "look at its log; restart it")
        return
    workers = (snapshot or {}).get("workers")
    count = len(workers) if isinstance(workers, list) else 0
    phase = (snapshot or {}).get("phase")
    message, fix = _PHASES.get(str(phase), ("", ""))
    found = f"alive ({phase}), {counted(count, 'worker')}{message}"
    yield Finding("supervisor", "warn" if fix else "ok", found, fix)
    yield from _pools(snapshot or {})
    yield from worker_findings(snapshot or {}, files)
    yield from _starts(project, files)


def _owner(folder: Path) -> str:
    """Return the owner of a folder in brackets, by name or number; "" if that is not known."""
    try:
        user = folder.stat().st_uid
    except OSError:
        return ""
    try:
        return f" ({pwd.getpwuid(user).pw_name})"
    except KeyError:
        return f" ({user})"


def _earlier_folder(files: StateDir) -> Iterator[Finding]:
    """Yield the workers of a supervisor whose folder was removed and made anew while it ran."""
    try:
        identity = known_identity(files.path)
    except OSError:
        return
    ours = {process.pid for process in worker_processes(str(files.path), identity)}
    others = [one for one in worker_processes(str(files.path)) if one.leads and one.pid not in ours]
    if others:
        pids = ", ".join(str(one.pid) for one in others[:_SHOWN_PIDS]) + (", ..." if len(others) > _SHOWN_PIDS else "")
        run = "runs" if len(others) == 1 else "run"
        message = f"{counted(len(others), 'worker')} (pid {pids}) of an earlier folder {files.path} still {run}"
        fix = "they lease from the store of that time; end their supervisor, or wait: without one they exit"
        yield Finding("supervisor", "warn", message, fix)


def _drained(project: Project) -> Iterator[Finding]:
    if state_of(project).is_drained():
        yield Finding("supervisor", "warn", DRAINED, "`towline undrain` ends it, when the maintenance is over")


def _queues(project: Project, file: Path | None) -> Iterator[Finding]:
    """Yield the queues that are paused, and tags of waiting tasks that no pool works on; none where nothing answers."""
    where: TargetOptions = {"url": None, "store": None, "token_file": None, "file": file}
    by_queue: dict[str, list[PoolTags]] = {}
    for pool in project.pools.values():
        for queue in pool.queues:
            by_queue.setdefault(queue, []).append(PoolTags(pool.name, queue, tags_of(pool)))
    looked = wrong = 0
    others: list[str] = []
    try:
        with opened(makes_queues=False, **where) as (queues, _):
            with suppress(QueueError):  # an older server
                others = [one.worker for one in queues.present_workers() if not one.pool]
            there = {spec.name: spec for spec in queues.queues()}
            for queue, pools in by_queue.items():
                if queue not in there:
                    continue
                looked += 1
                if there[queue].paused:
                    names = ", ".join(pool.pool for pool in pools)
                    fix = f"`towline resume {queue}`; it is the queue of {names}"
                    wrong += 1
                    yield Finding("queues", "warn", describe_pause(queue), fix)
                for one in unserved_in(queues, as_reported(queues, pools)):
                    fix = f"add a handler for the tag, or change it: `towline search {queue} --tag TAG --retag OTHER`"
                    wrong += 1
                    yield Finding("queues", "warn", f"{queue}: {one.sentence}", fix)
    except CommandError:
        return  # the checks of the store and of the server say why
    if others:
        names = ", ".join(others[:_SHOWN_PIDS]) + (", ..." if len(others) > _SHOWN_PIDS else "")
        yield Finding("queues", "ok", f"{counted(len(others), 'unsupervised worker')}: {names}")
    if looked and not wrong:
        found = f"{counted(looked, 'queue')}: none is paused, and a pool works on the tag of every task that waits"
        yield Finding("queues", "ok", found)


def _pools(snapshot: Json) -> Iterator[Finding]:
    """Yield the problems the supervisor reports for its pools; a pool that starts no worker is bad, others warn."""
    concerns = concerns_in(snapshot)
    for concern in concerns:
        fix = f"`towline why {concern['pool']}` explains its size"
        is_bad = any(kind in str(concern["kinds"]) for kind in ("no_starts", "misconfigured"))
        if is_bad:
            fix += "; `towline why-died` explains how its workers ended"
        yield Finding("pools", "bad" if is_bad else "warn", f"{concern['pool']}: {titled(concern)}", fix)
    pools = figures_of(snapshot, now_seconds=0.0).pools
    for pool in pools:
        for state in pool.states:
            if state != describe_pause(pool.queue):  # said with its queue
                yield Finding("pools", "warn", f"{pool.pool}: {state}", f"`towline why {pool.pool}` explains its size")
    if not concerns and pools:
        yield Finding("pools", "ok", "none is late, at its max, or without starts")


def worker_findings(snapshot: Json, files: StateDir) -> Iterator[Finding]:
    """Yield the workers that hang now, and how many were ended by others lately by the removal of their containers."""
    for worker in figures_of(snapshot, now_seconds=0.0).workers:
        if worker.state == "unresponsive":
            found = f"{worker.pool}: {worker.worker} is not responding: {'; '.join(worker.notes)}"
            fix = "it does not count, and is replaced; `towline why-died` explains it once it has ended"
            yield Finding("workers", "warn", found, fix)
    since = SystemMonotonicClock().wall_seconds() - _LATELY_SECONDS
    removed = [
        death
        for death in files.read_deaths(limit=_DEATHS)
        if death.get("cause") == Cause.REMOVED and _death_time(death) > since
    ]
    if removed:
        were = "container of a worker was" if len(removed) == 1 else "containers of workers were"
        found = f"{len(removed):,} {were} removed by somebody else within an hour, last {removed[0].get('worker')}"
        fix = "find out who does: `docker events --filter event=destroy`; `docker stop` lets a worker finish"
        yield Finding("workers", "warn", found, fix)


def _death_time(death: Json) -> float:
    at = death.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def _starts(project: Project, files: StateDir) -> Iterator[Finding]:
    """Yield which pools fork their workers, and why others don't that could."""
    templates = {name: one for name, one in files.read_templates().items() if name in project.pools}
    for name, template in templates.items():
        found = f"{name}: {template.sentence}"
        if template.state == "failed":
            yield Finding(
                "start",
                "bad",
                found,
                f"fix it: `towline check` says whether it is fixed; `towline logs {name}` has what it wrote",
            )
        elif template.state == "unsafe" and template.is_forced:
            yield Finding("start", "warn", found, f"fix it as the message says, or leave pools.{name}.start out")
        elif template.state == "unsafe":
            fix = f"fix it as the message says and starts take milliseconds; or set pools.{name}.start: exec"
            yield Finding("start", "warn", found, fix)
        elif template.reason:
            yield Finding("start", "warn", found, f"`towline logs {name}` has what the template wrote")
    if forking := [name for name, template in templates.items() if template.state == "ready"]:
        yield Finding("start", "ok", f"workers are forked: {', '.join(forking)}")
