"""Templates of pools: which pool has one, when it is renewed, and when it is given up.

A pool's workers are forked from its template where it has one that is ready and safe, else they are executed as
before: a template never delays a start.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.config.placeholders import names_worker
from orchestrator.config.pools import PoolSpec
from orchestrator.runtime import ApplicationReport, SpawnRequest
from orchestrator.runtimes import procfs
from orchestrator.runtimes.application_files import ImportedApplication, have_changed
from orchestrator.runtimes.template_process import LIVING, ForkedWorker, ForkFailedError, TemplateProcess, TemplateState
from orchestrator.state.directory import StateDir
from orchestrator.state.journal import WriteErrors
from orchestrator.state.private_files import is_same_folder
from orchestrator.state.templates import TemplateRecord, rounded_bytes
from queue_core.log import get_logger

log = get_logger()

FORKED_VARIABLE: Final = "TOWLINE_FORKED"
"""A forked worker has this variable, so that it is known as one after an adoption, and knows it itself."""
IDENTITY: Final = frozenset({"TOWLINE_WORKER", "TOWLINE_SPEC", "TOWLINE_CONCURRENCY"})
"""Variables that differ between the workers of one template."""
MARKS: Final = frozenset({"TOWLINE_WORKER", "TOWLINE_POOL", "TOWLINE_SPEC", "TOWLINE_STATE_DIR"})
"""Variables by which a worker is found again: a template must not have them, as it is none."""
KEPT_SECONDS: Final = 3600.0
"""How long a template is kept after its pool's last worker has ended: it costs memory, and saves the import."""
RETRY_SECONDS: Final = 60.0
"""Pause before a template is started again that has failed or ended."""
LOOK_AGAIN_SECONDS: Final = 300.0
"""Time after which an application that was not safe to fork is imported again, with the pool's next start: it may have
been mended. Meanwhile it has no template, which would only cost memory."""
IMPORT_SECONDS: Final = 600.0
"""Longest import; after it the template is given up."""
MAX_IMPORTING: Final = 2
"""Templates that import at the same time: the workers of these pools import meanwhile, too."""
MAX_DOUBTFUL: Final = 3
"""Imports in a row during which a file was written, after which the result counts: the import itself may write it."""
MAX_IDLE: Final = 16
"""Templates kept for pools without workers: each has the memory of a worker."""
MAX_FAILED_FORKS: Final = 3
"""Forks in a row that failed, after which a template is given up."""


@dataclass(slots=True)
class _PoolTemplate:
    key: str
    process: TemplateProcess
    used_at: Monotonic
    begun_at: Monotonic
    since: float
    app: str
    is_forced: bool = False
    forks: int = 0
    failed_forks: int = 0
    logged_state: str = ""
    is_reported: bool = False


