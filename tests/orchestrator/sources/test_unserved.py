"""Tags of waiting tasks that no pool works on, as each store counts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import PresentWorker, UnservedTag
from orchestrator.sources import pull_queue
from orchestrator.sources.live_fleet import MAX_UNSERVED_QUEUES, unserved_now
from orchestrator.sources.pull_queue import QueueSource, as_reported
from queue_core.client.local_calls import LocalQueues
from queue_core.config.pool_tags import PoolTags
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from queue_core.verbs.served_tags import KIND, registered_tags
from tests.support.fleet.fleet_builders import a_pool
from tests.support.stores.stores import STORES, opened

RESIZE = a_pool(tags=["resize"])


@pytest.fixture(params=STORES)
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalQueues]:
    """The queues of each store in turn, with the queue of the pools."""
    with opened(request.param, tmp_path) as store:
        made = LocalQueues(QueueService(store))
        made.put_queue(QueueSpec("thumbs"))
        yield made


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[LocalQueues]:
    with opened("memory", tmp_path) as store:
        made = LocalQueues(QueueService(store))
        made.put_queue(QueueSpec("thumbs"))
        yield made


def add(queues: LocalQueues, *tags: str | None, delay: float | None = None) -> None:
    queues.queue("thumbs").add([NewTask(b"x", tag=tag, delay_seconds=delay) for tag in tags])


def unserved(queues: LocalQueues, *pools: object) -> list[UnservedTag]:
    return list(QueueSource(queues).unserved(pools or [RESIZE]))  # type: ignore[arg-type]


def test_every_store_counts_the_tasks_of_tags_that_no_pool_works_on(queues: LocalQueues) -> None:
    add(queues, "resize", "rezise", "rezise", None, "mail")
    add(queues, "rezise", delay=60.0)
    found = {one.tag: (one.tasks, one.leases) for one in unserved(queues)}
    assert found == {None: (1, 0), "mail": (1, 0), "rezise": (3, 0)}
    (typed,) = [one for one in unserved(queues) if one.tag == "rezise"]
    assert typed.sentence == "3 tasks have the tag `rezise`, and no pool works on that tag: did you mean `resize`?"


def test_every_store_leaves_out_a_tag_that_somebody_leases_and_one_that_is_gone(queues: LocalQueues) -> None:
    add(queues, "mail", "mail", "gone")
    queue = queues.queue("thumbs")
    queue.lease(tags=TagFilter.of("mail"))
    queue.purge(tags=TagFilter.of("gone"))
    assert unserved(queues) == []


def test_a_pool_for_any_tag_or_for_the_untagged_serves_them(memory: LocalQueues) -> None:
    add(memory, "mail", None)
    assert unserved(memory, RESIZE, a_pool("all")) == []
    assert [one.tag for one in unserved(memory, RESIZE, a_pool("plain", untagged=True))] == ["mail"]


def test_all_tags_are_read_in_pages_and_of_very_many_only_the_first(
    memory: LocalQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_queue, "TAGS_AT_ONCE", 3)
    add(memory, *[f"tag-{number:02}" for number in range(40)])
    assert [one.tag for one in unserved(memory)] == [f"tag-{number:02}" for number in range(30)]


def a_snapshot(*published: dict[str, object], pools: int = 1) -> dict[str, object]:
    settings = {"queue": "thumbs", "tags": ["resize"]}
    names = ["resize", *[f"pool-{number}" for number in range(1, pools)]]
    shown = {name: {"settings": settings | ({"queue": name} if name != "resize" else {})} for name in names}
    return {"pools": shown, "unserved": list(published)}


def test_a_command_shows_the_tags_of_now_and_of_leased_ones_those_that_the_supervisor_names(
    memory: LocalQueues,
) -> None:
    add(memory, "rezise", "mail")
    (lease,) = memory.queue("thumbs").lease(tags=TagFilter.of("mail"))
    memory.queue("thumbs").release(lease, delay_seconds=0.0)
    assert [one["tag"] for one in unserved_now(memory, a_snapshot())] == ["rezise"]
    published = {"queue": "thumbs", "tag": "mail", "tasks": 9, "sentence": "of before"}
    assert [(one["tag"], one["tasks"]) for one in unserved_now(memory, a_snapshot(published))] == [
        ("mail", 1),
        ("rezise", 1),
    ]


def test_of_many_queues_a_command_shows_what_the_supervisor_published(memory: LocalQueues) -> None:
    published = {"queue": "thumbs", "tag": "mail", "tasks": 9, "sentence": "of before"}
    assert unserved_now(memory, a_snapshot(published, pools=MAX_UNSERVED_QUEUES + 1)) == [published]
    assert unserved_now(memory, a_snapshot(published, pools=2)) == []


def test_a_tag_that_a_worker_beside_the_pools_asks_for_is_served(memory: LocalQueues) -> None:
    add(memory, "mail", "fax", None)
    heard = [
        PresentWorker("by-hand", 2.0, waits=True, tags=("mail",)),
        PresentWorker("gone", 61.0, waits=True, tags=()),
        PresentWorker("of-an-older-server", 0.0, waits=True),
    ]
    source = QueueSource(memory, presence=lambda _queue, _prefix: heard)
    assert {one.tag for one in source.unserved([RESIZE])} == {"fax", None}


def test_clients_find_the_tags_that_a_supervisor_registered_until_the_pool_is_gone(queues: LocalQueues) -> None:
    source = QueueSource(queues)
    source.publish([RESIZE, a_pool("plain", untagged=True), a_pool("all")])
    assert {name: tags.kind for name, tags in registered_tags(queues.registrations(KIND), "thumbs").items()} == {
        "all": "any",
        "plain": "untagged",
        "resize": "tags",
    }
    assert registered_tags(queues.registrations(KIND), "another") == {}
    known = as_reported(queues, [PoolTags("resize", "thumbs", ANY), PoolTags("new", "thumbs", TagFilter.of("x"))])
    assert [pool.tags for pool in known] == [TagFilter.of("resize"), TagFilter.of("x")]
    source.publish([], gone=["resize", "plain"])
    assert list(registered_tags(queues.registrations(KIND), "thumbs")) == ["all"]


def test_more_tags_than_a_registration_holds_are_not_registered(memory: LocalQueues) -> None:
    QueueSource(memory).publish([RESIZE])
    QueueSource(memory).publish([a_pool(tags=[f"tag-{number:0200}" for number in range(20)])])
    assert registered_tags(memory.registrations(KIND), "thumbs") == {}


def test_tasks_are_no_arrivals_because_a_pool_works_on_other_tags_than_before(memory: LocalQueues) -> None:
    source, everything = QueueSource(memory), a_pool("resize")
    add(memory, *["resize"] * 3, *[None] * 20)
    memory.queue("thumbs").lease(2, tags=TagFilter.of("resize"))
    samples = [source.sample(pool, workers=(), now=Monotonic(0.0)) for pool in (everything, RESIZE, everything)]
    assert [(one.ready, one.arrivals) for one in samples] == [(21, 0), (1, 0), (21, 0)]
