"""Payloads of Django's tasks: the function's path and its arguments as JSON, and the function of a path.

A path comes from a queue, so it may be a stranger's: only a module of this project is imported for it, and only an
object that its author declared a task is ever called.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Final, TypeAlias

from django.apps import apps
from django.conf import settings

from queue_core.django.tasks_api import Task

DjangoTask: TypeAlias = Task
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII)
MAX_SHOWN_CHARACTERS: Final = 200


class NotATaskError(Exception):
    """A payload that is no call of a task of this project. Its text quotes a path, never an argument."""


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A call of a task's function: its path, `shop.tasks.send_mail`, and its arguments.

    `enqueued_at`, `run_after`: as its `TaskResult` had them when it was enqueued; None: not then, or not given.
    """

    path: str
    args: Sequence[object]
    kwargs: dict[str, object]
    enqueued_at: datetime | None = None
    run_after: datetime | None = None

    def payload(self) -> bytes:
        """Return the call as JSON. Raises `TypeError` or `ValueError` for an argument that JSON can't hold."""
        content: dict[str, object] = {"task": self.path, "args": self.args, "kwargs": self.kwargs}
        for name, at in (("enqueued_at", self.enqueued_at), ("run_after", self.run_after)):
            if at is not None:
                content[name] = at.isoformat()
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def call_of(payload: bytes) -> TaskCall:
    """Parse what `TaskCall.payload` wrote. Raises `NotATaskError`."""
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError):
        raise NotATaskError("its payload is not JSON: was it added by Django's `enqueue`?") from None
    if not isinstance(content, dict) or not isinstance(content.get("task"), str):
        raise NotATaskError("its payload names no task: was it added by Django's `enqueue`?")
    args, kwargs = content.get("args", []), content.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise NotATaskError("its payload must have a list `args` and an object `kwargs`")
    return TaskCall(content["task"], args, kwargs, _time(content, "enqueued_at"), _time(content, "run_after"))


def _time(content: dict[str, object], name: str) -> datetime | None:
    text = content.get(name)
    if text is None:
        return None
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        raise NotATaskError(f"its payload has a wrong time as `{name}`: was it added by Django's `enqueue`?") from None


def task_of(path: str, *, modules: Sequence[str] = ()) -> DjangoTask:
    """Return the task declared at a path. Raises `NotATaskError`.

    Args:
        modules: packages that may be imported beside those of `INSTALLED_APPS` and of the settings.
    """
    shown = repr(path[:MAX_SHOWN_CHARACTERS])
    if not _PATH.fullmatch(path):
        raise NotATaskError(f"not the path of a task, such as shop.tasks.send_mail: {shown}")
    module_name, _, name = path.rpartition(".")
    module = sys.modules.get(module_name)
    if module is None:
        if not _is_of_project(module_name, modules):
            raise NotATaskError(
                f"{shown} is in no app of INSTALLED_APPS: it is not imported; name its package in OPTIONS['modules']"
            )
        try:
            module = import_module(module_name)
        except ModuleNotFoundError as error:
            raise NotATaskError(f"no module for {shown}: {error}") from None
    found = vars(module).get(name)
    if not isinstance(found, Task) or found.module_path != path:
        raise NotATaskError(f"{shown} is not declared by @task: it is not called")
    return found


def _is_of_project(module_name: str, modules: Sequence[str]) -> bool:
    """Return whether a module belongs to an installed app, to the settings' package or to a package named."""
    roots = {config.name for config in apps.get_app_configs()} | set(modules)
    chosen = getattr(settings, "SETTINGS_MODULE", "") or ""
    if "." in chosen:
        roots.add(chosen.partition(".")[0])
    return any(module_name == root or module_name.startswith(f"{root}.") for root in roots)
