"""The progress of `towline migrate`, seen from the servers of both stores."""

from pathlib import Path

from queue_core.clock import ManualClock
from queue_core.stores import open_store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.transfer.registered import RENEW_SECONDS, RegisteredProgress
from queue_core.unit.service import QueueService
from tests.console.visits import Visitor
from tests.support.commands import run_program
from tests.support.servers import a_server


def test_a_move_is_shown_at_both_stores_and_that_it_is_done(tmp_path: Path) -> None:
    old = open_store(f"sqlite:///{tmp_path}/old.db")
    QueueService(old).run(lambda work: work.put_queue(QueueSpec("work")))
    QueueService(old).run(lambda work: work.add("work", [NewTask(b"x") for _ in range(3)]))
    with a_server(old) as server:
        looking = Visitor(server.port)
        assert "No migration is running" in looking.get("moves").text
        moved = run_program(
            "migrate",
            *("--from", f"sqlite:///{tmp_path}/old.db", "--to", f"sqlite:///{tmp_path}/new.db"),
            folder=tmp_path,
        )
        assert moved.code == 0, moved.err
        assert "work done 3 of 3" in looking.get("moves").text
    with a_server(open_store(f"sqlite:///{tmp_path}/new.db"), spec=QueueSpec("other")) as server:
        assert "work done 3 of 3" in Visitor(server.port).get("moves").text


def test_progress_is_registered_every_two_seconds_and_passed_on_at_once() -> None:
    clock, store, seen = ManualClock(), MemoryStore(), list[tuple[str, int, int]]()
    progress = RegisteredProgress(store, MemoryStore(), lambda *told: seen.append(told), clock=clock)
    with a_server(store) as server:
        looking = Visitor(server.port)
        progress("work", 1_000, 5_000)
        progress("work", 2_000, 5_000)
        assert "work moving 1,000 of 5,000" in looking.get("moves").text
        clock.advance(RENEW_SECONDS)
        progress("work", 3_000, 5_000)
        assert "work moving 3,000 of 5,000" in looking.get("moves").text
    assert [done for _, done, _ in seen] == [1_000, 2_000, 3_000]
