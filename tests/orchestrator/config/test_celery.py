"""Pools of Celery's workers: what follows from `celery`, what is refused, and the command that comes of it."""

from pathlib import Path

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.config.pools import PoolSpec, parse_pools
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.settings_file import parse
from tests.support.fleet.fleet_builders import a_pool

GOOD = {"celery": {"app": "proj", "queues": ["default", "my_images"], "concurrency": 4}, "slo": "5s"}
DOCKER = {"docker": {"image": "shop:1", "python": "/opt/venv/bin/python"}}


def pool(**settings: object) -> PoolSpec:
    return parse_pools({"shop": {**GOOD, **settings}})["shop"]


def command_of(spec: PoolSpec) -> list[str]:
    return list(SpawnRequest("shop-1", spec).program("python3", app=()))


def test_queues_and_concurrency_follow_from_it() -> None:
    spec = pool()
    assert spec.queues == ("default", "my--5fimages")
    assert (spec.queue, spec.concurrency) == ("default", 4)
    assert PoolSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_a_namespace_is_part_of_the_names_in_the_store_and_told_to_the_worker() -> None:
    spec = pool(celery={"app": "proj", "namespace": "eu"})
    assert spec.queues == ("eu--xcelery",)
    assert Launch("http://q:7878", "", "", 1.0).environment("shop-1", spec)["TOWLINE_NAMESPACE"] == "eu"


@pytest.mark.parametrize(
    ("settings", "place", "said"),
    [
        pytest.param({"app": "tasks:app"}, "app", "give either app or celery, not both", id="two programs"),
        pytest.param({"command": ["true"]}, "command", "give either command or celery", id="a command"),
        pytest.param({"queue": "other"}, "queue", "write celery.queues", id="another queue"),
        pytest.param({"tags": ["a"]}, "tags", "leave this out", id="tags"),
        pytest.param({"untagged": True}, "untagged", "leave this out", id="untagged"),
        pytest.param({"concurrency": 2}, "concurrency", "celery.concurrency says, which is 4", id="two concurrencies"),
        pytest.param({"start": "fork"}, "start", "these workers are Celery's", id="fork"),
    ],
)
def test_what_contradicts_it_is_refused(settings: dict[str, object], place: str, said: str) -> None:
    assert said in mistakes(**settings)[f"pools.shop.{place}"]


@pytest.mark.parametrize(
    ("celery", "place", "said"),
    [
        pytest.param({"app": "proj.py"}, "app", "a module, not a file: write proj", id="a file"),
        pytest.param({"app": "proj", "queues": ["a", "a"]}, "queues", "a queue is given twice", id="twice"),
        pytest.param({"app": "proj", "queues": ["a,b"]}, "queues.0", "Celery takes a comma", id="a comma"),
        pytest.param({"app": "proj", "pool": "solo", "concurrency": 2}, "concurrency", "one task at a time", id="solo"),
        pytest.param({"app": "proj", "options": ["-c", "2"]}, "options.0", "is set by celery.concurrency", id="ours"),
        pytest.param({"app": "proj", "options": ["--broker=x"]}, "options.0", "knows the broker", id="with a value"),
        pytest.param({"app": "proj", "options": ["--"]}, "options.0", "give options only", id="settings"),
        pytest.param({"app": "proj", "queue": "a"}, "queue", "did you mean 'queues'?", id="a slip"),
    ],
)
def test_what_is_wrong_in_it_is_told(celery: dict[str, object], place: str, said: str) -> None:
    assert said in mistakes(celery=celery)[f"pools.shop.celery.{place}"]


def mistakes(**settings: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        pool(**settings)
    return {".".join(map(str, one.path)): one.message for one in caught.value.problems}


def test_the_command_is_celerys_own() -> None:
    spec = pool(celery={**GOOD["celery"], "pool": "threads", "options": ["-l", "INFO"]})  # type: ignore[dict-item]
    start = ["python3", "-m", "queue_core.kombu.worker", "-A", "proj", "worker", "-Q", "default,my_images"]
    assert command_of(spec) == [*start, "-c", "4", "-P", "threads", "--prefetch-multiplier", "1", "-l", "INFO"]


def test_a_python_of_the_apps_own_is_used() -> None:
    assert command_of(pool(celery={"app": "proj", "python": "venv/bin/python"}))[0] == "venv/bin/python"


def test_a_worker_in_a_container_gives_back_what_it_can_not_end_before_its_grace_is_over() -> None:
    spec = pool(runtime=DOCKER, grace="60s")
    assert command_of(spec)[-2:] == ["--", "worker.soft_shutdown_timeout=55"]
    environment = Launch("http://q:7878", "", "", 1.0).environment("shop-1", spec)
    assert environment["REMAP_SIGTERM"] == "SIGQUIT"
    here = pool(grace="60s")
    assert "--" not in command_of(here)
    assert "REMAP_SIGTERM" not in Launch("http://q:7878", "", "", 1.0).environment("shop-1", here)


def test_other_settings_of_its_workers_are_other_workers() -> None:
    assert pool().digest() != pool(celery={"app": "proj"}).digest()
    assert a_pool().digest() == PoolSpec.model_validate(a_pool().model_dump(mode="json")).digest()


def test_its_queues_are_made_without_being_written_down() -> None:
    pools = "pools: {shop: {celery: {app: p, queues: [default, a_b]}, slo: 5s}}"
    text = f"store: 'memory:'\nqueues: {{default: {{max_leases: 3}}}}\n{pools}\n"
    project = parse(text, name="towline.yaml", directory=Path("/srv"))
    queues = project.queue_file.queues
    assert {name: queue.max_leases for name, queue in queues.items()} == {"default": 3, "a--5fb": None}
    assert [note for note in project.notes if "queues: {a--5fb: {max_leases: 5}}" in note]
