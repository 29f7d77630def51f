"""A connection to the store that breaks at any message of any verb: what the caller is told is what happened, once."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queues
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.stores import open_store
from queue_core.task import NewTask
from queue_core.unit.service import QueueService
from tests.support.cutting_proxy import CuttingTcpProxy, TcpFate, a_tcp_proxy
from tests.support.servers import a_server
from tests.support.stores.engines import EngineUnavailableError
from tests.support.stores.shared_engines import EngineName, SharedEngines
from tests.support.stores.verb_table import VERBS, look, prepare

MOST_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class Ways:
    """A store reached directly, and over a wire that is cut: by the library, or through a server."""

    direct: Queues
    wired: Queues
    wire: CuttingTcpProxy


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def engine_name(request: pytest.FixtureRequest) -> EngineName:
    name: EngineName = request.param
    return name


@pytest.fixture(scope="module", params=["library", "server"])
def ways(request: pytest.FixtureRequest, engine_name: EngineName, shared_engines: SharedEngines) -> Iterator[Ways]:
    try:
        url = shared_engines.new_url(engine_name)
        engine = shared_engines.engine(engine_name)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        wire = stack.enter_context(a_tcp_proxy(engine.host, engine.port))
        direct = stack.enter_context(closing(LocalQueues(QueueService(open_store(url)))))
        store = open_store(url.replace(f":{engine.port}/", f":{wire.port}/"))
        wired: Queues
        if request.param == "library":
            wired = stack.enter_context(closing(LocalQueues(QueueService(store))))
        else:
            wired = stack.enter_context(closing(HttpQueues(stack.enter_context(a_server(store)).url)))
        yield Ways(direct, wired, wire)


@pytest.mark.parametrize("fate", ["drop", "lose answer"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_connection_breaks_is_done_as_told_and_once(ways: Ways, verb: str, fate: TcpFate) -> None:
    act = VERBS[verb]
    undisturbed = prepare(ways.direct, _name(verb, fate, "undisturbed"), act_on=ways.direct)
    before = look(ways.direct, undisturbed.queue.name)
    act(undisturbed)
    after = look(ways.direct, undisturbed.queue.name)
    for number in range(MOST_MESSAGES):
        on = prepare(ways.direct, _name(verb, fate, str(number)), act_on=ways.wired)
        ways.wire.cut_next(fate, after=number)
        try:
            act(on)
            may_be = [after]
        except OutcomeUnknownError:
            may_be = [before, after]
        except StoreUnavailableError:
            may_be = [before]
        was_met = not ways.wire.is_armed
        ways.wire.disarm()
        assert look(ways.direct, on.queue.name) in may_be, f"cut at message {number}"
        if not was_met:
            assert may_be == [after]
            return
    pytest.fail(f"{verb} took more than {MOST_MESSAGES} messages")


def test_a_named_task_whose_add_was_cut_is_there_once_after_a_second_try(ways: Ways) -> None:
    name = _name("again", "any", "")
    on = prepare(ways.direct, name, act_on=ways.wired)
    for number in range(MOST_MESSAGES):
        ways.wire.cut_next("lose answer", after=number % 4)
        task = NewTask(b"", name=f"task-{number}")
        try:
            on.queue.add([task])
        except StoreUnavailableError:
            on.queue.add([task])
        ways.wire.disarm()
    names = [task.name for task in ways.direct.queue(name).peek(limit=100).tasks if str(task.name).startswith("task-")]
    assert sorted(map(str, names)) == sorted(f"task-{number}" for number in range(MOST_MESSAGES))


def _name(verb: str, fate: str, number: str) -> str:
    """A queue of its own for every try, in a store that the whole module shares; fit for a queue's name."""
    return f"{verb}-{fate}-{number}".replace(" ", "-").replace(",", "")
