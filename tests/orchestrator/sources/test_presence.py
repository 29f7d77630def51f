"""Who asks for leases, where several servers each know their own callers."""

import pytest

from orchestrator.samples import PresentWorker
from orchestrator.sources.presence import ServersPresence
from queue_core.errors import StoreUnavailableError
from queue_core.stats import WorkerActivity


class AServer:
    """A server that has heard of these workers; of None it is away."""

    def __init__(self, *heard: WorkerActivity, is_away: bool = False) -> None:
        self.heard = list(heard)
        self.is_away = is_away

    def worker_activity(self, queue: str, *, prefix: str = "") -> list[WorkerActivity]:
        if self.is_away:
            raise StoreUnavailableError("away")
        return [one for one in self.heard if one.worker.startswith(prefix)]


def test_a_worker_that_moved_is_told_as_the_server_knows_it_that_heard_of_it_last() -> None:
    left = AServer(WorkerActivity("resize/a", 9.0, waits=True, hung_up=True))
    joined = AServer(WorkerActivity("resize/a", 0.0, waits=True, hung_up=False), WorkerActivity("x", 0.0, True, False))
    for servers in ([left, joined], [joined, left]):
        assert ServersPresence(servers)("thumbs", "resize/") == [
            PresentWorker("resize/a", 0.0, waits=True, hung_up=False)
        ]


def test_a_server_that_is_away_has_nobody_waiting_at_it() -> None:
    there = AServer(WorkerActivity("resize/a", 1.0, waits=False, hung_up=False))
    found = ServersPresence([AServer(is_away=True), there])("thumbs", "resize/")
    assert [one.worker for one in found] == ["resize/a"]


def test_when_no_server_answers_nobody_is_taken_for_gone() -> None:
    with pytest.raises(StoreUnavailableError):
        ServersPresence([AServer(is_away=True), AServer(is_away=True)])("thumbs", "resize/")


def test_over_a_store_nobody_can_tell() -> None:
    assert ServersPresence([])("thumbs", "resize/") == []


def test_of_all_servers_nobody_can_tell_while_one_does_not_answer() -> None:
    there = AServer(WorkerActivity("resize-1", 9.0, waits=True, hung_up=False))
    with pytest.raises(StoreUnavailableError):
        ServersPresence([AServer(is_away=True), there]).all("thumbs", "")
    joined = AServer(WorkerActivity("resize-1", 0.0, waits=True, hung_up=False))
    assert ServersPresence([joined, there]).all("thumbs", "") == [PresentWorker("resize-1", 0.0, waits=True)]
