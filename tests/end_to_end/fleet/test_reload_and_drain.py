"""`towline reload`, `drain` and `undrain` against a real `towline up`, as an operator uses them one after another."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from queue_core.task import NewTask
from tests.soak.towline_up import TowlineUp
from tests.support.commands import Commands
from tests.support.eventually import eventually

Json = dict[str, object]
NO_CHANGE = "no pool's settings changed; workers of a program whose files did are replaced\n"


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[TowlineUp]:
    crew = TowlineUp(tmp_path)
    crew.write(workers=1, colour="red")
    try:
        yield crew
    finally:
        crew.end()


@pytest.fixture
def towline(crew: TowlineUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(crew.folder)
    return Commands(crew.folder, capsys)


def in_force(crew: TowlineUp) -> Json:
    pools = cast("dict[str, Json]", crew.shown("pools") or {})
    return cast("Json", pools.get("crew", {}).get("settings") or {})


def sampled(crew: TowlineUp) -> Json:
    pools = cast("dict[str, Json]", crew.shown("pools") or {})
    return cast("Json", pools.get("crew", {}).get("sample") or {})


def test_an_operator_changes_settings_and_is_told_what_came_of_it(crew: TowlineUp, towline: Commands) -> None:
    refused = towline("reload")
    assert refused.code == 69
    assert "no supervisor is running" in refused.err
    crew.start()
    (first,) = eventually(crew.workers, seconds=30)
    assert towline("reload").out == NO_CHANGE

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
    assert towline("reload").out == NO_CHANGE


def test_a_file_that_is_emptied_for_a_while_drains_nobody(crew: TowlineUp, towline: Commands) -> None:
    crew.start()
    (first,) = eventually(crew.workers, seconds=30)
    whole = crew.settings.read_text()
    crew.settings.write_text("# to be written\n")
    (refused,) = eventually(lambda: crew.logged("supervisor.reload_refused"), seconds=30)
    assert "nothing is set here" in str(refused["mistakes"])
    assert towline("reload").code == 78
    crew.settings.write_text(whole)
    assert towline("reload").out == NO_CHANGE
    assert list(crew.workers()) == [first]
    assert not crew.logged("worker.draining")


def test_queues_that_are_new_in_the_file_are_made_by_a_reload_and_shown_by_plan(
    crew: TowlineUp, towline: Commands
) -> None:
    crew.start()
    queues = crew.queues()
    try:
        text = crew.settings.read_text()
        crew.settings.write_text(
            text.replace("  jobs: {", "  spare: {}\n  renamed: {").replace("queue: jobs", "queue: renamed")
        )
        planned = towline("plan")
        assert (planned.code, planned.err) == (0, "")
        assert "queue renamed: would be made\n" in planned.out
        (plan,) = cast("list[Json]", towline("plan", "--json").json)
        assert (plan["make_queue"], plan["target"]) == ("renamed", 1)

        told = cast("dict[str, list[str]]", towline("reload", "--json").json)
        assert told["queues"] in (["spare", "renamed"], [])  # it may have noticed the file by itself
        assert sorted(spec.name for spec in queues.queues()) == ["jobs", "renamed", "spare"]
        assert next(spec for spec in queues.queues() if spec.name == "renamed").max_leases == 20
        assert not [setting for setting in told["next_start"] if not setting.startswith("queues.jobs")]
        queues.queue("renamed").add([NewTask(b"a task")])
        eventually(lambda: sampled(crew).get("ready") == 1, seconds=30)
    finally:
        queues.close()


def test_a_pool_that_an_operator_scales_down_cuts_no_task_short(crew: TowlineUp, towline: Commands) -> None:
    crew.write(workers=3, colour="red")
    crew.settings.write_text(crew.settings.read_text().replace("grace: 30s", "grace: 300ms"))
    crew.start()
    queues = crew.queues()
    queue = queues.queue("jobs")
    try:
        eventually(lambda: crew.capacity() and crew.capacity()[-1][1] == 3, seconds=60)
        crew.add(queue, 3, seconds=8.0)
        eventually(lambda: queue.stats().in_flight == 3, seconds=60)
        assert towline("scale", "crew", "1", "--for", "10m").code == 0
        eventually(lambda: len(crew.logged("worker.finishing")) == 2, seconds=60)
        eventually(lambda: queue.stats().deleted_total == 3, seconds=60)
        eventually(lambda: len(crew.workers()) == 1, seconds=60)
        done = crew.done(queue)
        assert (done.lost, done.twice, done.released, done.expired) == (0, 0, 0, 0)
        assert not crew.logged("worker.killed", "worker.draining")
        eventually(lambda: len(crew.logged("worker.reaped")) == 2)
        assert {entry["held"] for entry in crew.logged("worker.reaped")} == {0}
    finally:
        queues.close()


def test_a_supervisor_that_hangs_does_not_answer_in_time(crew: TowlineUp, towline: Commands) -> None:
    pid = crew.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        told = towline("reload", "--wait", "300ms")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert told.code == 75
    assert "no answer within 0.3 s" in told.err


def test_a_host_is_drained_before_a_reboot_and_used_again_after_it(crew: TowlineUp, towline: Commands) -> None:
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
