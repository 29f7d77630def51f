"""Orders by hand, as they are typed and as they are told; and why, at a time and made again from its record."""

from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.overrides import moment
from orchestrator.cli.times import parse_instant
from orchestrator.config.overrides import Overrides
from orchestrator.scaling.decision import Conditions
from orchestrator.scaling.learning import PolicyState
from orchestrator.scaling.replay import recorded
from orchestrator.state.directory import StateDir
from tests.orchestrator.cli.test_commands import SETTINGS, TASKS
from tests.support.commands import Commands
from tests.support.fleet.fleet_builders import NOW, a_fleet_of, a_pool, a_sample, learn_and_decide

SECOND = 1.0
HOUR = 3_600.0


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    (towline.folder / "tasks.py").write_text(TASKS)
    return towline


def orders(towline: Commands) -> Overrides:
    return StateDir(towline.folder / ".towline").read_overrides().get("resize", Overrides()).in_force(moment())


def test_a_pool_is_scaled_for_a_while_and_told_so(towline: Commands) -> None:
    told = towline("scale", "resize", "5", "--force", "--for", "30m")
    assert (told.code, told.out) == (0, "resize: scaled to 5 by hand, for 30 min more\n")
    assert "no supervisor is running" in told.err
    scaled = orders(towline).scale
    assert scaled is not None
    assert scaled.workers == 5
    assert 29 * 60 < scaled.until.left_seconds(moment()) <= 30 * 60


def test_an_order_is_taken_back(towline: Commands) -> None:
    towline("scale", "resize", "0")
    towline("pause", "--pool", "resize", "--changes", "down")
    towline("pools", "resize", "--finish-by", "2h")
    told = towline("scale", "resize", "--reset", "--json")
    assert cast("dict[str, object]", told.json)["orders"] == {"paused": "down"}
    assert towline("resume", "--pool", "resize").out == "resize: as its settings say\n"
    assert orders(towline) == Overrides()


def test_a_pause_of_a_pool_leaves_its_size_by_hand(towline: Commands) -> None:
    towline("scale", "resize", "2")
    told = towline("pause", "--pool", "resize")
    assert told.out == "resize: scaled to 2 by hand, for 1 h more; changes of size are paused\n"


def test_a_backlog_is_asked_to_be_done_by_a_time(towline: Commands) -> None:
    told = towline("pools", "resize", "--finish-by", "2h")
    assert told.out == "resize: to be done in 2 h\n"
    assert orders(towline).finish_by is not None
    assert towline("pools", "resize", "--finish-by", "never").out == "resize: as its settings say\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["scale", "resise", "2"], 66, "did you mean 'resize'", id="no-such-pool"),
        pytest.param(["scale", "resize"], 2, "either a number of workers or --reset", id="nothing-asked"),
        pytest.param(["scale", "resize", "2", "--reset"], 2, "either a number of workers or --reset", id="both-asked"),
        pytest.param(["scale", "resize", "2", "--for", "0s"], 2, "more than 0 s", id="no-time"),
        pytest.param(["scale", "resize", "2", "--for", "31d"], 2, "at most 30d", id="too-long"),
        pytest.param(["scale", "resize", "-2"], 2, "", id="fewer-than-none"),
        pytest.param(["pause"], 2, "either a QUEUE or --pool", id="pause-nothing"),
        pytest.param(["pause", "thumbs", "--pool", "resize"], 2, "either a QUEUE or --pool", id="pause-both"),
        pytest.param(["pause", "thumbs", "--changes", "up"], 2, "--changes goes with --pool", id="queues-have-no-size"),
        pytest.param(["pools", "--finish-by", "09:00"], 2, "goes with a POOL", id="finish-what"),
        pytest.param(["pools", "resize", "--finish-by", "soon"], 2, "write a time such as 09:00", id="no-time-at-all"),
        pytest.param(["pools", "resize", "--finish-by", "2020-01-01"], 2, "in the past", id="long-ago"),
        pytest.param(["why", "resize", "--at", "then"], 2, "write a time such as 09:00", id="why-when"),
    ],
)
def test_what_cant_be_ordered_says_what_can(towline: Commands, arguments: list[str], code: int, said: str) -> None:
    StateDir(towline.folder / ".towline").path.mkdir()
    StateDir(towline.folder / ".towline").write_snapshot({"pools": {}, "workers": []})
    told = towline(*arguments)
    assert told.code == code
    assert said in told.err


def test_plan_heeds_what_was_requested(towline: Commands) -> None:
    towline("scale", "resize", "3", "--for", "10m")
    (told,) = cast("list[dict[str, object]]", towline("plan", "--json").json)
    assert (told["target"], told["why"]) == (3, "at least min 3 (scaled to 3 by hand)")
    assert "in force: scaled to 3 by hand, for 10 min more" in towline("plan").out


