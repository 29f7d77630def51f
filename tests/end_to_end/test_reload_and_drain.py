"""`towline reload`, `drain` and `undrain` against a real `towline up`, as an operator uses them one after another."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.soak.crew import Crew
from tests.support.commands import Commands
from tests.support.eventually import eventually

Json = dict[str, object]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(tmp_path)
    crew.write(workers=1, colour="red")
    try:
        yield crew
    finally:
        crew.end()


@pytest.fixture
def towline(crew: Crew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(crew.folder)
    return Commands(crew.folder, capsys)


def in_force(crew: Crew) -> Json:
    pools = cast("dict[str, Json]", crew.shown("pools") or {})
    return cast("Json", pools.get("crew", {}).get("settings") or {})


def test_an_operator_changes_settings_and_is_told_what_came_of_it(crew: Crew, towline: Commands) -> None:
    refused = towline("reload")
    assert refused.code == 69
    assert "no supervisor is alive" in refused.err
    crew.start()
    (first,) = eventually(crew.workers, seconds=30)
    assert towline("reload").out == "no pool changed\n"

    crew.write(workers=1, colour="red", slo="20s", more="server_typo: 1\n")
    told = towline("reload")
    assert told.code == 78
    assert "towline.yaml:15:1" in told.err
    assert "server_typo" in told.err

    crew.settings.write_text(crew.settings.read_text().replace("server_typo: 1", "lifecycle: off"))
    changed = cast("Json", towline("reload", "--json").json)
    assert changed["reloaded"] is True
    # It may have noticed the file by itself just before it was asked.
    assert changed["changes"] in (
        [],
        [{"pool": "crew", "kind": "changed", "settings": ["slo: 10s -> 20s"], "replaces": False}],
    )
    assert changed["next_start"] == ["lifecycle"]
    eventually(lambda: in_force(crew).get("slo_seconds") == 20.0)
    assert list(crew.workers()) == [first]

    crew.write(workers=1, colour="blue", slo="20s")
    crew.signal(signal.SIGHUP)
    eventually(lambda: first not in crew.workers(), seconds=30)
    assert crew.files.reload_answer()["changes"] == [
        {"pool": "crew", "kind": "changed", "settings": ["env"], "replaces": True}
    ]
    assert towline("reload").out == "no pool changed\n"


def test_a_supervisor_that_hangs_does_not_answer_in_time(crew: Crew, towline: Commands) -> None:
    pid = crew.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        told = towline("reload", "--wait", "300ms")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert told.code == 75
    assert "no answer within 0.3 s" in told.err


def test_a_host_is_drained_before_a_reboot_and_used_again_after_it(crew: Crew, towline: Commands) -> None:
    crew.start()
    queues = crew.queues()
    queue = queues.queue("jobs")
    try:
        eventually(crew.capacity, seconds=30)
        crew.add(queue, 3, seconds=2.0)
        eventually(lambda: queue.stats().in_flight, seconds=30)
        told = towline("drain", "--wait", "50s")
        assert (told.code, told.out) == (0, "this host is drained: no worker is left\n")
        assert not crew.workers()
        done = crew.done(queue)
        assert (done.twice, done.released) == (0, 0)
        assert crew.logged("worker.reaped")[-1]["cause"] == "drained"
        pools = towline("pools", "--json")
        assert cast("Json", pools.json)["drained"] is True
        assert "towline undrain" in towline("pools").err
        assert "towline undrain" in towline("why", "crew").out
        assert queue.stats().ready == 2

        assert crew.end() == 0
        crew.start_any_phase()
        eventually(lambda: crew.shown("phase") == "draining", seconds=30)
        assert not crew.workers()
        assert "as its pools need them" in towline("drain", "--undo").out
        eventually(lambda: queue.stats().deleted_total == 3, seconds=30)
        assert crew.done(queue).twice == 0
    finally:
        queues.close()
