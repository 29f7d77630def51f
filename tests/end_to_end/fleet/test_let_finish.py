"""Busy workers are let finish, whatever makes their pool smaller or changes it: no lease ends but by its worker."""

import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.config.overrides import Expiry, Moment, Overrides, ScaleOverride
from orchestrator.runtimes.procfs import boot
from queue_core.task import NewTask
from tests.support.eventually import eventually
from tests.support.fleet.supervised_site import POOL, SupervisedSite, a_site

CLOCK: Final = SystemMonotonicClock()
LONG_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 0.5
SHORT_OF_GRACE: Final = {**POOL, "slo": "10s", "grace": f"{GRACE_SECONDS}s"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SupervisedSite]:
    with a_site(tmp_path) as site:
        yield site


def reload(site: SupervisedSite, **pools: dict[str, object]) -> None:
    """Write other settings, and have them heeded at once."""
    before = len(site.logged("supervisor.reloaded"))
    site.write(**pools)
    site.processes[-1].send_signal(signal.SIGHUP)
    eventually(lambda: len(site.logged("supervisor.reloaded")) > before, seconds=LONG_SECONDS)


def begin(site: SupervisedSite, tasks: int) -> None:
    """Add tasks that take until `let_go`; each is begun when this returns."""
    before = len(site.notes())
    for _ in range(tasks):
        site.hold()
    eventually(lambda: len(site.notes()) == before + tasks, seconds=LONG_SECONDS)


def outlast_the_grace(site: SupervisedSite) -> None:
    """Wait until the supervisor has been at work for several graces more."""
    until = CLOCK.wall_seconds() + GRACE_SECONDS + 4.0
    eventually(lambda: cast("float", site.shown()["shown_at"]) >= until, seconds=LONG_SECONDS)


def assert_none_was_cut(site: SupervisedSite, tasks: int) -> None:
    """All tasks are done, each begun once; nobody was ended, and nobody asked to end who held one."""
    eventually(site.is_done, seconds=LONG_SECONDS)
    stats = site.queue.stats()
    assert (stats.deleted_total, stats.released_total, stats.expired_total) == (tasks, 0, 0)
    assert len(site.notes()) == tasks
    assert not site.logged("worker.killed")
    assert not site.logged("worker.draining")


def names(entries: list[dict[str, object]]) -> set[str]:
    return {str(entry["worker"]) for entry in entries}


def scaled_to(site: SupervisedSite, workers: int) -> None:
    now = Moment(CLOCK.wall_seconds(), CLOCK.monotonic(), boot())
    order = ScaleOverride(workers, Expiry.after(600, now))
    site.files.change_overrides("resize", lambda _: Overrides(scale=order))


def a_window(*, closes_in_seconds: float, **workers: int) -> dict[str, object]:
    """One that is open now, and comes again in an hour."""
    now = datetime.fromtimestamp(CLOCK.wall_seconds(), UTC)
    open_for = now.second + closes_in_seconds
    return {"cron": f"{now.minute} * * * *", "for": f"{open_for:g}s", "workers": workers}


@pytest.mark.parametrize("by", ["reload", "reload, removed", "window", "scale"])
def test_a_pool_that_is_made_smaller_cuts_nobody_short(site: SupervisedSite, by: str) -> None:
    pool = {**SHORT_OF_GRACE, "workers": {"min": 3, "max": 3}}
    if by == "window":
        window = a_window(closes_in_seconds=3_000, min=3, max=3)
        pool = {**pool, "workers": {"min": 1, "max": 1}, "schedule": [window]}
    site.write(resize=pool)
    site.start()
    begin(site, 3)
    stay = 0 if by == "reload, removed" else 1
    if by == "reload":
        reload(site, resize={**pool, "workers": {"min": 1, "max": 1}})
    elif by == "reload, removed":
        reload(site)
    elif by == "window":
        reload(site, resize={**pool, "schedule": [a_window(closes_in_seconds=3, min=3, max=3)]})
    else:
        scaled_to(site, 1)
    eventually(lambda: len(site.logged("worker.finishing")) == 3 - stay, seconds=LONG_SECONDS)
    outlast_the_grace(site)
    assert len(site.workers()) == 3
    site.let_go()
    assert_none_was_cut(site, 3)
    eventually(lambda: len(site.workers()) == stay, seconds=LONG_SECONDS)
    assert not names(site.logged("worker.finishing")) & site.workers().keys()


