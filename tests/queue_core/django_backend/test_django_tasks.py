"""The tasks of Django's documentation are added, run and found again, and a stranger's path is never called."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from django.core import mail
from django.core.checks import run_checks
from django.db import transaction
from django.utils import timezone

from queue_core import NewTask, QueueSpec
from queue_core.django import app, use_queues
from queue_core.django.backend import Backend
from queue_core.django.handlers import app_of_settings
from queue_core.django.opened import options_of
from queue_core.django.payloads import NotATaskError, task_of
from queue_core.django.tasks_api import (
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
)
from queue_core.errors import InvalidSettingError, QueueError
from queue_core.testing import MemoryQueues, run_until_empty
from queue_core.worker.app import load_app
from tests.queue_core.django_backend.shop import tasks
from tests.support.eventually import eventually
from tests.support.fleet.odd_exceptions import ALL
from tests.support.fleet.workers import memory_queues, running_worker

EMAIL = {"emails": ["a@example.org", "b@example.org"], "subject": "Hello", "message": "Your order is on its way."}
SHOP = "tests.queue_core.django_backend.shop.tasks"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    mail.outbox = []
    for seen in (tasks.attempts, tasks.doubled, tasks.found):
        seen.clear()
    yield


def test_a_task_is_added_run_and_successful(queues: MemoryQueues) -> None:
    result = tasks.email_users.enqueue(**EMAIL)
    assert (result.status, result.is_finished, result.args, result.kwargs) == (TaskResultStatus.READY, False, [], EMAIL)
    run_until_empty(app, queues=queues)
    (sent,) = mail.outbox
    assert (sent.subject, sent.to) == ("Hello", EMAIL["emails"])
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.started_at is not None
    assert result.finished_at is not None
    assert (result.attempts, result.errors) == (1, [])


def test_a_task_goes_to_the_queue_it_names_and_carries_its_path_as_its_tag(queues: MemoryQueues) -> None:
    tasks.email_users_soon.enqueue(**EMAIL)
    (stored,) = queues.queue("emails").peek().tasks
    assert stored.tag == f"{SHOP}.email_users_soon"
    run_until_empty(app, queues=queues)
    assert len(mail.outbox) == 1


def test_a_task_that_takes_context_knows_its_attempt(queues: MemoryQueues) -> None:
    result = tasks.email_users_with_context.enqueue(**EMAIL)
    run_until_empty(app, queues=queues)
    assert tasks.attempts == [(1, result.id)]


def test_arguments_are_what_json_can_hold(queues: MemoryQueues) -> None:
    tasks.double_dictionary.enqueue(21)
    with pytest.raises(TypeError):
        tasks.double_dictionary.enqueue({"created": timezone.now()})
    run_until_empty(app, queues=queues)
    assert tasks.doubled == [{"21": 42}]


def test_a_failing_task_is_retried_and_then_failed_with_its_errors(queues: MemoryQueues) -> None:
    queues.put_queue(QueueSpec("default", max_leases=2))
    finished: list[TaskResult] = []

    def receive(sender: object, task_result: TaskResult, **_: object) -> None:
        finished.append(task_result)

    task_finished.connect(receive)
    try:
        result = tasks.failing_task.enqueue("")
        run_until_empty(app, queues=queues)
    finally:
        task_finished.disconnect(receive)
    result = tasks.failing_task.get_result(result.id)
    assert result.status == TaskResultStatus.FAILED
    assert len(result.worker_ids) == 2
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert [one.status for one in finished] == [TaskResultStatus.FAILED, TaskResultStatus.FAILED]
    assert finished[0].errors[0].exception_class is ValueError
    kept = result.errors[-1]
    assert kept.exception_class is ValueError
    assert kept.traceback.startswith("Traceback (most recent call last):")
    assert "in failing_task" in kept.traceback


def test_whatever_a_task_raises_costs_one_attempt_and_is_its_error() -> None:
    queues, _ = memory_queues()
    queue = queues.queue("default")
    queues.put_queue(QueueSpec("default", max_leases=1))
    with use_queues(queues):
        results = [tasks.raises.enqueue(number) for number in range(len(ALL))]
        with running_worker(app, queues.queue, queue="default"):
            eventually(lambda: queue.stats().dead == len(ALL))
        for result, name in zip(results, ALL, strict=True):
            result.refresh()
            assert (name, result.status, len(result.errors)) == (name, TaskResultStatus.FAILED, 1)
            assert type(result.errors[0].traceback) is str
    queues.close()


def test_the_class_of_an_error_of_the_project_is_found_again(queues: MemoryQueues) -> None:
    queues.put_queue(QueueSpec("default", max_leases=1))
    result = tasks.declined_payment.enqueue()
    run_until_empty(app, queues=queues)
    assert tasks.declined_payment.get_result(result.id).errors[-1].exception_class is tasks.PaymentDeclinedError


def test_a_task_of_a_backend_with_one_lease_is_not_retried(queues: MemoryQueues) -> None:
    result = tasks.failing_task.using(backend="at-once").enqueue("")
    (outcome,) = run_until_empty(app, queues=queues)
    assert outcome.attempts == 1
    assert task_backends["at-once"].get_result(result.id).status == TaskResultStatus.FAILED


def test_a_deferred_task_waits_for_its_time(queues: MemoryQueues) -> None:
    when = datetime.fromtimestamp(queues.clock.now() / 1_000_000, tz=timezone.get_default_timezone())
    tasks.double_dictionary.using(run_after=when + timedelta(minutes=5)).enqueue(1)
    queue = queues.queue("default")
    assert (queue.stats().ready, queue.stats().delayed) == (0, 1)
    queues.clock.advance(300)
    assert queue.stats().ready == 1


def test_a_coroutine_adds_and_finds_a_task(queues: MemoryQueues) -> None:
    async def story() -> TaskResult:
        result = await tasks.double_dictionary.aenqueue(2)
        return await tasks.double_dictionary.aget_result(result.id)

    assert asyncio.run(story()).status == TaskResultStatus.READY


def test_a_priority_is_refused(queues: MemoryQueues) -> None:
    with pytest.raises(Exception, match="does not support setting priority"):
        tasks.email_users.using(priority=10)
    assert not Backend.supports_priority


@pytest.mark.parametrize(
    ("changes", "args"),
    [
        pytest.param({}, {"emails": ["x" * 2_000_000], "subject": "s", "message": "m"}, id="too large a payload"),
        pytest.param({"run_after": timezone.now() + timedelta(days=60)}, EMAIL, id="too late an eta"),
    ],
)
def test_in_a_transaction_a_task_that_its_queue_refuses_is_refused_before_the_commit(
    queues: MemoryQueues, changes: dict[str, object], args: dict[str, object]
) -> None:
    task = tasks.email_users.using(**changes)
    for way in (transaction.atomic, nullcontext):
        with pytest.raises(QueueError), way():
            task.enqueue(**args)
            _ = way is nullcontext or pytest.fail("refused after the commit only")
    assert queues.queue("default").stats().added_total == 0


@pytest.mark.parametrize(
    "changes",
    [{}, {"run_after": datetime(2023, 11, 15, tzinfo=UTC)}, {"queue_name": "emails"}],  # the queues' clock is of 2023
    ids=["plain", "deferred", "to another queue"],
)
def test_a_result_is_equal_to_what_is_found_by_its_id(queues: MemoryQueues, changes: dict[str, object]) -> None:
    result = tasks.email_users.using(**changes).enqueue(**EMAIL)
    assert result.enqueued_at is not None
    assert tasks.email_users.get_result(result.id) == result


def test_a_backend_without_queues_is_refused_by_the_check_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_backends["default"], "queues", set())
    (found,) = Backend("default", {"QUEUES": [], "OPTIONS": {"url": "memory:"}}).check()
    assert (found.id, "QUEUES'] is empty" in found.msg) == ("towline.E004", True)
    with pytest.raises(InvalidSettingError, match="is empty: name the queues"):
        tasks.email_users.enqueue(**EMAIL)


def test_in_a_transaction_a_task_is_added_after_the_commit(queues: MemoryQueues) -> None:
    enqueued: list[str] = []

    def receive(sender: object, task_result: TaskResult, **_: object) -> None:
        enqueued.append(task_result.id)

    task_enqueued.connect(receive)
    try:
        with transaction.atomic():
            result = tasks.double_dictionary.enqueue(1)
            assert (result.enqueued_at, enqueued) == (None, [])
        assert enqueued == [result.id]
    finally:
        task_enqueued.disconnect(receive)
    assert queues.queue("default").stats().ready == 1


def test_a_rollback_leaves_no_task(queues: MemoryQueues) -> None:
    queues.put_queue(QueueSpec("default"))
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.double_dictionary.enqueue(1)
        _ = 1 / 0
    assert queues.queue("default").stats().ready == 0


def test_without_enqueue_on_commit_a_task_is_added_at_once(queues: MemoryQueues) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.double_dictionary.using(backend="at-once").enqueue(1)
        _ = 1 / 0
    assert queues.queue("default").stats().ready == 1


STRANGE = (
    f"{SHOP}.wipe_everything",
    f"{SHOP}.send_mail",
    f"{SHOP}.email_users.func",
    "os.system",
    "antigravity.fly",
    "no_such_module.task",
    "tests.queue_core.django_backend.shop.nothing.task",
    "..",
    "",
)


@pytest.mark.parametrize("path", STRANGE)
def test_a_strangers_path_is_never_called(queues: MemoryQueues, path: str) -> None:
    queues.put_queue(QueueSpec("default"))
    payload = json.dumps({"task": path, "args": [], "kwargs": {}}).encode()
    queues.queue("default").add(NewTask(payload, name="strange"))
    (outcome,) = run_until_empty(app, queues=queues)
    assert outcome.attempts == 1
    (stored,) = queues.queue("default").peek().tasks
    assert stored.state.name == "DEAD"
    assert stored.reason
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("strange")


def test_a_module_that_belongs_to_no_app_is_not_even_imported() -> None:
    import sys

    with pytest.raises(NotATaskError, match="INSTALLED_APPS"):
        task_of("antigravity.fly")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"[]", b"{}", b'{"task": 1}', b'{"task": "a.b", "args": {}}', b"[" * 50_000]
)
def test_a_payload_of_another_kind_is_dead_at_once(queues: MemoryQueues, payload: bytes) -> None:
    queues.put_queue(QueueSpec("default"))
    queues.queue("default").add(payload)
    (outcome,) = run_until_empty(app, queues=queues)
    assert outcome.attempts == 1
    assert outcome.error is not None


def test_an_unknown_result_does_not_exist(queues: MemoryQueues) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("unknown")


def test_the_app_serves_the_queues_of_all_backends() -> None:
    assert app_of_settings().queues == ("default", "emails")


def test_a_worker_finds_the_app_by_its_name() -> None:
    assert load_app("queue_core.django:app").queues == ("default", "emails")


def test_the_site_passes_djangos_checks() -> None:
    assert run_checks() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs a 'url'"),
        ({"url": "memory:", "ulr": ""}, "unknown option 'ulr'"),
        ({"url": "memory:", "max_leases": 0}, "max_leases"),
        ({"url": "memory:", "durability": "soft"}, "durability"),
        ({"url": "memory:", "modules": "shop"}, "list of packages"),
    ],
)
def test_a_wrong_option_is_told_by_its_place(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"TASKS\['default'\]\['OPTIONS'\]") as raised:
        options_of("default", options)
    assert said in str(raised.value)
    (found,) = Backend("default", {"QUEUES": ["default"], "OPTIONS": options}).check()
    assert said in found.msg


def test_djangos_check_tells_of_a_queue_whose_name_is_none() -> None:
    (found,) = Backend("default", {"QUEUES": ["my_queue"], "OPTIONS": {"url": "memory:"}}).check()
    assert "my_queue" in found.msg
