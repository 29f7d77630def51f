"""What `towline doctor` finds in apps of Celery's: a table of settings, and an app that is imported."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import kombu
import pytest

from orchestrator.cli.celery_apps.facts import CeleryFacts, CeleryTask, as_run
from orchestrator.cli.celery_apps.reader import arguments_of
from orchestrator.cli.celery_apps.reading import AppUnreadableError, read_app
from orchestrator.cli.celery_apps.rules import risks
from tests.support.commands import Commands, run_program

TASK = CeleryTask("shop.add", acks_late=True, is_run_again_when_lost=True, time_limit_seconds=60.0)
SAFE: dict[str, Any] = {
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    "result_expires": 86400.0,
    "task_acks_late": True,
    "task_acks_on_failure_or_timeout": True,
    "task_always_eager": False,
    "task_default_delivery_mode": 2,
    "task_reject_on_worker_lost": True,
    "task_serializer": "json",
    "task_time_limit": None,
    "worker_cancel_long_running_tasks_on_connection_loss": True,
    "worker_max_tasks_per_child": None,
    "worker_pool": "prefork",
    "worker_prefetch_multiplier": 1,
}
REDIS = CeleryFacts("shop", "5.6.3", "redis", settings=SAFE, tasks=(TASK,))
TOWLINE = CeleryFacts(
    "shop",
    "5.6.3",
    "towline+http",
    settings={
        **SAFE,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_acks_on_failure_or_timeout": False,
    },
    tasks=(replace(TASK, acks_on_failure=False),),
)


def having(facts: CeleryFacts, **settings: Any) -> CeleryFacts:
    return replace(facts, settings={**facts.settings, **settings})


def with_task(facts: CeleryFacts, **changes: Any) -> CeleryFacts:
    return replace(facts, tasks=(*facts.tasks, replace(facts.tasks[0], name="shop.other", **changes)))


@pytest.mark.parametrize("facts", [REDIS, TOWLINE], ids=["redis", "towline"])
def test_an_app_that_loses_nothing_is_well(facts: CeleryFacts) -> None:
    (one,) = risks(facts)
    assert (one.level, one.fix) == ("ok", "")
    assert "Celery 5.6.3, 1 task" in one.found


@pytest.mark.parametrize(
    ("facts", "words", "fix"),
    [
        pytest.param(
            having(with_task(REDIS, acks_late=False), task_acks_late=False),
            "shop.other is acknowledged before it runs",
            "task_acks_late = True",
            id="acknowledged early, by default",
        ),
        pytest.param(
            having(replace(REDIS, tasks=(replace(TASK, acks_late=False),)), task_acks_late=False),
            "tasks are acknowledged before they run",
            "task_acks_late = True",
            id="all acknowledged early",
        ),
        pytest.param(
            with_task(REDIS, acks_late=False),
            "shop.other is acknowledged before it runs",
            "leave acks_late=False out",
            id="acknowledged early, by itself",
        ),
        pytest.param(
            with_task(REDIS, is_run_again_when_lost=False),
            "shop.other is acknowledged as failed when its process is killed",
            "task_reject_on_worker_lost = True; one that kills",
            id="not run again when its process dies",
        ),
        pytest.param(
            with_task(TOWLINE, acks_on_failure=True),
            "shop.other is acknowledged when cut by its time limit",
            "task_acks_on_failure_or_timeout = False",
            id="cut by its time limit",
        ),
        pytest.param(
            replace(TOWLINE, queues={"mail": ["x-dead-letter-exchange", "x-max-length", "x-overflow"]}),
            "queue mail: x-dead-letter-exchange, x-max-length, x-overflow has no effect in Towline; dead tasks stay",
            "`towline redrive` runs dead tasks again; `total_storage_limit`",
            id="arguments of queues without an effect",
        ),
        pytest.param(
            having(REDIS, worker_prefetch_multiplier=4),
            "fetches 3 tasks beside each",
            "worker_prefetch_multiplier = 1",
            id="fetched ahead",
        ),
        pytest.param(
            having(REDIS, worker_prefetch_multiplier=0),
            "fetches the whole queue",
            "worker_prefetch_multiplier = 1",
            id="fetched without limit",
        ),
        pytest.param(
            having(REDIS, worker_cancel_long_running_tasks_on_connection_loss=False),
            "another worker runs it too",
            "worker_cancel_long_running_tasks_on_connection_loss = True",
            id="a lost connection, elsewhere",
        ),
        pytest.param(
            having(TOWLINE, worker_cancel_long_running_tasks_on_connection_loss=True),
            "are cancelled and restarted needlessly",
            "worker_cancel_long_running_tasks_on_connection_loss = False",
            id="a lost connection, on Towline",
        ),
        pytest.param(
            with_task(REDIS, time_limit_seconds=None),
            "tasks have no time limit, and one that is not done after 1 h",
            "{'visibility_timeout': 43200}",
            id="no limit, on Redis",
        ),
        pytest.param(
            replace(with_task(REDIS, time_limit_seconds=1800.0), visibility_seconds=900.0),
            "may run for 30 min, and one that is not done after 15 min",
            "{'visibility_timeout': 2160}",
            id="longer than Redis waits",
        ),
        pytest.param(
            having(replace(REDIS, broker="amqp"), task_default_delivery_mode=1),
            "lost when RabbitMQ restarts",
            "'persistent'",
            id="not on RabbitMQ's disk",
        ),
        pytest.param(
            replace(TOWLINE, backend="rpc"), "lost when the server restarts", "result_backend", id="results by rpc"
        ),
        pytest.param(
            having(replace(REDIS, backend="redis"), result_expires=None), "kept for ever", "86400", id="results stay"
        ),
        pytest.param(having(REDIS, accept_content=["json", "pickle"]), "can run any code", "['json']", id="pickle"),
        pytest.param(
            having(REDIS, broker_connection_retry_on_startup=False), "exits at once", "= True", id="no broker at start"
        ),
        pytest.param(having(REDIS, worker_max_tasks_per_child=1), "starts a process", "100", id="a process per task"),
        pytest.param(replace(TOWLINE, version="5.4.0"), "none of those", "5.5", id="an old Celery"),
        pytest.param(
            replace(REDIS, workers={"one@host": {"worker_prefetch_multiplier": 8}}),
            "one@host runs with worker_prefetch_multiplier = 8, and the app has 1",
            "restart it",
            id="a worker with other settings",
        ),
    ],
)
def test_what_loses_tasks_is_told_with_the_line_to_write(facts: CeleryFacts, words: str, fix: str) -> None:
    (one,) = risks(facts)
    assert one.level == "warn"
    assert words in one.found
    assert fix in one.fix


def test_a_durable_queue_that_is_to_expire_is_told_before_it_is_refused() -> None:
    queues = {"mail": ["x-expires"], "bcast.8a1f2b3c-1111-2222-3333-444455556666": ["x-expires"]}
    (one,) = risks(replace(TOWLINE, queues=queues))
    assert (one.level, one.fix) == ("bad", "leave expires out of queue mail, or durable=False")
    assert "queue mail is durable and has expires (x-expires): it is refused" in one.found
    assert [risk.level for risk in risks(replace(REDIS, queues=queues))] == ["ok"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"expires": 60}, ["x-expires"]),
        ({"queue_arguments": {"x-expires": 1}}, ["x-expires"]),
        ({"expires": 60, "durable": False}, []),
        ({"expires": 60, "exclusive": True, "max_length": 3}, ["x-max-length"]),
    ],
)
def test_an_expiry_is_read_of_durable_queues_only(options: dict[str, Any], names: list[str]) -> None:
    assert arguments_of(kombu.Queue("mail", **options)) == names


def test_tasks_that_no_worker_gets_are_bad() -> None:
    assert [one.level for one in risks(having(REDIS, task_always_eager=True))] == ["bad"]


def test_a_lost_process_is_no_matter_to_pools_of_threads() -> None:
    facts = as_run(with_task(REDIS, is_run_again_when_lost=False), broker="towline", pool="threads")
    assert [one.found for one in risks(facts) if "process" in one.found] == []


def test_a_pool_of_ours_runs_one_task_ahead_of_none_and_needs_a_grace_above_the_longest() -> None:
    facts = as_run(having(TOWLINE, worker_prefetch_multiplier=4), broker="towline", pool="prefork")
    assert [one.level for one in risks(facts, pool="mail", grace_seconds=90.0)] == ["ok"]
    (one,) = risks(facts, pool="mail", grace_seconds=30.0)
    assert one.fix == "pools.mail.grace: 70s"


APP = """\
from celery import Celery
print("said while it is imported")
app = Celery("proj", broker="redis://:geheim@127.0.0.1:1/0", backend="redis://:geheim@127.0.0.1:1/1")
app.conf.task_acks_late = True
@app.task(time_limit=30)
def late(): ...
@app.task(acks_late=False)
def early(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "proj.py").write_text(APP)
    (folder / "broken.py").write_text("raise RuntimeError('no settings here')\n")
    return folder