def test_settings_that_change_again_and_again_begin_no_task_twice(site: SupervisedSite) -> None:
    one = {**SHORT_OF_GRACE, "workers": {"min": 1, "max": 1}}
    site.write(resize={**one, "env": {"COLOUR": "0"}})
    site.start()
    begin(site, 1)
    (busy,) = site.workers()
    for colour in range(1, 4):
        reload(site, resize={**one, "env": {"COLOUR": str(colour)}})
    outlast_the_grace(site)
    assert list(site.workers()) == [busy]
    site.let_go()
    site.queue.add(NewTask(f"note {site.folder}/notes".encode()))
    assert_none_was_cut(site, 2)
    eventually(lambda: len(site.workers()) == 1 and busy not in site.workers(), seconds=LONG_SECONDS)
    assert {note[0] for note in site.notes()} == {busy, *site.workers()}


def test_a_replaced_worker_with_several_slots_gets_no_more_while_it_finishes(site: SupervisedSite) -> None:
    pool = {**SHORT_OF_GRACE, "concurrency": 3, "workers": {"min": 1, "max": 2}}
    site.write(resize=pool)
    first = site.start()
    begin(site, 2)
    (busy,) = site.workers()
    reload(site, resize={**pool, "env": {"COLOUR": "blue"}})
    eventually(lambda: names(site.logged("worker.finishing")) == {busy}, seconds=LONG_SECONDS)
    for _ in range(5):
        site.queue.add(NewTask(f"note {site.folder}/notes".encode()))
    eventually(lambda: len(site.notes()) == 7, seconds=LONG_SECONDS)
    first.kill()
    first.wait()
    site.start()  # it finds whom the one before it let finish, and leaves it alone
    outlast_the_grace(site)
    assert busy in site.workers()
    site.let_go()
    assert_none_was_cut(site, 7)
    assert sum(1 for note in site.notes() if note[0] == busy) == 2
    eventually(lambda: busy not in site.workers(), seconds=LONG_SECONDS)


def test_any_program_that_finishes_is_asked_to_end_when_it_holds_nothing(site: SupervisedSite) -> None:
    pool = {**SHORT_OF_GRACE, "workers": {"min": 1, "max": 1}}
    stubborn = {"app": None, "command": [sys.executable, "-m", "tests.support.fleet.stubborn_worker"]}
    site.write(resize={**pool, **stubborn})
    site.start()
    begin(site, 1)
    (busy,) = site.workers()
    reload(site, resize=pool)
    eventually(lambda: names(site.logged("worker.finishing")) == {busy}, seconds=LONG_SECONDS)
    outlast_the_grace(site)
    assert list(site.workers()) == [busy]
    site.let_go()
    assert_none_was_cut(site, 1)
    eventually(lambda: busy not in site.workers(), seconds=LONG_SECONDS)
    assert busy in names(site.logged("worker.retired"))


def test_what_is_given_back_after_all_is_told(site: SupervisedSite) -> None:
    site.write(resize={**SHORT_OF_GRACE, "workers": {"min": 1, "max": 1}})
    supervisor = site.start()
    begin(site, 1)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(timeout=LONG_SECONDS) == 0
    (reaped,) = site.logged("worker.reaped")
    assert (reaped["cause"], reaped["held"]) == ("drained", 1)
    (death,) = site.files.read_deaths(limit=10)
    (held,) = cast("list[dict[str, object]]", death["held"])
    assert (held["fate"], held["lease_number"]) == ("given back", 1)
    assert cast("float", held["held_seconds"]) >= GRACE_SECONDS
    assert site.queue.stats().ready == 1
