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
from orchestrator.config.pools import PoolSpec
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.template_process import ForkedWorker, ForkFailedError, TemplateProcess

log = structlog.get_logger()

IDENTITY: Final = frozenset({"TOWLINE_WORKER", "TOWLINE_SPEC"})
"""Variables that differ between the workers of one template."""
MARKS: Final = frozenset({"TOWLINE_WORKER", "TOWLINE_POOL", "TOWLINE_SPEC", "TOWLINE_STATE_DIR"})
"""Variables by which a worker is found again: a template must not have them, as it is none."""
KEPT_SECONDS: Final = 3600.0
"""How long a template is kept after its pool's last worker has ended: it costs memory, and saves the import."""
RETRY_SECONDS: Final = 60.0
"""Pause before a template is started again that has failed or ended."""


@dataclass(slots=True)
class _PoolTemplate:
    key: str
    process: TemplateProcess
    used_at: Monotonic
    begun_at: Monotonic
    told: str = ""


class Templates:
    """The templates of one supervisor, by pool. Belongs to one thread."""

    def __init__(self, state_dir: Path, *, open_log: Callable[[str], int]) -> None:
        """`open_log` opens the log of a name for writing."""
        self._state_file = state_dir / "templates.json"
        self._open_log = open_log
        self._templates: dict[str, _PoolTemplate] = {}
        self._ending: list[TemplateProcess] = []
        self._written = ""

    def pids(self) -> set[int]:
        """Return the processes of all templates that are not collected yet."""
        return {template.process.pid for template in self._templates.values()} | {one.pid for one in self._ending}

    def fork(
        self, request: SpawnRequest, environment: Mapping[str, str], *, log_descriptor: int, now: Monotonic
    ) -> ForkedWorker | None:
        """Fork a worker that waits to be let go; None where it has to be executed.

        Starts the pool's template if it has none, for the workers to come.
        """
        mode = request.pool.start
        if request.command or mode == "exec":
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
            return template.process.fork(environment, cwd=request.pool.cwd, log=log_descriptor)
        except ForkFailedError as error:
            if template.process.state == "outdated":
                log.info(events.TEMPLATE_OUTDATED, pool=request.pool.name, reason=str(error))
            else:
                log.warning(events.TEMPLATE_LOST, pool=request.pool.name, reason=str(error))
            self._end(request.pool.name)
            self._template(request, environment, now=now)  # it imports what is there now, for the next start
            return None

    def can_fork(self, pool: PoolSpec) -> bool:
        """Return whether the pool's next worker would be forked."""
        template = self._templates.get(pool.name)
        if template is None or pool.start == "exec":
            return False
        state = template.process.poll()
        return state == "ready" or (state == "unsafe" and pool.start == "fork")

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
        self.collect()
        self._write()

    def collect(self) -> None:
        """Collect templates that were ended."""
        self._ending = [one for one in self._ending if not one.collect()]

    def close(self) -> None:
        """End all templates; their workers go on."""
        for pool in list(self._templates):
            self._end(pool)
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
            started = self._start(request, environment)
            if started is None:
                return None
            self._templates[pool] = _PoolTemplate(key, started, now, now)
        return self._templates[pool]

    def _start(self, request: SpawnRequest, environment: Mapping[str, str]) -> TemplateProcess | None:
        shared = {name: text for name, text in environment.items() if name not in MARKS}
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
    own = {name: text for name, text in request.pool.env.items() if "{worker}" in text}
    kept = [(name, own.get(name, text)) for name, text in shared]
    return blake2b(json.dumps([request.pool.app, request.pool.cwd, kept]).encode(), digest_size=16).hexdigest()
