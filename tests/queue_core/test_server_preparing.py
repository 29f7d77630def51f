"""Answers are made ready while the disk writes, and leave only when what they tell is durable."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.clock import ManualClock
from queue_core.errors import OutcomeUnknownError, QueueError, StoreUnavailableError
from queue_core.server.events import ANSWER_FAILED
from queue_core.server.hot import MAX_PREPARED_LEASES
from queue_core.server.loop_turns import MAX_PREPARED
from queue_core.service import QueueService
from queue_core.store import Meanwhile, Ticket
from queue_core.stores.sqlite.durable import FileSyncer, GroupSync
from queue_core.task import NewTask
from tests.support.servers import QUEUE, WORK, a_server
from tests.support.shared_turns import Shared, all_told
from tests.support.slow_disk import SlowDisk
from tests.support.sqlite_stores import HeldSyncer


def test_an_answer_is_made_ready_before_its_outcome_is_durable_and_told_after() -> None:
    async def main() -> None:
        shared = Shared()
        seen: list[tuple[object, int, int]] = []

        def prepare(outcome: object) -> None:
            seen.append((outcome, shared.store.durable, len(shared.told)))

        await shared.warm()
        shared.store.durable = 0
        shared.submit("first", prepare=prepare)
        shared.submit("second", prepare=prepare)
        await all_told(shared, 2)
        assert seen == [("_6", 0, 0), ("_7", 0, 0)]
        assert shared.told == {"first": "_6", "second": "_7"}
        assert shared.store.durable == 1

    asyncio.run(main())


def test_as_many_answers_are_made_ready_as_a_disk_leaves_time_for() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        seen: list[object] = []
        for number in range(MAX_PREPARED + 3):
            shared.submit(f"{number}")  # of these none is
            shared.submit(f"{number} ready", prepare=seen.append)
        await all_told(shared, 2 * MAX_PREPARED + 6)
        assert seen == [shared.told[f"{number} ready"] for number in range(MAX_PREPARED)]

    asyncio.run(main())


def test_an_answer_that_could_not_be_made_ready_keeps_nobody_from_theirs() -> None:
    async def main() -> None:
        def broken(outcome: object) -> None:
            raise ValueError(outcome)

        shared = Shared()
        await shared.warm()
        shared.submit("broken", prepare=broken)
        shared.submit("whole")
        with capture_logs() as logs:
            await all_told(shared, 2)
        assert [log["event"] for log in logs] == [ANSWER_FAILED]
        assert shared.told == {"broken": "_6", "whole": "_7"}

    asyncio.run(main())


def test_what_was_made_ready_is_not_sent_when_the_disk_fails() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        seen: list[object] = []
        shared.store.sync_failure = StoreUnavailableError("no")
        shared.submit("first", prepare=seen.append)
        with capture_logs():
            await all_told(shared, 1)
        assert seen == ["_6"]
        assert isinstance(shared.told["first"], OutcomeUnknownError)

    asyncio.run(main())


class Watched(SlowDisk):
    """A disk that may fail once answers were made ready, and tells how often it was given something to do meanwhile."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.meanwhiles = 0
        self.fails_meanwhile: QueueError | None = None

    def sync(self, ticket: Ticket, *, meanwhile: Meanwhile | None = None) -> None:
        self.meanwhiles += meanwhile is not None
        super().sync(ticket, meanwhile=meanwhile)
        if meanwhile is not None and self.fails_meanwhile is not None:
            raise self.fails_meanwhile


def _body(**members: object) -> bytes:
    return json.dumps(members).encode()


def _added(store: Watched, payloads: Sequence[bytes]) -> None:
    service = QueueService(store, clock=store.clock)
    service.run(lambda turn: turn.put_queue(WORK))
    service.run(lambda turn: turn.add(QUEUE, [NewTask(payload) for payload in payloads]))


@pytest.mark.parametrize("count", [1, MAX_PREPARED_LEASES, MAX_PREPARED_LEASES + 1])
def test_answers_are_the_same_made_ready_or_not(count: int) -> None:
    payloads = [bytes([number]) * 10 for number in range(2 * count)]
    answers = []
    for lets_prepare in (True, False):
        store = Watched()
        _added(store, payloads)
        if not lets_prepare:
            store.sync = lambda ticket, *, meanwhile=None: None  # type: ignore[method-assign]
        with a_server(store) as server:
            leased = server.ask("POST", f"/v1/queues/{QUEUE}/lease", _body(count=count, worker="w")).json()
            tokens = [{"token": lease["token"]} for lease in leased["leases"]]  # type: ignore[attr-defined]
            lost = [*tokens, {"token": "999.1"}]
            exchange = _body(count=count, worker="w", deletions=lost)
            answers.append([leased, server.ask("POST", f"/v1/queues/{QUEUE}/exchange", exchange).json()])
        assert (store.meanwhiles > 0) == lets_prepare
    assert answers[0] == answers[1]
    assert answers[0][1]["lost"] == ["999.1"]


def test_a_lease_whose_disk_failed_after_its_answer_was_ready_is_no_lease_to_its_caller() -> None:
    store = Watched()
    _added(store, [b"x"])
    store.fails_meanwhile = StoreUnavailableError("the disk is gone")
    with a_server(store) as server, capture_logs():
        reply = server.ask("POST", f"/v1/queues/{QUEUE}/lease", _body(worker="w"))
        assert reply.status == 503
        assert "look before repeating" in str(reply.json()["detail"])
        assert store.meanwhiles == 1


# -- the disk ---------------------------------------------------------------------------------------------------------


def test_a_disk_is_told_to_write_before_what_is_done_meanwhile_and_synced_after(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    group = GroupSync(syncer, tmp_path / "queue.db")
    seen: list[tuple[int, int]] = []
    ticket = group.note_commit()
    group.wait(ticket, meanwhile=lambda: seen.append((syncer.starts, syncer.syncs)))
    assert seen == [(1, 0)]
    assert (syncer.starts, syncer.syncs) == (1, 1)


def test_a_disk_that_has_nothing_to_write_is_not_troubled(tmp_path: Path) -> None:
    syncer = HeldSyncer()
    group = GroupSync(syncer, tmp_path / "queue.db")
    ticket = group.note_commit()
    group.wait(ticket)
    assert (syncer.starts, syncer.syncs) == (0, 1)
    seen: list[int] = []
    group.wait(ticket, meanwhile=lambda: seen.append(1))
    assert (syncer.starts, syncer.syncs, seen) == (0, 1, [])


def _no_library(_name: object) -> object:
    raise OSError("no library")


def _another_library(_name: object) -> object:
    return object()


@pytest.mark.parametrize("library", [None, _no_library, _another_library])
def test_a_file_is_begun_to_be_written_where_the_kernel_can_and_synced_where_it_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Callable[[object], object] | None
) -> None:
    if library is not None:
        monkeypatch.setattr("ctypes.CDLL", library)
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10_000)
    syncer = FileSyncer(path)
    syncer.start()
    syncer.sync()
    syncer.close()
