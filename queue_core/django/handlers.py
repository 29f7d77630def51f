"""Handlers for workers: `towline work queue_core.django:app` runs the tasks of every Towline backend in `TASKS`."""

from collections.abc import Callable

import django
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections

from queue_core.attempts.error_text import path_of
from queue_core.attempts.redaction import redacted_traceback
from queue_core.django.payloads import NotATaskError, call_of, task_of
from queue_core.errors import AppError
from queue_core.worker.app import App
from queue_core.worker.context import Dead, Task


def app_of_settings() -> App:
    """Set Django up and return an app with a handler for each queue of its Towline backends.

    A queue of several backends is handled by the first; a worker has the tasks of one store only.

    Raises `AppError` where Django's settings are missing, or name no backend of ours.
    """
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise AppError(
            f"Django's settings can't be used: {str(error).split('. ')[0]}; set DJANGO_SETTINGS_MODULE=mysite.settings"
        ) from None
    from django.conf import settings

    from queue_core.django.backend import Backend
    from queue_core.django.tasks_api import task_backends

    aliases: dict[str, str] = {}
    for alias in getattr(settings, "TASKS", {}):
        backend = task_backends[alias]
        if isinstance(backend, Backend):
            for queue in backend.queues:
                aliases.setdefault(queue, alias)
    app = App()
    for queue, alias in sorted(aliases.items()):
        app.task(queue=queue)(_handler_of(alias))
    if not app.queues:
        raise AppError("no queue to serve: name queue_core.django.Backend as a BACKEND in TASKS, with its QUEUES")
    return app


def run_django_task(alias: str, task: Task) -> None:
    """Run the function of a Django task, with Django's signals around it; its return value is dropped.

    A payload that calls no task of this project makes the task dead: no retry can help.
    """
    from queue_core.django.backend import Backend
    from queue_core.django.results import running_result
    from queue_core.django.tasks_api import (
        TaskContext,
        TaskError,
        TaskResultStatus,
        task_backends,
        task_finished,
        task_started,
    )

    options = task_backends[alias].towline_options()
    try:
        call = call_of(task.payload)
        declared = task_of(call.path, modules=options.modules)
    except NotATaskError as error:
        raise Dead(str(error)) from None
    result = running_result(declared, call, task.lease, backend=alias)
    close_old_connections()
    task_started.send(Backend, task_result=result)
    try:
        context = (TaskContext(task_result=result),) if declared.takes_context else ()
        declared.call(*context, *call.args, **call.kwargs)
    except BaseException as error:
        text = redacted_traceback(error, [task.payload])
        result.errors.append(TaskError(exception_class_path=path_of(type(error)), traceback=text))
        _end(result, TaskResultStatus.FAILED)
        task_finished.send(Backend, task_result=result)
        raise
    finally:
        close_old_connections()
    _end(result, TaskResultStatus.SUCCESSFUL)
    task_finished.send(Backend, task_result=result)


def _handler_of(alias: str) -> Callable[[Task], None]:
    def django_task(task: Task) -> None:
        run_django_task(alias, task)

    return django_task


def _end(result: object, status: object) -> None:
    """Set what a frozen result lacks at its end, as Django's own backends do."""
    from django.utils import timezone

    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
