"""Text with lone surrogates or NUL is refused by the same error on all stores and over HTTP."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue, Queues
from queue_core.errors import InvalidRequestError
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion
from tests.support.commands import run_program
from tests.support.servers import a_server
from tests.support.stores.stores import STORES, opened

QUEUE = "work"
SURROGATE = os.fsdecode(b"caf\xe9")  # as Python gives an argument in Latin-1
Call = Callable[[Queues, Queue, str], object]
CALLS: dict[str, Call] = {
    "add, tag": lambda _, queue, text: queue.add(NewTask(tag=text)),
    "add, name": lambda _, queue, text: queue.add(NewTask(name=text)),
    "add, queue": lambda _, queue, text: queue.add(NewTask(queue=text)),
    "lease, tag": lambda _, queue, text: queue.lease(tags=TagFilter.of(text)),
    "lease, worker": lambda _, queue, text: queue.lease(worker=text),
    "exchange, worker": lambda _, queue, text: queue.exchange([], worker=text),
    "exchange, token": lambda _, queue, text: queue.exchange([Deletion(text)]),
    "renew": lambda _, queue, text: queue.renew(text),
    "release, token": lambda _, queue, text: queue.release(text),
    "release, reason": lambda _, queue, text: queue.release("1.2", dead_reason=text),
    "delete": lambda _, queue, text: queue.delete(text),
    "delete, then": lambda _, queue, text: queue.delete("1.2", then=[NewTask(tag=text)]),
    "delete by name": lambda _, queue, text: queue.delete_by_name(text),
    "redrive": lambda _, queue, text: queue.redrive(text),
    "tag stats": lambda _, queue, text: queue.tag_stats(after=text),
    "peek": lambda _, queue, text: queue.peek(names=[text]),
    "queue": lambda queues, _, text: queues.queue(text).stats(),
    "put queue": lambda queues, _, text: queues.put_queue(QueueSpec(text)),
    "put queue, emails": lambda queues, _, text: queues.put_queue(QueueSpec("other", user_emails=(text,))),
    "delete queue": lambda queues, _, text: queues.delete_queue(text),
    "observe": lambda queues, _, text: queues.observe(text),
    "observe, workers": lambda queues, _, text: queues.observe(QUEUE, workers=[text]),
    "retire": lambda queues, _, text: queues.retire_worker(text),
    "release worker": lambda queues, _, text: queues.release_worker(text),
    "lead, name": lambda queues, _, text: queues.lead(text, "holder", seconds=1),
    "lead, holder": lambda queues, _, text: queues.lead("name", text, seconds=1),
    "wait": lambda queues, _, text: queues.wait_ready([(QUEUE, TagFilter.of(text))], wait_seconds=0),
}


@pytest.fixture(params=(*STORES, "http"), scope="module")
def queues(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queues]:
    if request.param == "http":
        with a_server() as running, closing(HttpQueues(running.url)) as queues:
            yield queues
    else:
        with opened(request.param, tmp_path_factory.mktemp("store")) as store:
            queues = LocalQueues(QueueService(store))
            queues.put_queue(QueueSpec(QUEUE))
            yield queues


@pytest.mark.parametrize("text", [SURROGATE, "a\x00b"], ids=["surrogate", "nul"])
@pytest.mark.parametrize("call", CALLS)
def test_it_is_refused_and_the_error_shows_it(queues: Queues, call: str, text: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        CALLS[call](queues, queues.queue(QUEUE), text)
    assert repr(text)[1:-1] in str(refused.value).replace("\\\\", "\\")
    queue = queues.queue(QUEUE)
    assert queue.lease(tags=ANY) == []
    assert queue.stats().added_total == 0


@pytest.mark.parametrize(
    "words",
    [("add", QUEUE, "payload", "--tag"), ("add", QUEUE, "payload", "--name"), ("lease", QUEUE, "--worker")],
    ids=["tag", "name", "worker"],
)
def test_a_command_is_told_the_same_by_a_store_and_by_a_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = set()
    with a_server() as running:
        for place in (f"--store=sqlite:///{tmp_path / 'queue.db'}", f"--url={running.url}"):
            ended = run_program(words[0], place, *words[1:], SURROGATE, folder=tmp_path)
            assert ended.code == 65, ended.err
            told.add(ended.err.splitlines()[0])
    (line,) = told
    assert (
        line
        == f"error: {words[-1].removeprefix('--')} must be UTF-8 text, without lone surrogates and NUL: 'caf\\udce9'"
    )
