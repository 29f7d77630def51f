"""Real brokers with a real worker: they are read and nothing of theirs is changed."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Cause, death_notice
from orchestrator.sources.celery.readers import reader_of, virtual_host_of
from orchestrator.sources.celery.source import CeleryFleets
from tests.support.eventually import eventually
from tests.support.fleet.celery_program import CeleryProgram
from tests.support.rabbitmq import RabbitNode, rabbitmq
from tests.support.stores.engine_process import EngineUnavailableError
from tests.support.stores.engines import free_port, redis

CLOCK = SystemMonotonicClock()
LONG_SECONDS = 120.0
NODE_NAME = "shop-1"


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitNode]:
    try:
        with rabbitmq(management=True) as node:
            yield node
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with redis(tmp_path_factory.mktemp("redis")) as engine:
            yield engine.tcp_url
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("redis_url" if request.param == "redis" else "rabbit")
    return url if isinstance(url, str) else url.url


@pytest.fixture
def fleets() -> Iterator[CeleryFleets]:
    found = CeleryFleets(environment={}, clock=CLOCK, pause=time.sleep, rng=random.Random(1))
    yield found
    found.close()


def shop(broker: str, **source: object) -> PoolSpec:
    settings = {"celery": {"broker": broker, **source}}
    return PoolSpec.model_validate(
        {"name": "shop", "source": settings, "command": ["celery"], "slo": 10.0, "workers": {"max": 4}}
    )


def sampler(fleets: CeleryFleets, pool: PoolSpec) -> Callable[[], QueueSample]:
    return lambda: fleets.sample(pool, workers=[NODE_NAME], now=CLOCK.monotonic())


def is_there(url: str, queue: str) -> bool:
    with kombu.Connection(url) as connection:
        try:
            connection.channel().queue_declare(queue, passive=True)
        except connection.channel_errors:
            return False
    return True


def send(program: CeleryProgram, count: int, *, seconds: float = 0.0, queue: str = "celery", **options: object) -> None:
    program.send(range(count), seconds=seconds, added=CLOCK.wall_seconds(), queue=queue, **options)


def test_depths_are_read_and_no_queue_is_made(broker: str, tmp_path: Path) -> None:
    program = CeleryProgram(tmp_path, broker)
    send(program, 5, queue="depths")
    reader = reader_of(broker, {})
    found = reader.read(["depths", "absent"], wall_seconds=CLOCK.wall_seconds())
    reader.close()
    assert {queue: depth.ready for queue, depth in found.items()} == {"depths": 5, "absent": 0}
    assert not is_there(broker, "absent")


def test_redis_lists_of_all_priorities_count_under_their_prefix(redis_url: str) -> None:
    options = {"global_keyprefix": "shop:", "priority_steps": [0, 5], "sep": ":"}
    with kombu.Connection(redis_url, transport_options=options) as connection:
        producer = connection.Producer()
        for priority in (0, 0, 5, 9):
            producer.publish({}, routing_key="prios", priority=priority, declare=[kombu.Queue("prios")])
    reader = reader_of(redis_url, options)
    assert reader.read(["prios"], wall_seconds=0.0)["prios"].ready == 4
    reader.close()
    reader = reader_of(redis_url, {})
    assert reader.read(["prios"], wall_seconds=0.0)["prios"].ready == 0
    reader.close()


def test_redis_shows_etas_and_the_first_task_and_is_left_as_it_was(redis_url: str, tmp_path: Path) -> None:
    import redis as driver

    program = CeleryProgram(tmp_path, redis_url)
    send(program, 300, queue="etas", countdown=3600)
    client = driver.Redis.from_url(redis_url)
    before = {key: client.type(key) for key in client.scan_iter()}
    reader = reader_of(redis_url, {})
    found = reader.read(["etas"], wall_seconds=CLOCK.wall_seconds())["etas"]
    assert (found.ready, found.future, found.due) == (300, 300, 0)
    send(program, 100, queue="etas")
    found = reader.read(["etas"], wall_seconds=CLOCK.wall_seconds())["etas"]
    assert 0 < found.due <= 400
    assert len(found.head) == 36
    reader.close()
    assert {key: client.type(key) for key in client.scan_iter()} == before
    client.close()


def test_an_eta_crowd_starts_no_worker(redis_url: str, tmp_path: Path, fleets: CeleryFleets) -> None:
    send(CeleryProgram(tmp_path, redis_url), 1_000, queue="crowd", countdown=3600)
    sample = fleets.sample(shop(redis_url, queues=["crowd"]), workers=(), ahead_seconds=60.0, now=CLOCK.monotonic())
    assert (sample.ready, sample.delayed, sample.waiting, sample.upcoming) == (0, 1_000, (), ())


def test_another_transport_is_read_without_a_declare(tmp_path: Path) -> None:
    for folder in ("in", "processed", "control"):
        (tmp_path / folder).mkdir()
    options = {
        "data_folder_in": str(tmp_path / "in"),
        "data_folder_out": str(tmp_path / "in"),
        "control_folder": str(tmp_path / "control"),
    }
    with kombu.Connection("filesystem://", transport_options=options) as connection:
        connection.SimpleQueue("files").put({})
    reader = reader_of("filesystem://", options)
    assert reader.read(["files", "absent"], wall_seconds=0.0)["files"].ready == 1
    reader.close()
    assert len(list((tmp_path / "in").iterdir())) == 1


def has_most(seen: QueueSample) -> bool:
    """Whether of six tasks most are seen, and one of them runs."""
    return seen.ready + seen.in_flight >= 4 and seen.in_flight == 1


def test_a_worker_is_heard_and_what_it_fetched_is_not_hidden(broker: str, tmp_path: Path, fleets: CeleryFleets) -> None:
    program, pool = CeleryProgram(tmp_path, broker), shop(broker)
    finished: list[float] = []

    def sample() -> QueueSample:
        seen = fleets.sample(pool, workers=[NODE_NAME], now=CLOCK.monotonic())
        finished.extend(lease.held_seconds for lease in seen.finished)
        return seen

    def is_done() -> bool:
        seen = sample()
        return seen.ready == 0 and seen.in_flight == 0 and len(finished) == 6

    with program.worker(NODE_NAME, prefetch=4) as process:
        eventually(lambda: NODE_NAME in sample().first_seen_seconds_ago, seconds=LONG_SECONDS)
        send(program, 6, seconds=0.8)
        # One runs, four are fetched with it at most, and the rest is in the queue: none is lost sight of.
        eventually(lambda: has_most(sample()), seconds=LONG_SECONDS)
        assert fleets.retire(NODE_NAME) is False  # busy: it goes on taking
        eventually(is_done, seconds=LONG_SECONDS)
        assert 0.3 < sum(finished) / 6 < 3.0
        assert [line.number for line in program.lines() if line.word == "end"] == list(range(6))
        assert fleets.retire(NODE_NAME) is True
        send(program, 1)
        eventually(lambda: sample().ready == 1, seconds=LONG_SECONDS)  # it takes nothing any more
        later = CeleryFleets(environment={}, clock=CLOCK, pause=time.sleep, rng=random.Random(1))
        eventually(
            # Another supervisor, which does not end it, lets it take tasks again.
            lambda: later.sample(pool, workers=[NODE_NAME], now=CLOCK.monotonic()) and len(program.lines()) == 14,
            seconds=LONG_SECONDS,
        )
        later.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_SECONDS) == 0


def test_rabbitmqs_api_adds_what_workers_hold(rabbit: RabbitNode, tmp_path: Path) -> None:
    with kombu.Connection(rabbit.url) as connection:
        queue = kombu.Queue("held", kombu.Exchange("held"), "held", durable=False)
        producer = connection.Producer()
        for _ in range(3):
            producer.publish({}, exchange=queue.exchange, routing_key="held", declare=[queue], timestamp=1_000)
        holder = queue(connection.channel())
        assert holder.get() is not None
        reader = reader_of(rabbit.url, {}, management=rabbit.management_url)
        eventually(lambda: reader.read(["held", "absent"], wall_seconds=0.0)["held"].unacked, seconds=LONG_SECONDS)
        found = reader.read(["held"], wall_seconds=0.0)["held"]
        assert (found.ready, found.unacked) == (2, 1)
        reader.close()
    away = reader_of(rabbit.url, {}, management=f"http://guest:guest@127.0.0.1:{free_port()}")
    assert away.read(["held"], wall_seconds=0.0)["held"].unacked is None
    away.close()
    assert virtual_host_of("amqp://h/shop") == "shop"
    assert virtual_host_of("amqp://h//") == "/"


@pytest.mark.parametrize("scheme", ["redis://:s3cr3t@", "amqp://u:s3cr3t@", "pyamqp://u:s3cr3t@"])
def test_a_broker_that_is_away_is_an_error_and_never_zero(scheme: str, fleets: CeleryFleets) -> None:
    pool = shop(f"{scheme}127.0.0.1:{free_port()}/")
    with pytest.raises(SourceUnavailableError, match="can't read the queues at") as error:
        fleets.sample(pool, workers=(), now=CLOCK.monotonic())
    assert "s3cr3t" not in str(error.value)
    with pytest.raises(SourceUnavailableError):
        fleets.sample(pool, workers=(), now=CLOCK.monotonic())


def test_a_missing_variable_is_an_error_that_names_it(fleets: CeleryFleets) -> None:
    settings = {"name": "shop", "source": {"celery": {"broker_env": "SHOP"}}, "command": ["x"], "slo": 1.0}
    with pytest.raises(SourceUnavailableError, match="SHOP is not set"):
        fleets.sample(PoolSpec.model_validate(settings), workers=(), now=CLOCK.monotonic())


def test_tasks_of_a_dead_worker_are_put_back_where_that_is_asked_for(
    redis_url: str, tmp_path: Path, fleets: CeleryFleets
) -> None:
    program = CeleryProgram(tmp_path, redis_url)
    pool = shop(redis_url, restore_lost=True)
    sample = sampler(fleets, pool)
    with program.worker(NODE_NAME):
        send(program, 1, seconds=300.0)
        eventually(lambda: sample().in_flight == 1 and program.lines(), seconds=LONG_SECONDS)
        watch = fleets._watch(pool)
        eventually(lambda: (node := watch.node_of(NODE_NAME)) is not None and node.task_ids, seconds=LONG_SECONDS)
    notice = death_notice(NODE_NAME, Cause.SIGNALLED, "killed", ending="killed", is_on_this_host=True)
    (released,) = fleets.release_held_by(NODE_NAME, notice)
    assert released.queue == "celery:celery"
    left: Callable[[], QueueSample] = lambda: fleets.sample(pool, workers=(), now=CLOCK.monotonic())  # noqa: E731
    eventually(lambda: left().ready, seconds=LONG_SECONDS)
    found = left()
    assert (found.ready, found.in_flight) == (1, 0)
    assert fleets.release_held_by(NODE_NAME, notice) == ()