class Templates:
    """The templates of one supervisor, by pool. Belongs to one thread."""

    def __init__(
        self,
        state_dir: Path,
        *,
        open_log: Callable[[str], int],
        clock: MonotonicClock | None = None,
        identity: str = "",
    ) -> None:
        """Args:
        open_log: opens the log of a name for writing.
        identity: the id of the folder `state_dir`: nothing is written into one that took its place.
        """
        self._files = StateDir(state_dir)
        self._identity = identity
        self._write_errors = WriteErrors(self._files.path / "templates.json")
        self._clock = clock or SystemMonotonicClock()
        self._open_log = open_log
        self._templates: dict[str, _PoolTemplate] = {}
        self._ending: list[TemplateProcess] = []
        self._waiting: dict[str, tuple[SpawnRequest, Mapping[str, str]]] = {}
        self._orphans: set[int] = set()
        self._without: dict[str, TemplateRecord] = {}
        self._unsafe: dict[str, tuple[str, Monotonic, Sequence[str]]] = {}
        self._written: dict[str, TemplateRecord] | None = None
        self._imported: dict[str, ImportedApplication] = {}
        self._doubtful: dict[str, int] = {}

    def pids(self) -> set[int]:
        """Return the processes of all templates that are not collected yet."""
        known = [template.process for template in self._templates.values()]
        return {process.pid for process in (*known, *self._ending) if not process.is_collected}

    def take_orphans(self) -> set[int]:
        """Return children that became ours during forks and are no workers: others must collect them."""
        taken, self._orphans = self._orphans, set()
        return taken

    def logs(self) -> list[str]:
        """Return the names of the logs that templates write to."""
        return [_log_name(pool) for pool in self._templates]

    def fork(
        self, request: SpawnRequest, environment: Mapping[str, str], *, log_descriptor: int, now: Monotonic
    ) -> ForkedWorker | None:
        """Fork a worker that waits to be let go; None where it has to be executed.

        Starts the pool's template if it has none, for the workers to come.
        """
        mode = request.pool.start
        if request.command or request.pool.celery is not None or mode == "exec":
            self._end_idle(request.pool.name)  # of earlier settings
            self._without.pop(request.pool.name, None)
            return None
        if mode == "auto" and self._is_named_in_variables(request):
            return None
        if mode == "auto" and self._was_just_unsafe(request, environment, now=now):
            return None
        template = self._template(request, environment, now=now)
        if template is None:
            return None
        template.used_at = now
        state = template.process.poll()
        self._log_state(request.pool.name, template)
        self._give_up_unsafe(request.pool.name, template, now=now)
        if state != "ready" and not (state == "unsafe" and mode == "fork"):
            return None
        try:
            known = {**environment, FORKED_VARIABLE: "1"}
            forked = template.process.fork(known, cwd=request.pool.cwd, log=log_descriptor)
        except ForkFailedError as error:
            self._fork_failed(request.pool.name, template, error)
            self._template(request, environment, now=now)  # it imports what is there now, for the next start
            return None
        finally:
            self._orphans |= template.process.orphans
            template.process.orphans.clear()
        template.failed_forks = 0
        template.forks += 1
        return forked

    def prepare(self, request: SpawnRequest, environment: Mapping[str, str], *, now: Monotonic) -> TemplateState | None:
        """Start the template of workers like this one if there is none, and return its state; never waits."""
        template = self._template(request, environment, now=now)
        return template.process.poll() if template is not None else None

    def application(
        self, request: SpawnRequest, environment: Mapping[str, str], *, since: Monotonic, now: Monotonic
    ) -> ApplicationReport | None:
        """See `Runtime.application`. A pool that does not fork has a template for as long as this import takes."""
        pool, key = request.pool, _key(request, environment)
        known = self._imported.get(pool.name)
        if known is not None and known.holds(key, since=since):
            return known.report
        template = self._templates.get(pool.name)
        if template is not None and template.is_reported:  # it imported what was there before
            self._end(pool.name)
        template = self._template(request, environment, now=now)
        if template is None or template.process.poll() == "importing":
            return None
        self._log_state(pool.name, template)
        template.is_reported = True
        process = template.process
        is_doubtful = process.state == "outdated" or have_changed(process.files)
        if is_doubtful and self._doubtful.get(pool.name, 0) < MAX_DOUBTFUL:
            self._doubtful[pool.name] = self._doubtful.get(pool.name, 0) + 1
            return None
        self._doubtful.pop(pool.name, None)
        failure = process.failure if process.state == "failed" else ""
        files = known.times_of(process.files) if known is not None else process.files
        found = ImportedApplication(key, template.begun_at, failure, files, tuple(process.schedules), process.served)
        self._imported[pool.name] = found
        self._give_up_unsafe(pool.name, template, now=now)
        if pool.start == "exec" or (pool.start == "auto" and _own_variables(pool)):
            self._end(pool.name)
        return found.report

    def _end_idle(self, pool: str) -> None:
        """End a template, unless it imports: the result is waited for."""
        template = self._templates.get(pool)
        if template is not None and template.process.poll() != "importing":
            self._end(pool)

    def _is_named_in_variables(self, request: SpawnRequest) -> bool:
        """Return whether a variable of the pool differs for each worker: an import that reads it must be its own."""
        pool = request.pool
        name = min(_own_variables(pool), default=None)
        if name is None:
            self._without.pop(pool.name, None)
        elif pool.name not in self._without:
            reason = (
                f"env.{name} has the worker's name in it, which the import may read; start: fork forks all the same"
            )
            since = round(self._clock.wall_seconds(), 1)
            self._without[pool.name] = TemplateRecord("unsafe", app=pool.app or "", since=since, hazards=(reason,))
            self._end_idle(pool.name)
            log.info(events.TEMPLATE_UNSAFE, pool=pool.name, reason=reason)
        return name is not None

    def _was_just_unsafe(self, request: SpawnRequest, environment: Mapping[str, str], *, now: Monotonic) -> bool:
        key, found_at, _ = self._unsafe.get(request.pool.name, ("", Monotonic(float("-inf")), ()))
        return key == _key(request, environment) and now - found_at < LOOK_AGAIN_SECONDS

    def _give_up_unsafe(self, pool: str, template: _PoolTemplate, *, now: Monotonic) -> None:
        """End a template that forks nothing, and keep what was found."""
        if template.process.state == "unsafe" and not template.is_forced:
            self._unsafe[pool] = template.key, now, template.process.hazards
            self._without[pool] = replace(_record_of(template), memory_bytes=0)
            self._end(pool)

    def _fork_failed(self, pool: str, template: _PoolTemplate, error: ForkFailedError) -> None:
        process = template.process
        state = process.poll()
        template.logged_state = state
        if state == "outdated":
            log.info(events.TEMPLATE_OUTDATED, pool=pool, reason=str(error))
            self._end(pool)
            return
        log.warning(events.TEMPLATE_LOST, pool=pool, reason=str(error))
        template.failed_forks += 1
        if state not in LIVING or template.failed_forks >= MAX_FAILED_FORKS:
            process.failure = process.failure or str(error)
            process.end()
            template.logged_state = process.state

    def can_fork(self, pool: PoolSpec) -> bool:
        """Return whether the pool's next worker would be forked."""
        template = self._templates.get(pool.name)
        if template is None or pool.start == "exec":
            return False
        state = template.process.poll()
        return state == "ready" or (state == "unsafe" and pool.start == "fork")

    def maintain(self, *, busy: Collection[str], now: Monotonic) -> None:
        """Give up templates that are not used any more, and collect those that ended.

        Args:
            busy: pools that have workers.
        """
        spare = self._spare(busy)
        for pool, template in list(self._templates.items()):
            template.process.poll()
            self._log_state(pool, template)
            self._give_up_unsafe(pool, template, now=now)
            if pool in busy:
                template.used_at = now
            if now - template.used_at > KEPT_SECONDS or pool in spare:
                self._end(pool)
            elif template.process.state == "importing" and now - template.begun_at > IMPORT_SECONDS:
                template.process.failure = f"its import did not end within {IMPORT_SECONDS:g} s"
                template.process.end()
                self._log_state(pool, template)
        for pool, (request, environment) in list(self._waiting.items()):
            if pool in busy:
                self._template(request, environment, now=now)
            else:
                del self._waiting[pool]
        self.collect()
        self.write()

    def _spare(self, busy: Collection[str]) -> set[str]:
        """Return the pools without workers whose templates are too many, those used longest ago."""
        idle = [
            (template.used_at, pool)
            for pool, template in self._templates.items()
            if pool not in busy and template.process.state in ("ready", "unsafe")
        ]
        return {pool for _, pool in sorted(idle, reverse=True)[MAX_IDLE:]}

    def collect(self) -> None:
        """Collect templates that have ended."""
        for template in self._templates.values():
            if template.process.state not in LIVING:
                template.process.collect()
        self._ending = [one for one in self._ending if not one.collect()]

    def close(self) -> None:
        """End all templates; their workers go on."""
        for pool in list(self._templates):
            self._end(pool)
        for process in self._ending:
            process.wait()
        self.collect()
        self._without.clear()
        self.write()

    def _template(
        self, request: SpawnRequest, environment: Mapping[str, str], *, now: Monotonic
    ) -> _PoolTemplate | None:
        """Return the pool's template for workers like this one; start it if there is none."""
        pool = request.pool.name
        key = _key(request, environment)
        known = self._templates.get(pool)
        if known is not None:
            state = known.process.poll()
            is_over = state in ("failed", "ended")
            age = request.pool.recycle.age
            is_old = age is not None and state != "importing" and now - known.begun_at >= age
            if is_old and state in LIVING:
                log.info(events.TEMPLATE_OUTDATED, pool=pool, reason=f"it is older than recycle.age ({age:g} s)")
            if known.key != key or (is_old and not is_over) or (is_over and now - known.begun_at >= RETRY_SECONDS):
                self._end(pool)
        self._without.pop(pool, None)
        if pool not in self._templates:
            if sum(each.process.poll() == "importing" for each in self._templates.values()) >= MAX_IMPORTING:
                self._waiting[pool] = request, environment
                return None
            self._waiting.pop(pool, None)
            started = self._start(request, environment)
            if started is None:
                return None
            since = round(self._clock.wall_seconds(), 1)
            self._templates[pool] = _PoolTemplate(key, started, now, now, since=since, app=request.pool.app or "")
        self._templates[pool].is_forced = request.pool.start == "fork"
        return self._templates[pool]

    def _start(self, request: SpawnRequest, environment: Mapping[str, str]) -> TemplateProcess | None:
        # Only `fork` forks workers with variables of their own; an import with such variables is else only looked at.
        own = MARKS | _own_variables(request.pool) if request.pool.start == "fork" else MARKS
        shared = {name: text for name, text in environment.items() if name not in own}
        descriptor = None
        try:
            descriptor = self._open_log(_log_name(request.pool.name))
            return TemplateProcess(shared, cwd=request.pool.cwd, log=descriptor)
        except OSError as error:
            log.warning(events.TEMPLATE_LOST, pool=request.pool.name, reason=f"it can't be started: {error.strerror}")
            return None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _end(self, pool: str) -> None:
        template = self._templates.pop(pool, None)
        if template is not None:
            template.process.end()
            self._ending.append(template.process)

    def _log_state(self, pool: str, template: _PoolTemplate) -> None:
        """Log a template's state once it is known."""
        process = template.process
        if process.state in ("importing", template.logged_state) or (
            process.state == "ended" and not process.collect()
        ):
            return
        template.logged_state = process.state
        if process.state == "ready":
            log.info(events.TEMPLATE_READY, pool=pool, seconds=round(process.import_seconds, 3))
        elif process.state == "unsafe":
            if template.is_forced or self._unsafe.get(pool, ("", 0.0, ()))[2] != process.hazards:
                reason = "; ".join(process.hazards)
                log.warning(events.TEMPLATE_UNSAFE, pool=pool, reason=reason, forks=template.is_forced)
        else:
            reason = process.failure.strip().rpartition("\n")[2] or "it exited"
            log.warning(events.TEMPLATE_LOST, pool=pool, reason=reason)

    def write(self) -> None:
        """Write the states for other commands, where they changed."""
        records = self._without | {pool: _record_of(template) for pool, template in self._templates.items()}
        if records == self._written or (self._identity and not is_same_folder(self._files.path, self._identity)):
            return
        with self._write_errors.logged():
            self._files.write_templates(records)
            self._written = records