def test_an_app_is_read_as_celery_imports_it(folder: Path) -> None:
    facts = read_app("proj", folder=str(folder), wait_seconds=0.0)
    assert (facts.broker, facts.backend, facts.settings["result_expires"]) == ("redis", "redis", 86400.0)
    assert {one.name: (one.acks_late, one.time_limit_seconds) for one in facts.tasks} == {
        "proj.late": (True, 30.0),
        "proj.early": (False, None),
    }
    with pytest.raises(AppUnreadableError, match="no settings here"):
        read_app("broken", folder=str(folder))
    with pytest.raises(AppUnreadableError, match="/no/python"):
        read_app("proj", folder=str(folder), python="/no/python")


def test_doctor_reads_one_app_alone_and_tells_no_secret(folder: Path) -> None:
    told = run_program("doctor", "--celery", "proj", "--json", folder=folder)
    found = cast("list[dict[str, str]]", told.json)
    assert told.code == 0
    assert {one["check"] for one in found} == {"celery"}
    assert any("proj.early is acknowledged before it runs" in one["found"] for one in found)
    assert "geheim" not in told.out + told.err


def test_doctor_says_that_an_app_can_not_be_imported(towline: Commands) -> None:
    told = towline("doctor", "--celery", "nowhere")
    assert told.code == 1
    assert "No module named 'nowhere'" in told.out