@pytest.fixture
def past(towline: Commands) -> Commands:
    """Two decisions of the last hours, with all that they were made from."""
    files, now = StateDir(towline.folder / ".towline"), SystemMonotonicClock().wall_seconds()
    files.path.mkdir()
    files.write_snapshot({"phase": "leading", "shown_at": now, "pools": {"resize": {}}, "workers": []})
    state, spec = PolicyState(), a_pool(most=4)
    for ago, ready in ((3 * HOUR, 2), (HOUR, 900)):
        sample, fleet = a_sample(ages=[9.1], positions=[ready]), a_fleet_of(busy=2)
        decision, state = learn_and_decide(sample, fleet=fleet, spec=spec, state=state, now=NOW)
        inputs = recorded(sample, fleet, spec=spec, state=state, now=NOW, conditions=Conditions())
        at = round(now - ago, 3)
        files.decisions.append({"at": at, **decision.record()})
        files.replays.append({"at": at, "pool": "resize", "target": decision.target, "inputs": inputs})
    return towline


def test_why_tells_what_was_seen_what_decided_and_what_held_it(past: Commands) -> None:
    told = past("why", "resize", "--at", "30m").out
    assert "resize: 2 -> 4 workers, by rule `saturated`" in told
    assert "heavy load: 900 waiting, 0/s arriving: scaling to the maximum of 4" in told
    assert "limited by max: max is 4" in told
    assert "without that it would have " in told
    assert "seen: 900 ready, 0 in flight, 0 delayed, 0 dead tasks" in told
    assert "seen: 2 busy, 0 idle, 0 starting, 0 draining workers" in told
    assert "no task finished yet (assuming 2 s each), a start takes 2.5 s" in told


def test_one_dead_task_and_one_draining_worker_are_counted_as_one(past: Commands) -> None:
    files, now = StateDir(past.folder / ".towline"), SystemMonotonicClock().wall_seconds()
    decision = {"pool": "resize", "rule": "hold", "current": 2, "target": 2, "why": "nothing to change", "ready": 0}
    decision |= {"in_flight": 2, "delayed": 0, "dead": 1, "busy": 2, "idle": 0, "starting": 0, "draining": 1}
    files.decisions.append({"at": now - 60, **decision})
    told = past("why", "resize", "--at", "10s").out
    assert "seen: 0 ready, 2 in flight, 0 delayed, 1 dead task\n" in told
    assert "seen: 2 busy, 0 idle, 0 starting, 1 draining worker\n" in told


def test_why_at_a_time_tells_the_decision_that_was_in_force(past: Commands) -> None:
    assert "seen: 2 ready" in past("why", "resize", "--at", "2h").out
    assert "900 wait" in past("why", "resize", "--at", "10m").out
    assert "no decision is on record before" in past("why", "resize", "--at", "4h").err


def test_the_same_decision_four_times_in_a_second_is_told_once_with_a_count(past: Commands) -> None:
    files, now = StateDir(past.folder / ".towline"), SystemMonotonicClock().wall_seconds()
    for number in range(4):
        told = {"pool": "resize", "rule": "backlog", "current": number, "target": 4, "why": f"{9 - number} waiting"}
        files.decisions.append({"at": now - 9 + number / 4, **told})
    lines = [line for line in past("why", "resize").out.splitlines() if "backlog:" in line]
    assert [line.split("  ", 2)[2].split() for line in lines] == [
        ["0", "->", "4", "backlog:", "6", "waiting", "(x4)"],
    ]
    kept = cast("dict[str, list[object]]", past("why", "resize", "--last", "4", "--json").json)
    assert len(kept["decisions"]) == 4


def test_a_decision_is_made_again_from_what_was_kept(past: Commands) -> None:
    told = past("why", "resize", "--at", "10m", "--full")
    assert "inputs: 4 workers, the same" in told.out
    full = cast("dict[str, dict[str, object]]", past("why", "resize", "--at", "10m", "--full", "--json").json)
    assert full["inputs"]["sample"]["ready"] == 900  # type: ignore[index]


def test_a_decision_whose_inputs_are_gone_is_told_without(past: Commands) -> None:
    (past.folder / ".towline" / "replays.jsonl").unlink()
    told = past("why", "resize", "--at", "10m", "--full")
    assert told.code == 0
    assert "no longer recorded" in told.err


# 2026-03-29 12:00:00 UTC; in Berlin clocks went forward that night.
NOON = 1_774_785_600.0


@pytest.mark.parametrize(
    ("text", "side", "seconds"),
    [
        pytest.param("13:30", "next", 1.5 * HOUR, id="today"),
        pytest.param("11:00", "next", 23 * HOUR, id="tomorrow"),
        pytest.param("12:00", "next", 24 * HOUR, id="now-is-over"),
        pytest.param("11:00:30", "last", -HOUR + 30, id="earlier-today"),
        pytest.param("13:30", "last", -22.5 * HOUR, id="yesterday"),
        pytest.param("90m", "next", 1.5 * HOUR, id="from-now"),
        pytest.param("90m", "last", -1.5 * HOUR, id="ago"),
        pytest.param("2026-03-30T12:00", "next", 24 * HOUR, id="a-date"),
        pytest.param("2026-03-29T12:00+02:00", "next", -2 * HOUR, id="with-its-zone"),
    ],
)
def test_times_are_read_as_people_mean_them(
    monkeypatch: pytest.MonkeyPatch, text: str, side: str, seconds: float
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    __import__("time").tzset()
    assert parse_instant(text, now=NOON, side=side).at - NOON == seconds  # type: ignore[arg-type]
