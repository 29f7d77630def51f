"""Import pools' applications in processes of their own, before anything is started, and say which can't be used."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.process import variables_of
from orchestrator.runtimes.template_process import TemplateProcess
from orchestrator.runtimes.templates import MARKS, MAX_IMPORTING
from orchestrator.settings_file import Project
from orchestrator.state.templates import reason_in

IMPORT_SECONDS: Final = 10.0
"""Longest wait for all imports together: a start must not hang because one does, and slow ones are no mistake."""
QUIET_SECONDS: Final = 1.0
"""Imports that take no longer need no word."""
POLL_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class ImportFindings:
    """The result of the imports.

    `failures` has the sentence of each pool whose application can't be used; `unknown` are the pools whose imports took
    too long. `handlers` counts those of the others.
    """

    failures: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    handlers: Mapping[str, int] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """The failures with their places in the settings."""
        return [f"pools.{name}.app: {failure}" for name, failure in self.failures.items()]

    @property
    def notes(self) -> list[str]:
        """A sentence for each import that was not waited for."""
        return [f"pools.{name}.app: its import has not ended yet, and was not waited for" for name in self.unknown]


def check_imports(
    project: Project, *, seconds: float = IMPORT_SECONDS, on_wait: Callable[[Sequence[str]], None] | None = None
) -> ImportFindings:
    """Import the application of each pool whose workers are processes of this host, as its workers would.

    Args:
        on_wait: called once if the imports take long, with the applications that are not imported yet.
    """
    clock = SystemMonotonicClock()
    url = project.queue_file.server.url(project.directory)
    withheld = project.secret_variables(os.environ, url=url)
    waiting = [pool for pool in project.pools.values() if pool.app is not None and pool.runtime_kind == "process"]
    running: dict[str, TemplateProcess] = {}
    failures: dict[str, str] = {}
    handlers: dict[str, int] = {}
    began_at = clock.monotonic()
    try:
        while (waiting or running) and clock.monotonic() < began_at + seconds:
            if on_wait is not None and clock.monotonic() >= began_at + QUIET_SECONDS:
                on_wait(sorted({project.pools[name].app or "" for name in (*running, *(one.name for one in waiting))}))
                on_wait = None
            while waiting and len(running) < MAX_IMPORTING:
                pool = waiting.pop(0)
                try:
                    running[pool.name] = _started(pool, url=url, withheld=withheld)
                except OSError as error:
                    failures[pool.name] = f"can't import {pool.app} in {error.filename or '.'}: {error.strerror}"
            for name, process in list(running.items()):
                if process.poll() != "importing":
                    if process.state == "failed":
                        failures[name] = reason_in(process.failure)
                    elif process.handlers:
                        handlers[name] = process.handlers
                    _end(running.pop(name))
            time.sleep(POLL_SECONDS)
    finally:
        for process in running.values():
            _end(process)
    return ImportFindings(failures, (*running, *(pool.name for pool in waiting)), handlers)


def _started(pool: PoolSpec, *, url: str, withheld: frozenset[str]) -> TemplateProcess:
    name = f"{pool.name}.import"
    request = SpawnRequest(name, pool, Launch(url, "", "", 0.0).environment(name, pool))
    environment = {key: text for key, text in variables_of(request, withheld).items() if key not in MARKS}
    with tempfile.TemporaryFile() as output:
        return TemplateProcess(environment, cwd=pool.cwd, log=output.fileno())


def _end(process: TemplateProcess) -> None:
    process.end()
    process.wait()
    process.collect()
