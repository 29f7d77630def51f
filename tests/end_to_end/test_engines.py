"""The machinery of the fault tests on the engines themselves: what is killed comes back, what is cut is cut."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest
import redis

from tests.support.cutting_proxy import a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.netns import NamespacesUnavailableError, NetnsHost, hosts
from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError

TABLE = "CREATE TABLE counted (id int PRIMARY KEY, number int)"
FIRST = "INSERT INTO counted VALUES (1, 0)"
NEXT = "UPDATE counted SET number = number + 1 RETURNING number"


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ExitStack() as stack:
        home = stack.enter_context(engines.memory_home("towline-"))
        starting = engines.postgresql(home) if request.param == "postgresql" else engines.redis(home, durable=True)
        try:
            started = stack.enter_context(starting)
        except EngineUnavailableError as error:
            pytest.skip(str(error))
        if started.name == "postgresql":
            with psycopg.connect(started.tcp_url, autocommit=True) as connection:
                connection.execute(TABLE)
                connection.execute(FIRST)
        yield started


@contextmanager
def counting(engine: Engine, *, port: int | None = None) -> Iterator[Callable[[], int]]:
    """Raises a number in the engine by one, durably, and returns it, over one connection. Any error is an `OSError`."""
    url = engine.tcp_url.replace(f":{engine.port}/", f":{port or engine.port}/")
    if engine.name == "redis":
        with closing(redis.Redis.from_url(url, socket_timeout=5, retry=None)) as client:
            client.ping()

            def count_in_redis() -> int:
                try:
                    return int(str(client.incr("counted")))
                except redis.RedisError as error:
                    raise OSError(error) from error

            yield count_in_redis
        return
    with closing(psycopg.connect(url, autocommit=True)) as connection:

        def count_in_postgresql() -> int:
            try:
                row = connection.execute(NEXT).fetchone()
            except psycopg.Error as error:
                raise OSError(error) from error
            assert row is not None
            return int(row[0])

        yield count_in_postgresql


def test_an_engine_that_was_killed_has_all_it_confirmed_at_the_same_address(engine: Engine) -> None:
    with counting(engine) as count:
        last = [count() for _ in range(20)][-1]
        first_process = engine.process.pid
        engine.restart()
    assert engine.process.pid != first_process
    with counting(engine) as count:
        assert count() == last + 1


def test_a_frozen_engine_goes_on_when_it_is_thawed(engine: Engine) -> None:
    with counting(engine) as count:
        last = count()
        engine.freeze()
        try:
            eventually(lambda: {member.status() for member in engine.family()} <= {"stopped", "zombie"})
        finally:
            engine.thaw()
        assert count() == last + 1


@pytest.mark.parametrize(("fate", "arrived"), [("drop", 0), ("lose answer", 1)])
def test_a_message_that_is_cut_arrives_or_does_not(engine: Engine, fate: str, arrived: int) -> None:
    with a_tcp_proxy(engine.host, engine.port) as wire, counting(engine) as count:
        with counting(engine, port=wire.port) as count_over_wire:
            last = count_over_wire()
            wire.cut_next(fate)  # type: ignore[arg-type]
            with pytest.raises(OSError, match=r"."):
                count_over_wire()
        assert wire.cuts == 1
        assert count() == last + arrived + 1


def can_reach(host: NetnsHost, engine: Engine) -> bool:
    probe = f"import socket; socket.create_connection(({engine.host!r}, {engine.port}), timeout=0.5)"
    command = host.command([sys.executable, "-S", "-c", probe])
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_a_host_that_is_cut_off_is_back_when_its_link_is_mended() -> None:
    try:
        with (
            hosts("store", "client") as (store, client),
            engines.memory_home("towline-") as home,
            engines.redis(home, addresses=[store.address], namespace=store.namespace) as engine,
        ):
            assert can_reach(client, engine)
            store.cut()
            assert not can_reach(client, engine)
            store.mend()
            eventually(lambda: can_reach(client, engine))
    except (NamespacesUnavailableError, EngineUnavailableError) as error:
        pytest.skip(str(error))
