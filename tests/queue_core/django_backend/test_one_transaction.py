"""On PostgreSQL a task is part of Django's transaction: by Django's own connection, so a rollback takes it back."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from django.db import connections, transaction

from queue_core import LocalQueues, QueueSpec, StoreUnavailableError, open_queues
from queue_core.django import use_queues
from queue_core.django.backend import Backend
from queue_core.django.handlers import run_django_task
from queue_core.django.same_database import is_same_database
from queue_core.django.tasks_api import TaskResult
from queue_core.worker.context import Task
from tests.queue_core.django_backend.shop import tasks
from tests.queue_core.django_backend.shop.models import Thing
from tests.support.stores.engines import EngineUnavailableError
from tests.support.stores.shared_engines import SharedEngines

ALIAS = "of_store"


@dataclass(frozen=True, slots=True)
class Site:
    """A site whose second database is the store's."""

    url: str
    queues: LocalQueues
    backend: Backend

    def enqueue(self, number: int) -> TaskResult:
        return self.backend.enqueue(tasks.my_task, [number], {})

    def waiting(self) -> int:
        """The tasks that others see, by a connection of their own."""
        return self.queues.queue("default").stats().ready


@pytest.fixture
def site(shared_engines: SharedEngines) -> Iterator[Site]:
    try:
        url = shared_engines.new_store_url("postgresql")
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    parts = urlsplit(url)
    default = connections.settings["default"]
    connections.settings[ALIAS] = {
        **default,
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username or "",
        "HOST": parts.hostname,
        "PORT": str(parts.port),
    }
    queues = open_queues(url)
    assert isinstance(queues, LocalQueues)
    queues.put_queue(QueueSpec("default"))
    try:
        with connections[ALIAS].schema_editor() as editor:
            editor.create_model(Thing)
        backend = Backend("default", {"QUEUES": ["default"], "OPTIONS": {"url": url, "database": ALIAS}})
        with use_queues(queues):
            yield Site(url, queues, backend)
    finally:
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]
        queues.close()


def test_a_task_and_the_row_it_is_about_are_one_commit(site: Site) -> None:
    with transaction.atomic(using=ALIAS):
        Thing.objects.using(ALIAS).create(num=1)
        result = site.enqueue(1)
        assert result.enqueued_at is not None
        assert site.waiting() == 0  # not before the commit, but added already
    assert site.waiting() == 1
    assert site.backend.get_result(result.id).status == "READY"


def test_a_rollback_takes_the_task_back(site: Site) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=ALIAS):
        Thing.objects.using(ALIAS).create(num=1)
        site.enqueue(1)
        _ = 1 / 0
    assert site.waiting() == 0
    assert not Thing.objects.using(ALIAS).exists()


def test_a_savepoint_takes_back_what_was_added_within_it(site: Site) -> None:
    with transaction.atomic(using=ALIAS):
        kept = site.enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=ALIAS):
            site.enqueue(2)
            _ = 1 / 0
    (stored,) = site.queues.queue("default").peek().tasks
    assert stored.name == kept.id


def test_outside_of_a_transaction_a_task_is_added_at_once(site: Site) -> None:
    site.enqueue(1)
    assert site.waiting() == 1


def test_a_broken_transaction_refuses_the_task(site: Site) -> None:
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic(using=ALIAS):
        transaction.set_rollback(True, using=ALIAS)
        site.enqueue(1)
    assert site.waiting() == 0


def test_a_handler_runs_what_the_transaction_left(site: Site) -> None:
    Thing.objects.using(ALIAS).create(num=7)
    with transaction.atomic(using=ALIAS):
        site.backend.enqueue(tasks.double_dictionary, [21], {})
    (lease,) = site.queues.queue("default").lease()
    tasks.doubled.clear()
    run_django_task("default", Task(lease))
    assert tasks.doubled == [{"21": 42}]


def test_only_the_stores_own_database_takes_part(site: Site, shared_engines: SharedEngines) -> None:
    other = shared_engines.new_url("postgresql")
    connections[ALIAS].ensure_connection()
    assert is_same_database(site.url, connections[ALIAS])
    assert is_same_database(f"{site.url}?schema=another", connections[ALIAS])
    assert not is_same_database(other, connections[ALIAS])
    assert not is_same_database("http://127.0.0.1:7878", connections[ALIAS])
    assert not is_same_database(site.url, connections["default"])
    with pytest.raises(StoreUnavailableError, match="can't reach"):
        is_same_database("postgresql://127.0.0.1:1/none", connections[ALIAS])
