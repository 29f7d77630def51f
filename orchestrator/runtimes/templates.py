"""Templates of pools: which pool has one, when it is renewed, and when it is given up.

A pool's workers are forked from its template where it has one that is ready and safe, else they are executed as
before: a template never delays a start.
"""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.config.placeholders import names_worker
from orchestrator.config.pools import PoolSpec
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.template_process import LIVING, ForkedWorker, ForkFailedError, TemplateProcess, TemplateState

log = structlog.get_logger()

IDENTITY: Final = frozenset({"TOWLINE_WORKER", "TOWLINE_SPEC"})
"""Variables that differ between the workers of one template."""
MARKS: Final = frozenset({"TOWLINE_WORKER", "TOWLINE_POOL", "TOWLINE_SPEC", "TOWLINE_STATE_DIR"})
"""Variables by which a worker is found again: a template must not have them, as it is none."""
KEPT_SECONDS: Final = 3600.0
"""How long a template is kept after its pool's last worker has ended: it costs memory, and saves the import."""
RETRY_SECONDS: Final = 60.0
"""Pause before a template is started again that has failed or ended."""
IMPORT_SECONDS: Final = 600.0
"""Longest import; after it the template is given up."""
MAX_IMPORTING: Final = 2
"""Templates that import at the same time: the workers of these pools import meanwhile, too."""
MAX_FAILED_FORKS: Final = 3
"""Forks in a row that failed, after which a template is given up."""


@dataclass(slots=True)
class _PoolTemplate:
    key: str
    process: TemplateProcess
    used_at: Monotonic
    begun_at: Monotonic
    failed_forks: int = 0
    told: str = ""


