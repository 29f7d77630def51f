"""A store that dies and returns: nothing is lost or doubled, and callers and workers go on within seconds."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queues
from queue_core.clock import SystemClock
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.servers import a_server
from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError
from tests.support.stores.verb_table import VERBS, look, prepare

RESUME_SECONDS = 5.0
QUEUE = "thumbs"


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A durable engine of the module's own, to be killed."""
    with ExitStack() as stack:
        home = stack.enter_context(engines.memory_home("towline-"))
        starting = engines.postgresql(home) if request.param == "postgresql" else engines.redis(home, durable=True)
        try:
            yield stack.enter_context(starting)
        except EngineUnavailableError as error:
            pytest.skip(str(error))


@contextmanager
def opened(engine: Engine) -> Iterator[LocalQueues]:
    with closing(LocalQueues(QueueService(open_store(engine.tcp_url)))) as queues:
        yield queues


@contextmanager
def reached(engine: Engine, how: str) -> Iterator[Queues]:
    if how == "library":
        with opened(engine) as queues:
            yield queues
        return
    with a_server(open_store(engine.tcp_url)) as server, closing(HttpQueues(server.url)) as queues:
        yield queues


@pytest.mark.parametrize("how", ["library", "server"])
def test_every_verb_called_while_the_store_is_away_is_done_once_it_returns(engine: Engine, how: str) -> None:
    clock = SystemClock()
    with opened(engine) as direct, reached(engine, how) as queues, ThreadPoolExecutor(len(VERBS)) as pool:
        prepared, afters = {}, {}
        for verb, act in VERBS.items():
            name = f"{how}-{verb}".replace(" ", "-").replace(",", "")
            undisturbed = prepare(direct, f"{name}-undisturbed", act_on=direct)
            act(undisturbed)
            afters[verb] = look(direct, undisturbed.queue.name)
            prepared[verb] = prepare(direct, name, act_on=queues)
            queues.queue(name).stats()
        engine.kill()
        calls: dict[str, Future[object]] = {verb: pool.submit(VERBS[verb], on) for verb, on in prepared.items()}
        engine.start()
        back = clock.monotonic()
        for call in calls.values():
            call.result(timeout=2 * RESUME_SECONDS)
        assert clock.monotonic() - back < RESUME_SECONDS
        assert {verb: look(direct, on.queue.name) for verb, on in prepared.items()} == afters


@pytest.mark.parametrize("how", ["library", "server"])
def test_a_worker_goes_on_within_seconds_of_the_stores_return(engine: Engine, how: str, tmp_path: Path) -> None:
    with opened(engine) as direct, ExitStack() as stack:
        direct.put_queue(QueueSpec(QUEUE, lease_seconds=30.0))
        url = engine.tcp_url
        if how == "server":
            url = stack.enter_context(a_server(open_store(engine.tcp_url))).url
        stack.enter_context(a_worker(url, tag=how, log=tmp_path / "worker.log"))
        queue = direct.queue(QUEUE)
        held, before, after = (tmp_path / name for name in ("held", "before", "after"))
        queue.add([NewTask(f"hold {held}".encode(), tag=how)])
        eventually(held.exists, seconds=20.0)
        queue.add([NewTask(f"note {before}".encode(), tag=how)])
        engine.kill()
        Path(f"{held}.go").touch()  # it is done while there is nobody to tell
        engine.start()
        back = SystemClock().now()
        eventually(before.exists, seconds=RESUME_SECONDS)
        queue.add([NewTask(f"note {after}".encode(), tag=how)])
        eventually(after.exists)
        eventually(lambda: not queue.stats().in_flight)
        assert float(before.read_text().split()[2]) * 1e6 - back < RESUME_SECONDS * 1e6
        assert [len(path.read_text().splitlines()) for path in (held, before, after)] == [1, 1, 1]
        assert queue.stats().ready == 0


@contextmanager
def a_worker(url: str, *, tag: str, log: Path) -> Iterator[None]:
    """`towline work`, one task at a time."""
    command = ["-m", "orchestrator", "work", "tests.support.fleet.recording_app:app", "--queue", QUEUE, "--tag", tag]
    environment = {**program_environment(), "TOWLINE_URL": url, "TOWLINE_WORKER": f"worker-{tag}-{os.getpid()}"}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *command], env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait()
