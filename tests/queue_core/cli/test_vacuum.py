"""`towline vacuum`: the file of a store shrinks to what it holds, with a server and without."""

import contextlib
from pathlib import Path
from typing import cast

import pytest

from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue
from queue_core.server.base.options import ServeOptions
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs.roles import Role
from tests.queue_core.server.test_roles import SECRETS, TOKENS
from tests.support.commands import Commands
from tests.support.servers import QUEUE, a_server

LEFT = 3
PAYLOAD = b"x" * 10_000
URL = "sqlite:///queue.db"


def fill_and_finish(queue: Queue) -> None:
    """Add tasks, and finish all but `LEFT`."""
    queue.add([NewTask(PAYLOAD) for _ in range(300)])
    queue.delete(queue.lease(300 - LEFT))


@pytest.fixture
def path(towline: Commands) -> Path:
    queues = open_queues(f"sqlite:///{towline.folder}/queue.db")
    queues.put_queue(QueueSpec(QUEUE))
    fill_and_finish(queues.queue(QUEUE))
    queues.close()
    return towline.folder / "queue.db"


def test_a_file_shrinks_to_what_it_holds(towline: Commands, path: Path) -> None:
    before = path.stat().st_size
    shown = towline("vacuum", "--store", URL, "--json")
    assert shown.json == {"size_bytes_before": before, "size_bytes": path.stat().st_size}
    assert path.stat().st_size < before // 10
    again = towline("vacuum", "--store", URL)
    assert (again.code, again.out, "0 B freed" in again.err) == (0, "", True)
    store = open_store(f"sqlite:///{path}")
    assert (store.check().tasks, store.check().problems) == (LEFT, ())
    store.close()


def test_a_server_shrinks_the_file_it_has_open_and_goes_on(towline: Commands, path: Path) -> None:
    with a_server(open_store(f"sqlite:///{path}")) as server, contextlib.closing(server.queue()) as queue:
        before = path.stat().st_size
        shown = towline("vacuum", "--url", server.url, "--json")
        assert cast("dict[str, int]", shown.json)["size_bytes"] < before // 10
        queue.add(b"one more")
        assert len(queue.lease(10)) == LEFT + 1


@pytest.mark.parametrize("url", ["postgresql://localhost/queue", "redis://localhost:6379/0"])
def test_a_store_that_is_no_file_is_not_vacuumed_and_the_reason_is_given(towline: Commands, url: str) -> None:
    shown = towline("vacuum", "--store", url)
    assert (shown.code, "is not to be vacuumed" in shown.err) == (65, True)


def test_only_an_admin_has_a_server_shrink_its_file(towline: Commands, path: Path) -> None:
    with a_server(open_store(f"sqlite:///{path}"), options=ServeOptions(tokens=TOKENS)) as server:
        for role in Role:
            answer = server.ask(
                "POST",
                "/v1/vacuum",
                b"{}",
                headers=[("content-type", "application/json"), ("authorization", f"Bearer {SECRETS[role]}")],
            )
            assert answer.status == (200 if role is Role.ADMIN else 403)
