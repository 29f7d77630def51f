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

from queue_core.clock import SystemClock
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
from queue_core.verbs.validation import check_new_tasks, check_not_moved, check_own_limits

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
    and errors, for as long as its queue keeps history; return values are not kept, so `supports_get_result` is False.
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
        if not self.queues:
            raise InvalidSettingError(self._no_queues())
        options = self.towline_options()
        database = connections[options.database] if options.database in tuple(connections) else None
        is_atomic = self._enqueues_on_commit and database is not None and database.in_atomic_block
        is_joined = is_atomic and is_same_database(options.url, database)
        enqueued_at = None if is_atomic and not is_joined else timezone.now()
        given = normalize_json(list(args)), normalize_json(dict(kwargs))
        call = TaskCall(task.module_path, *given, enqueued_at, task.run_after)
        name = get_random_string(NAME_CHARACTERS)
        path = task.module_path
        new_task = NewTask(
            call.payload(),
            name=name,
            tag=path if len(path.encode()) <= MAX_TAG_BYTES else None,
            eta=None if task.run_after is None else instant_of(_aware(task.run_after)),
            max_leases=options.max_leases,
        )
        result = new_result(task, call, name=name, backend=self.alias)
        if not is_atomic:
            self._add(options, task.queue_name, new_task, result)
        elif is_joined:
            assert database is not None, "it has a transaction"
            database.validate_no_broken_transaction()
            self._add(options, task.queue_name, new_task, result, connection=database.connection)
        else:
            self._check_now(options, task.queue_name, new_task)
            add = partial(self._add, options, task.queue_name, new_task, result)
            transaction.on_commit(add, using=options.database)
        return result

    def _check_now(self, options: BackendOptions, queue: str, task: NewTask) -> None:
        """Raise for a task that its queue would refuse: after the commit nobody could be told.

        Raises `InvalidRequestError`, `QueueMovedError`, and `StoreUnavailableError` while the queue can't be reached.
        """
        now = SystemClock().now()
        check_new_tasks([task], now=now)
        spec = OPENED.spec(options, queue)
        check_not_moved(spec)
        check_own_limits(task, spec, now=now)

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
        if not self.queues:
            found.append(checks.Error(self._no_queues(), id="towline.E004"))
        for name in sorted(self.queues):
            try:
                check_queue_name(name)
            except InvalidQueueNameError as error:
                found.append(checks.Error(f"TASKS[{self.alias!r}]['QUEUES']: {error}", id="towline.E003"))
        return found

    def _no_queues(self) -> str:
        return f"TASKS[{self.alias!r}]['QUEUES'] is empty: name the queues, such as ['default'], as workers serve them"

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
