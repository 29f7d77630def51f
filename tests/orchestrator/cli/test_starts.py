"""How workers start, as `workers`, `why` and `doctor` say it."""

from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.state.directory import StateDir
from orchestrator.state.templates import TemplateRecord
from tests.support.commands import Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 5}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
  slow: {queue: thumbs, tags: [slow], app: "tasks:app", start: exec, slo: 30s}
"""
MIB = 1 << 20
READY = TemplateRecord("ready", app="tasks:app", import_seconds=2.4, forks=7, memory_bytes=85 * MIB)
THREAD = "tasks.py:3 started the thread 'x' while it was imported: start it in @app.on_start"
UNSAFE = TemplateRecord("unsafe", app="tasks:app", hazards=(THREAD,))
FORCED = TemplateRecord("unsafe", app="tasks:app", hazards=(THREAD,), is_forced=True)
FAILED = TemplateRecord("failed", app="tasks:app", failure="Traceback\nNameError: no x")


@pytest.fixture
def files(towline: Commands) -> StateDir:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    now = SystemMonotonicClock().wall_seconds()
    decision = {"current": 1, "target": 1, "rule": "deadline", "why": "1 ready", "at": now}
    pools = {name: {"settings": {"slo_seconds": 30.0}, "decision": decision} for name in ("resize", "slow")}
    worker: dict[str, object] = {"worker": "resize-abc", "pool": "resize", "state": "busy", "pid": 1, "since": now}
    worker |= {"spawned_at": now, "memory_bytes": 9 * MIB, "forked": True, "adopted": True}
    files.write_snapshot({"phase": "leading", "shown_at": now, "pools": pools, "workers": [worker]})
    return files


def findings_of(towline: Commands) -> tuple[int, list[tuple[str, str]]]:
    told = towline("doctor", "--json")
    found = cast("list[dict[str, str]]", told.json)
    starts = [one for one in found if one["check"] == "start"]
    assert all(one["fix"] and one["see"].endswith("#doctor-start") for one in starts if one["level"] != "ok")
    return told.code, [(one["level"], one["found"]) for one in starts]


def test_a_worker_that_was_forked_is_marked_and_a_pool_that_does_not_fork_is_named(
    towline: Commands, files: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with files.locked():
        files.write_templates({"resize": READY})
        told = towline("workers")
        assert "forked, adopted" in told.out
        assert "are forked" not in told.err
        files.write_templates({"resize": UNSAFE})
        assert f"resize: workers are not forked: {THREAD}" in towline("workers").err
        shown = cast("dict[str, dict[str, dict[str, object]]]", towline("workers", "--json").json)
        assert shown["templates"]["resize"]["hazards"] == [THREAD]
        files.write_templates({"resize": FORCED})
        assert "resize: workers are forked, as start is fork, although it is not safe" in towline("workers").err


def test_why_says_how_a_pools_workers_start(towline: Commands, files: StateDir) -> None:
    assert "start:" not in towline("why", "resize").out, "no supervisor is alive: what it wrote is history"
    with files.locked():
        assert "start:" not in towline("why", "resize").out
        files.write_templates({"resize": READY})
        told = towline("why", "resize").out
        assert "  start: workers are forked from a template that imported tasks:app in 2.4 s; 7 forked in" in told
        assert "85 MiB that they share" in told
        files.write_templates({"resize": UNSAFE})
        assert f"  start: workers are not forked: {THREAD}\n" in towline("why", "resize").out
        shown = cast("dict[str, dict[str, object]]", towline("why", "resize", "--json").json)
        assert shown["template"]["forks_workers"] is False
        assert "  start: workers are not forked: start is exec\n" in towline("why", "slow").out


def test_doctor_says_which_pools_fork_and_what_keeps_the_others_from_it(towline: Commands, files: StateDir) -> None:
    assert findings_of(towline) == (0, [])
    with files.locked():
        files.write_templates({"resize": READY, "gone": UNSAFE})
        assert findings_of(towline) == (0, [("ok", "workers are forked: resize")])
        for record in (UNSAFE, FORCED):
            files.write_templates({"resize": record})
            assert findings_of(towline) == (0, [("warn", f"resize: {record.sentence}")])
        files.write_templates({"resize": FAILED})
        broken = "resize: workers are not forked: tasks:app fails to import: NameError: no x"
        assert findings_of(towline) == (1, [("bad", broken)])
