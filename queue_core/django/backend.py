"""Backend: Django's tasks as tasks of a queue, added with the transaction that Django has open.

in `atomic`, the store is in the same PostgreSQL:   by Django's own connection: a rollback takes the task back
in `atomic`, any other store or a server:           after the commit (`transaction.on_commit`)
else, or with `"ENQUEUE_ON_COMMIT": False`:         at once
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from django.core import checks
from django.db import connections, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from queue_core.django.opened import OPENED, BackendOptions, options_of
from queue_core.django.payloads import DjangoTask, NotATaskError, TaskCall, call_of, task_of
from queue_core.django.results import finished_result, instant_of, new_result, stored_result
from queue_core.django.same_database import is_same_database
from queue_core.django.tasks_api import (
    BaseTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from queue_core.errors import InvalidQueueNameError, InvalidSettingError, UnknownQueueError
from queue_core.limits import LARGEST_PAYLOAD_BYTES, MAX_TAG_BYTES, check_queue_name
from queue_core.task import NewTask

NAME_CHARACTERS: Final = 32
"""Characters of a task's name, drawn at random; a store keeps names without regard to queues of other stores."""
MAX_LEASES_READ: Final = 100
"""Ended leases of a finished task that its result counts at most."""


class Backend(BaseTaskBackend):
    """The backend for `TASKS`.

        TASKS = {"default": {
            "BACKEND": "queue_core.django.Backend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"url": "http://127.0.0.1:7878"},
        }}

    `OPTIONS`: see `BackendOptions`. Priorities are refused, not ignored. A result tells a task's state, times, workers
    and errors, for as long as its queue keeps history; return values are not kept, hence `supports_get_result` False.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = False
    supports_priority = False

    def __init__(self, alias: str, params: Mapping[str, object]) -> None:
        super().__init__(alias, params)
        self._enqueues_on_commit = params.get("ENQUEUE_ON_COMMIT", True) is not False

    def towline_options(self) -> BackendOptions:
        """Return the options as read. Raises `InvalidSettingError`."""
        return options_of(self.alias, self.options)

    def enqueue(self, task: DjangoTask, args: Iterable[object], kwargs: Mapping[str, object]) -> TaskResult:
        """Add a task; see the module for when. Arguments must be what JSON can hold."""
        self.validate_task(task)
        options = self.towline_options()
        call = TaskCall(task.module_path, normalize_json(list(args)), normalize_json(dict(kwargs)))
        name = get_random_string(NAME_CHARACTERS)
        path = task.module_path
        new_task = NewTask(
            call.payload(),
            name=name,
            tag=path if len(path.encode()) <= MAX_TAG_BYTES else None,
            eta=None if task.run_after is None else instant_of(_aware(task.run_after)),
            max_leases=options.max_leases,
        )
        database = connections[options.database] if options.database in tuple(connections) else None
        result = new_result(task, call, name=name, backend=self.alias, enqueued_at=timezone.now())
        if not self._enqueues_on_commit or database is None or not database.in_atomic_block:
            self._add(options, task.queue_name, new_task, result)
        elif is_same_database(options.url, database):
            database.validate_no_broken_transaction()
            self._add(options, task.queue_name, new_task, result, connection=database.connection)
        else:
            result = new_result(task, call, name=name, backend=self.alias, enqueued_at=None)
            add = partial(self._add, options, task.queue_name, new_task, result)
            transaction.on_commit(add, using=options.database)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return what is known of a task of this backend's queues. Raises `TaskResultDoesNotExist`."""
        options = self.towline_options()
        queues = OPENED.queues(options)
        for name in sorted(self.queues):
            queue = queues.queue(name)
            try:
                for stored in queue.peek(names=[result_id], payload_bytes=LARGEST_PAYLOAD_BYTES).tasks:
                    call = call_of(stored.payload)
                    task = task_of(call.path, modules=options.modules)
                    return stored_result(task, call, stored, backend=self.alias)
                ended = queue.history(names=[result_id], limit=MAX_LEASES_READ).leases
                if ended:
                    task = task_of(ended[0].tag or "", modules=options.modules)
                    return finished_result(task, ended, backend=self.alias)
            except UnknownQueueError:
                continue
            except NotATaskError as error:
                raise TaskResultDoesNotExist(f"{result_id}: {error}") from None
        raise TaskResultDoesNotExist(result_id)

    def check(self, **_kwargs: object) -> Iterable[checks.CheckMessage]:
        """Check the settings for `manage.py check`, without opening anything."""
        found = []
        try:
            options = self.towline_options()
        except InvalidSettingError as error:
            found.append(checks.Error(str(error), id="towline.E001"))
        else:
            if options.database not in tuple(connections):
                said = f"TASKS[{self.alias!r}]['OPTIONS']['database'] is no alias of DATABASES: {options.database!r}"
                found.append(checks.Error(said, id="towline.E002"))
        for name in sorted(self.queues):
            try:
                check_queue_name(name)
            except InvalidQueueNameError as error:
                found.append(checks.Error(f"TASKS[{self.alias!r}]['QUEUES']: {error}", id="towline.E003"))
        return found

    def _add(
        self,
        options: BackendOptions,
        queue: str,
        task: NewTask,
        result: TaskResult,
        *,
        connection: object | None = None,
    ) -> None:
        OPENED.ensure(options, queue).queue(queue).add(task, connection=connection)
        task_enqueued.send(type(self), task_result=result)


def _aware(when: datetime) -> datetime:
    return when if timezone.is_aware(when) else timezone.make_aware(when)
