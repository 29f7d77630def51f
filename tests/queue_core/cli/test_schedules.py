"""`towline schedules`: the list, and what run, pause and resume say and do."""

from contextlib import closing
from typing import cast

import pytest

from queue_core.client.connect import open_queues
from queue_core.schedules.schedule import Schedule
from tests.support.commands import Commands
from tests.support.servers import a_server

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues: {reports: {}}
schedules:
  nightly: {queue: reports, cron: "0 3 * * *", timezone: Europe/Vienna}
  weekly: {queue: reports, every: 7d}
"""
NIGHTLY = Schedule("nightly", "reports", "0 3 * * *", timezone="Europe/Vienna", origin="towline.yaml")


@pytest.fixture
def towline(towline: Commands) -> Commands:
    """A folder whose store knows one of the two schedules of its settings file."""
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    assert towline("queues").code == 0
    queues = open_queues(f"sqlite:///{towline.folder / 'queue.db'}")
    queues.schedules.declare([NIGHTLY])
    queues.close()
    return towline


def listed(towline: Commands) -> list[dict[str, object]]:
    """The schedules as JSON."""
    told = cast("dict[str, list[dict[str, object]]]", towline("schedules", "--json").json)
    return told["schedules"]


def test_the_list_names_next_ticks_and_what_no_supervisor_has_read(towline: Commands) -> None:
    told = towline("schedules")
    assert told.code == 0
    assert "0 3 * * * Europe/Vienna" in told.out
    assert "! weekly: in towline.yaml, but no supervisor has read it" in told.err
    (nightly,) = listed(towline)
    assert str(nightly["next_tick"]).endswith("Z")
    assert nightly["origin"] == "towline.yaml"


def test_pause_and_resume_say_how_to_undo_it(towline: Commands) -> None:
    assert towline("schedules", "pause", "nightly").out == (
        "schedule nightly paused: it adds no tasks until it is resumed\n"
    )
    assert listed(towline)[0]["next_tick"] is None
    assert "paused" in towline("schedules").out
    assert towline("schedules", "resume", "nightly").out.startswith("schedule nightly resumed, next tick in ")
    assert listed(towline)[0]["paused_at"] is None


def test_a_name_that_is_not_there_is_told_with_those_that_are(towline: Commands) -> None:
    told = towline("schedules", "pause", "nightly2")
    assert told.code == 66
    assert "no schedule 'nightly2'; schedules: nightly" in told.err
    assert "`towline schedules` lists them" in told.err


def test_without_schedules_the_list_says_where_to_write_some(towline: Commands) -> None:
    with a_server() as server:
        told = towline("schedules", "--url", server.url)
    assert "set some under `schedules:`" in told.out + told.err


def test_a_schedule_that_nobody_serves_is_named(towline: Commands) -> None:
    with a_server() as server, closing(server.queues()) as queues:
        queues.schedules.declare([Schedule("lost", "nowhere", every=60.0)])
        told = towline("schedules", "--url", server.url)
        assert "! lost: there is no queue 'nowhere'" in told.err
        assert "schedule lost: there is no queue 'nowhere'" in towline("health", "--url", server.url).out
