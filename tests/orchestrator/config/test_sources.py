"""`source: celery`: brokers that can be read, those that can't, and passwords that show up nowhere."""

import json
from pathlib import Path

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.config.diff import changes_between
from orchestrator.config.pools import PoolSpec, parse_pools
from orchestrator.config.sources import CelerySource, broker_flaw
from orchestrator.settings_file import effective, parse

COMMAND = ["celery", "-A", "proj", "worker", "-n", "{worker}@%h"]
SECRET = "s3cr3t"


def the_pool(**source: object) -> PoolSpec:
    settings = {"source": {"celery": source}, "command": COMMAND, "slo": "30s"}
    return parse_pools({"shop": settings})["shop"]


def mistakes_of(settings: dict[str, object]) -> dict[str, str]:
    with pytest.raises(ConfigError) as found:
        parse_pools({"shop": settings})
    return {".".join(map(str, problem.path)): problem.message for problem in found.value.problems}


def test_a_pool_with_a_source_has_no_queue_of_ours_but_a_name_for_its_work() -> None:
    assert the_pool(broker="redis://h/0").queue == "celery:celery"
    pool = the_pool(broker="amqp://h", queues=["default", "my_images"])
    assert pool.queue == "celery:default,my_images"
    assert pool.celery_queues == ("default", "my_images")
    again = PoolSpec.model_validate(pool.model_dump(mode="python", exclude_defaults=True))
    assert again.queue == pool.queue


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("sqs://key:secret@", "creates the queue"),
        ("azureservicebus://x", "creates the queue"),
        ("gcpubsub://projects/x", "can't tell"),
        ("memory://", "one process"),
        ("towline://h:7878", "leave source out"),
        ("towline+postgresql://u:secret@h/db", "leave source out"),
        ("http://h:7878", "leave source out"),
        ("localhost", "write the whole URL"),
    ],
)
def test_a_broker_that_can_not_be_read_is_refused_with_what_to_do(url: str, word: str) -> None:
    flaw = broker_flaw(url)
    assert word in flaw
    assert "secret" not in flaw.replace("secretary", "")
    assert mistakes_of({"source": {"celery": {"broker": url}}, "command": COMMAND, "slo": 1}) == {
        "pools.shop.source.celery.broker": flaw
    }


@pytest.mark.parametrize(
    "url", ["redis://:p@h/1", "rediss://h", "sentinel://h:1;sentinel://i:1", "amqps://h", "pgmq://h"]
)
def test_other_brokers_are_kombus_to_know(url: str) -> None:
    assert broker_flaw(url) == ""


def test_contradictions_are_named_at_their_place() -> None:
    celery = {"celery": {"broker": "redis://h"}}
    base = {"source": celery, "command": COMMAND, "slo": 1}
    assert "leave queue out" in mistakes_of({**base, "queue": "thumbs"})["pools.shop.queue"]
    assert "no tags" in mistakes_of({**base, "tags": ["a"]})["pools.shop.tags"]
    without = {"source": celery, "app": "tasks:app", "slo": 1}
    assert "give command" in mistakes_of(without)["pools.shop.app"]
    assert mistakes_of({"command": COMMAND, "slo": 1}) == {"pools.shop.queue": "is required: The queue it works on"}
    assert "give source" in mistakes_of({"queue": "celery:x", "command": COMMAND, "slo": 1})["pools.shop.queue"]
    neither = {"source": {"celery": {}}, "command": COMMAND, "slo": 1}
    assert "broker_env" in mistakes_of(neither)["pools.shop.source.celery"]


def test_a_broker_may_come_from_a_variable() -> None:
    source = the_pool(broker_env="SHOP_BROKER").celery_source
    assert source.url({"SHOP_BROKER": "redis://h/3"}) == "redis://h/3"
    with pytest.raises(ValueError, match="SHOP_BROKER is not set"):
        source.url({})
    with pytest.raises(ValueError, match="SHOP_BROKER: sqs"):
        source.url({"SHOP_BROKER": f"sqs://k:{SECRET}@h"})


def test_no_password_is_written_anywhere() -> None:
    text = f"""
        store: "memory:"
        pools:
          shop:
            source:
              celery: {{broker: "redis://:{SECRET}@h/0", management: "http://u:{SECRET}@h:15672"}}
            command: [celery]
            slo: 30s
    """
    project = parse(text, name="towline.yaml", directory=Path("/"))
    pool = project.pools["shop"]
    assert SECRET in pool.celery_source.url({})
    other = pool.model_copy(update={"source": None})
    said = [repr(pool), str(effective(project)), json.dumps(pool.model_dump(mode="json")), str(pool.model_dump())]
    said.append(str(changes_between({"shop": pool}, {"shop": other})))
    assert [line for line in said if SECRET in line] == []


def test_a_source_is_frozen_and_knows_its_keys() -> None:
    with pytest.raises(ValueError, match="frozen"):
        CelerySource(broker="redis://h").adopt = True  # type: ignore[misc]
    unknown = mistakes_of({"source": {"celery": {"brokr": "redis://h"}}, "command": COMMAND, "slo": 1})
    assert "did you mean 'broker'" in unknown["pools.shop.source.celery.brokr"]
