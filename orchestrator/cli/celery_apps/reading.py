"""Read apps of Celery's in processes of their own, and tell what of their settings loses tasks."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from orchestrator.cli.celery_apps.facts import TOWLINE, CeleryFacts, as_run, facts_in
from orchestrator.cli.celery_apps.rules import risks
from orchestrator.cli.finding import Finding
from orchestrator.settings_file import Project
from queue_core.process.wording import counted, shown_seconds

READ_SECONDS: Final = 30.0
"""Longest import of an app: Django's take some seconds."""
WAIT_SECONDS: Final = 1.0
"""How long running workers are waited for."""
_READER: Final = Path(__file__).with_name("reader.py")


class AppUnreadableError(Exception):
    """The app can't be imported; the message says why."""


def celery_findings(project: Project | None, *, app: str | None = None) -> Iterator[Finding]:
    """Yield what is at risk in the app that is named, and in those of pools whose workers are Celery's."""
    if app is not None:
        yield from _named_app(app)
    for pool in project.pools.values() if project is not None else ():
        settings = getattr(pool, "celery", None)
        if settings is None or pool.runtime_kind != "process":
            continue
        try:
            facts = read_app(
                settings.app,
                folder=pool.cwd,
                python=settings.python or sys.executable,
                environment={**os.environ, **pool.env},
                wait_seconds=0.0,
            )
        except AppUnreadableError as error:
            fix = f"correct pools.{pool.name}.celery.app, or its cwd"
            yield Finding("celery", "bad", f"pool {pool.name}: can't import {settings.app}: {error}", fix)
            continue
        is_elsewhere = getattr(getattr(pool, "source", None), "celery", None) is not None
        facts = as_run(facts, broker=facts.broker if is_elsewhere else TOWLINE, pool=settings.pool)
        for risk in risks(facts, pool=pool.name, grace_seconds=pool.grace):
            yield Finding("celery", risk.level, f"pool {pool.name}: {risk.found}", risk.fix)


def _named_app(app: str) -> Iterator[Finding]:
    try:
        facts = read_app(app)
    except AppUnreadableError as error:
        fix = "run it in the app's folder, with the app's Python; the name is as `celery -A` takes it"
        yield Finding("celery", "bad", f"can't import {app}: {error}", fix)
        return
    for risk in risks(facts):
        yield Finding("celery", risk.level, f"{app}: {risk.found}", risk.fix)
    if facts.workers:
        yield Finding("celery", "ok", f"{app}: {counted(len(facts.workers), 'running worker')} asked")


def read_app(
    app: str,
    *,
    folder: str | None = None,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> CeleryFacts:
    """Import an app as `celery -A` does, in its own Python, and return what it is set to. Raises `AppUnreadableError`.

    Args:
        folder: where it is imported from; None: here.
    """
    command = [python, "-c", _READER.read_text(encoding="utf-8"), app, str(wait_seconds)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=dict(os.environ if environment is None else environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=READ_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AppUnreadableError(f"its import has not ended after {shown_seconds(READ_SECONDS)}") from None
    except OSError as error:
        raise AppUnreadableError(f"{error.filename}: {error.strerror}") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise AppUnreadableError(last or f"its import ended with exit code {done.returncode}") from None
    if "error" in answer:
        raise AppUnreadableError(str(answer["error"]))
    return facts_in(answer)