def _record_of(template: _PoolTemplate) -> TemplateRecord:
    process = template.process
    stat = procfs.read_stat(process.pid) if process.state in LIVING else None
    return TemplateRecord(
        process.state,
        app=template.app,
        since=template.since,
        forks=template.forks,
        import_seconds=round(process.import_seconds, 3),
        memory_bytes=rounded_bytes(stat.memory_bytes) if stat is not None and stat.is_alive else 0,
        is_forced=template.is_forced,
        hazards=tuple(process.hazards),
        failure=process.failure,
    )


def _log_name(pool: str) -> str:
    """Return the name of a template's log, which `towline logs` shows among those of the pool's workers."""
    return f"{pool}.template"


def _key(request: SpawnRequest, environment: Mapping[str, str]) -> str:
    """Return a digest of what a template's workers share: variables, working directory, application."""
    shared = sorted((name, text) for name, text in environment.items() if name not in IDENTITY)
    own = _own_variables(request.pool)
    kept = [(name, request.pool.env[name] if name in own else text) for name, text in shared]
    return blake2b(json.dumps([request.pool.app, request.pool.cwd, kept]).encode(), digest_size=16).hexdigest()


def _own_variables(pool: PoolSpec) -> set[str]:
    """Return the pool's variables that have the worker's name in them."""
    return {name for name, text in pool.env.items() if names_worker(text)}
