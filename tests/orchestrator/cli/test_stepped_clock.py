"""`towline doctor` tells of a step of the clock that the store's time has not made up for yet."""

from contextlib import closing
from typing import cast

import pytest

from queue_core.client.local_calls import LocalQueues
from queue_core.clock import SteadyClock
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.commands import Commands
from tests.support.stepped_host import SteppedHost


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (-3_600.0, "stepped forward by 1 h: the store's time is 1 h behind it, and follows it within 12 h 30 min"),
        (20.0, "stepped back by 20 s: the store's time is 20 s ahead of it, and follows it within 4 min"),
    ],
)
def test_doctor_tells_of_a_step(towline: Commands, before: float, told: str) -> None:
    (towline.folder / "towline.yaml").write_text("store: sqlite:///queue.db\nqueues: {thumbs: {}}\n")
    host = SteppedHost()
    host.step(before)  # until the store was closed: then the clock is set right
    with closing(SqliteStore(towline.folder / "queue.db", clock=SteadyClock(host))) as store:
        LocalQueues(QueueService(store)).put_queue(QueueSpec("thumbs"))
    found = cast("list[dict[str, str]]", towline("doctor", "--json").json)
    (finding,) = [each for each in found if each["check"] == "clock"]
    assert finding["level"] == "warn"
    assert told in finding["found"]
    assert "no lease is affected" in finding["fix"]