class Templates:
    """The templates of one supervisor, by pool. Belongs to one thread."""

    def __init__(self, state_dir: Path, *, open_log: Callable[[str], int]) -> None:
        """`open_log` opens the log of a name for writing."""
        self._state_file = state_dir / "templates.json"
        self._open_log = open_log
        self._templates: dict[str, _PoolTemplate] = {}
        self._ending: list[TemplateProcess] = []
        self._waiting: dict[str, tuple[SpawnRequest, Mapping[str, str]]] = {}
        self._orphans: set[int] = set()
        self._told_why_not: set[str] = set()
        self._written = ""

    def pids(self) -> set[int]:
        """Return the processes of all templates that are not collected yet."""
        known = [template.process for template in self._templates.values()]
        return {process.pid for process in (*known, *self._ending) if not process.is_collected}

    def take_orphans(self) -> set[int]:
        """Return children that became ours during forks and are no workers: others must collect them."""
        taken, self._orphans = self._orphans, set()
        return taken

    def fork(
        self, request: SpawnRequest, environment: Mapping[str, str], *, log_descriptor: int, now: Monotonic
    ) -> ForkedWorker | None:
        """Fork a worker that waits to be let go; None where it has to be executed.

        Starts the pool's template if it has none, for the workers to come.
        """
        mode = request.pool.start
        if request.command or mode == "exec" or (mode == "auto" and self._is_named_in_variables(request)):
            return None
        template = self._template(request, environment, now=now)
        if template is None:
            return None
        template.used_at = now
        state = template.process.poll()
        self._tell(request.pool.name, template)
        if state != "ready" and not (state == "unsafe" and mode == "fork"):
            return None
        try:
            forked = template.process.fork(environment, cwd=request.pool.cwd, log=log_descriptor)
        except ForkFailedError as error:
            self._fork_failed(request.pool.name, template, error)
            self._template(request, environment, now=now)  # it imports what is there now, for the next start
            return None
        finally:
            self._orphans |= template.process.orphans
            template.process.orphans.clear()
        template.failed_forks = 0
        return forked

    def prepare(self, request: SpawnRequest, environment: Mapping[str, str], *, now: Monotonic) -> TemplateState | None:
        """Start the template of workers like this one if there is none, and return its state; never waits."""
        template = self._template(request, environment, now=now)
        return template.process.poll() if template is not None else None

    def _is_named_in_variables(self, request: SpawnRequest) -> bool:
        """Return whether a variable of the pool differs for each worker: an import that reads it must be its own."""
        pool = request.pool
        name = min(_own_variables(pool), default=None)
        if name is not None and pool.name not in self._told_why_not:
            self._told_why_not.add(pool.name)
            reason = f"env.{name} has the worker's name in it, which the import may read; `start: fork` forks all the same"
            log.info(events.TEMPLATE_UNSAFE, pool=pool.name, reason=reason)
        return name is not None

    def _fork_failed(self, pool: str, template: _PoolTemplate, error: ForkFailedError) -> None:
        process = template.process
        state = process.poll()
        template.told = state
        if state == "outdated":
            log.info(events.TEMPLATE_OUTDATED, pool=pool, reason=str(error))
            self._end(pool)
            return
        log.warning(events.TEMPLATE_LOST, pool=pool, reason=str(error))
        template.failed_forks += 1
        if state not in LIVING or template.failed_forks >= MAX_FAILED_FORKS:
            process.failure = process.failure or str(error)
            process.end()
            template.told = process.state

    def upkeep(self, *, busy: Collection[str], now: Monotonic) -> None:
        """Give up templates that are not used any more, and collect those that ended.

        Args:
            busy: pools that have workers.
        """
        for pool, template in list(self._templates.items()):
            template.process.poll()
            self._tell(pool, template)
            if pool in busy:
                template.used_at = now
            if now - template.used_at > KEPT_SECONDS:
                self._end(pool)
            elif template.process.state == "importing" and now - template.begun_at > IMPORT_SECONDS:
                template.process.failure = f"its import did not end within {IMPORT_SECONDS:g} s"
                template.process.end()
                self._tell(pool, template)
        for pool, (request, environment) in list(self._waiting.items()):
            if pool in busy:
                self._template(request, environment, now=now)
            else:
                del self._waiting[pool]
        self.collect()
        self._write()

    def collect(self) -> None:
        """Collect templates that were ended."""
        self._ending = [one for one in self._ending if not one.collect()]

    def close(self) -> None:
        """End all templates; their workers go on."""
        for pool in list(self._templates):
            self._end(pool)
        for process in self._ending:
            process.wait()
        self.collect()

    def _template(
        self, request: SpawnRequest, environment: Mapping[str, str], *, now: Monotonic
    ) -> _PoolTemplate | None:
        """Return the pool's template for workers like this one; start it if there is none."""
        pool = request.pool.name
        key = _key(request, environment)
        known = self._templates.get(pool)
        if known is not None:
            is_over = known.process.poll() in ("failed", "ended")
            if known.key != key or (is_over and now - known.begun_at >= RETRY_SECONDS):
                self._end(pool)
        if pool not in self._templates:
            if sum(each.process.poll() == "importing" for each in self._templates.values()) >= MAX_IMPORTING:
                self._waiting[pool] = request, environment
                return None
            self._waiting.pop(pool, None)
            started = self._start(request, environment)
            if started is None:
                return None
            self._templates[pool] = _PoolTemplate(key, started, now, now)
        return self._templates[pool]

    def _start(self, request: SpawnRequest, environment: Mapping[str, str]) -> TemplateProcess | None:
        own = MARKS | _own_variables(request.pool)
        shared = {name: text for name, text in environment.items() if name not in own}
        descriptor = None
        try:
            descriptor = self._open_log(f"{request.pool.name}.template")
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

    def _tell(self, pool: str, template: _PoolTemplate) -> None:
        """Log a template's state once it is known."""
        process = template.process
        if process.state in ("importing", template.told):
            return
        template.told = process.state
        if process.state == "ready":
            log.info(events.TEMPLATE_READY, pool=pool, seconds=round(process.import_seconds, 3))
        elif process.state == "unsafe":
            log.warning(events.TEMPLATE_UNSAFE, pool=pool, reason="; ".join(process.hazards))
        else:
            reason = process.failure.strip().rpartition("\n")[2] or "it ended by itself"
            log.warning(events.TEMPLATE_LOST, pool=pool, reason=reason)

    def _write(self) -> None:
        """Write the states for `doctor` and `why`, where they changed."""
        states = {
            pool: {
                "state": template.process.state,
                "hazards": list(template.process.hazards),
                "failure": template.process.failure,
                "import_seconds": round(template.process.import_seconds, 3),
            }
            for pool, template in self._templates.items()
        }
        text = json.dumps(states)
        if text != self._written:
            with contextlib.suppress(OSError):
                draft = self._state_file.with_suffix(".new")
                draft.write_text(text)
                draft.replace(self._state_file)
                self._written = text


def _key(request: SpawnRequest, environment: Mapping[str, str]) -> str:
    """Return a digest of what a template's workers share: variables, working directory, application."""
    shared = sorted((name, text) for name, text in environment.items() if name not in IDENTITY)
    own = _own_variables(request.pool)
    kept = [(name, request.pool.env[name] if name in own else text) for name, text in shared]
    return blake2b(json.dumps([request.pool.app, request.pool.cwd, kept]).encode(), digest_size=16).hexdigest()


def _own_variables(pool: PoolSpec) -> set[str]:
    """Return the pool's variables that have the worker's name in them."""
    return {name for name, text in pool.env.items() if names_worker(text)}
