"""A pool whose application can't be used: said where people look, without a loop of starts, and mended by its file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from queue_core.task import NewTask
from tests.soak.towline_up import TowlineUp
from tests.support.commands import Commands
from tests.support.eventually import eventually

LONG_SECONDS: Final = 60.0
BROKEN: Final = "from queue_core import App\n\napp = App()\nraise ValueError('no price list')\n"
MENDED: Final = """
from queue_core import App

app = App()


@app.task(queue="jobs")
def price(task):
    pass
"""
SENTENCE: Final = "can't import prices: prices.py:4: ValueError: no price list"


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[TowlineUp]:
    crew = TowlineUp(tmp_path)
    (tmp_path / "prices.py").write_text(BROKEN)
    crew.write(workers=1, colour="red", more="  pricing: {queue: jobs, app: prices:app, slo: 5s, workers: {min: 1}}\n")
    try:
        yield crew
    finally:
        crew.end()


@pytest.fixture
def towline(crew: TowlineUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(crew.folder)
    return Commands(crew.folder, capsys)


def state(crew: TowlineUp) -> dict[str, object]:
    pools = cast("dict[str, dict[str, object]]", crew.shown("pools") or {})
    return pools.get("pricing", {})


def test_a_pool_that_cannot_be_used_is_named_everywhere_and_goes_on_once_its_file_is_mended(
    crew: TowlineUp, towline: Commands
) -> None:
    crew.start()
    (logged,) = eventually(lambda: crew.logged("pool.misconfigured"), seconds=LONG_SECONDS)
    assert (logged["level"], logged["pool"]) == ("error", "pricing")
    assert SENTENCE in str(logged["sentence"])
    eventually(lambda: crew.logged("worker.reaped"), seconds=LONG_SECONDS)
    eventually(lambda: "misconfigured" in str(state(crew).get("decision")), seconds=LONG_SECONDS)
    for command in (("why", "pricing"), ("doctor",), ("health",), ("pools",), ("check",)):
        told = towline(*command)
        assert SENTENCE in " ".join((told.out + told.err).split()), command
    eventually(lambda: any("crew-" in name for name in crew.workers()), seconds=LONG_SECONDS)  # the other pool works
    starts = len([entry for entry in crew.logged("worker.spawned") if entry["pool"] == "pricing"])

    (crew.folder / "prices.py").write_text(MENDED)
    eventually(lambda: crew.logged("pool.usable"), seconds=LONG_SECONDS)
    eventually(lambda: any("pricing-" in name for name in crew.workers()), seconds=LONG_SECONDS)
    assert len([entry for entry in crew.logged("worker.spawned") if entry["pool"] == "pricing"]) == starts + 1
    queues = crew.queues()
    try:
        queue = queues.queue("jobs")
        queue.add([NewTask(b"0 0.001")])
        eventually(lambda: queue.stats().deleted_total == 1, seconds=LONG_SECONDS)
    finally:
        queues.close()
    eventually(lambda: state(crew).get("concern") is None, seconds=LONG_SECONDS)
    assert SENTENCE not in towline("pools").out
