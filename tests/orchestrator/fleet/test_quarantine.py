"""Which tasks are suspects, what becomes of what a dead worker held, and for whom a worker is started."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.quarantine import (
    FORGOTTEN_SECONDS,
    HOLD_SECONDS,
    MAX_HOLD_SECONDS,
    MAX_KNOWN,
    MAX_SOLO_DEATHS,
    MIN_HOLD_LEFT_SECONDS,
    SOLO_MARK,
    DeathLedger,
    DeathRecord,
    IsolatedTask,
    SuspectedTask,
    TaskVerdict,
    cleared_by,
    is_solo_worker,
    judge_tasks,
    ledger_of,
    next_to_start,
    reserved,
    solo_worker_name,
    still_held,
)
from queue_core.task import SOLO_WORKER_MARK, quarantined_task_of

AT = 1_000_000.0
NOW = Monotonic(500.0)


def a_task(name: str = "poison", *, lease: int = 1, most: int | None = 5) -> SuspectedTask:
    return SuspectedTask("thumbs", name, None, 0.5, lease, most, f"token of {name}")


def a_ledger(*, deaths: int, alone: int = 0, at: float = AT - 60, name: str = "poison") -> DeathLedger:
    return DeathLedger({("thumbs", name): DeathRecord(deaths, alone, at)}) if deaths else DeathLedger()


def judge(
    *held: SuspectedTask, ledger: DeathLedger | None = None, isolates: bool = True, waiting: int = 0, at: float = AT
) -> tuple[DeathLedger, tuple[TaskVerdict, ...]]:
    return judge_tasks(
        ledger or DeathLedger(),
        held,
        worker="w1",
        how="ended by SIGSEGV",
        isolates="yes" if isolates else "no",
        waiting=waiting,
        at=at,
    )


@pytest.mark.parametrize(
    ("before", "lease", "most", "company", "isolates", "verdict", "charge"),
    [
        pytest.param(0, 1, 5, 0, True, "given back", "counted", id="a first death, alone"),
        pytest.param(0, 1, 5, 3, True, "given back", "counted", id="a first death, in company"),
        pytest.param(1, 2, 5, 3, True, "held back", "counted", id="the second death"),
        pytest.param(1, 2, 5, 0, True, "held back", "counted", id="the second death, alone"),
        pytest.param(0, 4, 5, 3, True, "held back", "counted", id="one lease is left: for a run alone"),
        pytest.param(0, 5, 5, 3, True, "held back", "uncounted", id="no lease is left, in company: once more, alone"),
        pytest.param(0, 1, 1, 3, True, "held back", "uncounted", id="a single lease, in company: once more, alone"),
        pytest.param(0, 1, 1, 0, True, "dead", "counted", id="a single lease, alone"),
        pytest.param(4, 5, 5, 0, True, "dead", "counted", id="no lease is left, alone"),
        pytest.param(4, 9, None, 3, True, "held back", "counted", id="without a bound: held back however often"),
        pytest.param(1, 2, 5, 3, False, "given back", "counted", id="where nobody can be started for it"),
        pytest.param(1, 5, 5, 0, False, "dead", "counted", id="where nobody can be started for it, no lease left"),
        pytest.param(
            1, 5, 5, 3, False, "given back", "counted", id="nobody can be started, in company: the queue decides"
        ),
    ],
)
def test_what_becomes_of_a_task_whose_worker_died(
    before: int, lease: int, most: int | None, company: int, isolates: bool, verdict: str, charge: str
) -> None:
    others = [a_task(f"other-{number}") for number in range(company)]
    _, fates = judge(a_task(lease=lease, most=most), *others, ledger=a_ledger(deaths=before), isolates=isolates)
    assert (fates[0].verdict, fates[0].charge) == (verdict, charge)
    assert {fate.verdict for fate in fates[1:]} <= {"given back"}


@pytest.mark.parametrize(("alone", "verdict"), [(MAX_SOLO_DEATHS - 2, "held back"), (MAX_SOLO_DEATHS - 1, "dead")])
def test_in_a_queue_without_a_bound_a_few_deaths_alone_are_enough(alone: int, verdict: str) -> None:
    _, (fate,) = judge(a_task(lease=9, most=None), ledger=a_ledger(deaths=9, alone=alone))
    assert fate.verdict == verdict


def test_the_reason_tells_how_often_and_what_was_last() -> None:
    _, (fate,) = judge(a_task(lease=5), ledger=a_ledger(deaths=2))
    assert fate.why == "its worker died 3 times while it ran, last: ended by SIGSEGV (worker w1)"
    _, (first,) = judge(a_task(lease=1, most=1))
    assert first.why == "its worker died while it ran, last: ended by SIGSEGV (worker w1)"


def test_later_ones_in_the_line_are_held_back_for_longer_within_a_bound() -> None:
    tasks = [a_task(f"t{number}", lease=4) for number in range(100)]
    _, fates = judge(*tasks, waiting=1)
    holds = [fate.hold_seconds for fate in fates]
    assert holds[:2] == [HOLD_SECONDS + 10, HOLD_SECONDS + 20]
    assert max(holds) == MAX_HOLD_SECONDS


@pytest.mark.parametrize(("alone", "pause"), [(0, 0.0), (2, 0.0), (3, 2.0), (4, 4.0), (50, 30.0)])
def test_after_many_deaths_alone_there_is_a_pause_before_the_next(alone: int, pause: float) -> None:
    _, (fate,) = judge(a_task(lease=1, most=1000), ledger=a_ledger(deaths=alone + 2, alone=alone))
    assert fate.pause_seconds == pause
    assert fate.hold_seconds == HOLD_SECONDS + pause


def test_deaths_of_long_ago_say_nothing() -> None:
    old = a_ledger(deaths=4, at=AT - FORGOTTEN_SECONDS)
    ledger, (fate,) = judge(a_task(lease=2), ledger=old)
    assert (fate.verdict, ledger.of(("thumbs", "poison"), at=AT).deaths) == ("given back", 1)


def test_a_task_held_twice_by_a_worker_was_there_once() -> None:
    ledger, _ = judge(a_task(lease=2), a_task(lease=2))
    assert ledger.of(("thumbs", "poison"), at=AT) == DeathRecord(1, 1, AT, ("w1",))


def test_the_ledger_keeps_the_newest_of_very_many() -> None:
    ledger = DeathLedger({("q", str(number)): DeathRecord(1, 1, AT) for number in range(MAX_KNOWN)})
    after = ledger.after([("q", "new"), ("q", "0")], worker="w1", at=AT)
    assert len(after.records) == MAX_KNOWN
    assert list(after.records)[-2:] == [("q", "new"), ("q", "0")]
    assert after.records["q", "0"].deaths == 2


def test_the_ledger_is_found_again_in_the_certificates() -> None:
    held = [{"queue": "thumbs", "task": "poison"}, {"queue": "thumbs", "task": "other"}]
    deaths: list[dict[str, object]] = [
        {"at": AT - 3, "worker": "w1", "blamed": True, "held": held},
        {"at": AT - 2, "worker": "w2", "blamed": True, "held": held[:1]},
        {"at": AT - 1, "blamed": False, "held": held},
        {"at": AT - 1, "held": held},
        {"at": "then", "blamed": True, "held": held},
        {"at": AT, "blamed": True, "held": [7, {"queue": 1, "task": None}, {}]},
        {"at": AT, "blamed": True, "held": "all"},
    ]
    ledger = ledger_of(deaths)
    assert ledger.of(("thumbs", "poison"), at=AT) == DeathRecord(2, 1, AT - 2, ("w1", "w2"))
    assert ledger.of(("thumbs", "other"), at=AT) == DeathRecord(1, 0, AT - 3, ("w1",))


# -- the line ---------------------------------------------------------------------------------------------------------


def a_suspect(name: str = "poison", *workers: str, not_before: float = 0.0, lapses_in: float = 100.0) -> IsolatedTask:
    not_before_at, lapses_at = Monotonic(NOW + not_before), Monotonic(NOW + lapses_in)
    return IsolatedTask(a_task(name), "16.1766370000123456", not_before_at, lapses_at, workers)


@pytest.mark.parametrize(
    ("most", "taken", "alone", "started"),
    [
        pytest.param(4, 3, 0, 1, id="in the place of the one that died"),
        pytest.param(4, 4, 0, 0, id="no place"),
        pytest.param(4, 5, 0, 0, id="more than there may be"),
        pytest.param(1, 0, 0, 1, id="a pool of one"),
        pytest.param(0, 0, 0, 0, id="a pool of none"),
        pytest.param(4, 2, 1, 0, id="one runs already"),
        pytest.param(16, 2, 1, 1, id="a large pool may have more"),
        pytest.param(100, 90, 0, 3, id="no more than there are"),
    ],
)
def test_a_few_suspects_run_at_a_time(most: int, taken: int, alone: int, started: int) -> None:
    line = [a_suspect("a"), a_suspect("b"), a_suspect("c")]
    assert len(next_to_start(line, most=most, taken=taken, solo=alone, now=NOW)) == started


def test_nobody_is_started_for_one_whose_pause_lasts() -> None:
    line = [a_suspect("later", not_before=0.001), a_suspect("now")]
    assert next_to_start(line, most=9, taken=0, solo=0, now=NOW) == (line[1],)


def test_nobody_is_started_for_one_who_is_about_to_be_anybodys() -> None:
    line = [
        a_suspect("lapsed", lapses_in=MIN_HOLD_LEFT_SECONDS),
        a_suspect("held", lapses_in=MIN_HOLD_LEFT_SECONDS + 0.001),
    ]
    assert still_held(line, now=NOW) == (line[1],)


def test_who_was_at_no_other_deaths_than_a_culprit_is_cleared() -> None:
    culprit = a_suspect("culprit", "w1", "w2", "w3")
    same, fewer = a_suspect("same", "w2", "w1", "w3"), a_suspect("fewer", "w2")
    another, unknown = a_suspect("another", "w2", "w4"), a_suspect("unknown")
    assert cleared_by(culprit, [same, another, fewer, unknown]) == (same, fewer)


@pytest.mark.parametrize(("waiting", "running", "free"), [(0, 0, 0), (2, 0, 1), (2, 1, 0), (0, 1, 0)])
def test_one_place_is_left_free_while_suspects_wait_and_none_runs(waiting: int, running: int, free: int) -> None:
    assert reserved([a_suspect()] * waiting, running=running) == free


def test_the_queue_reads_the_name_that_is_made_here() -> None:
    name = solo_worker_name(a_suspect(), identity="resize-7f3k2q")
    errand = quarantined_task_of(name)
    assert SOLO_WORKER_MARK == SOLO_MARK
    assert is_solo_worker(name)
    assert errand is not None
    assert f"{errand.task_id}.{errand.held_until}" == a_suspect().mark
    assert not is_solo_worker("resize-7f3k2q")


def test_a_token_is_not_shown() -> None:
    assert "token of" not in repr(a_task())


# -- any history ------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(
    concurrency=some.integers(1, 6),
    bound=some.one_of(some.none(), some.integers(1, 6)),
    poisons=some.sets(some.integers(0, 19), max_size=4),
    data=some.data(),
)
def test_whatever_shares_a_worker_only_poison_dies_and_all_of_it_does(
    concurrency: int, bound: int | None, poisons: set[int], data: some.DataObject
) -> None:
    """Workers take tasks in any order; each that holds poison dies with all it holds, in company or alone."""
    ledger, leases = DeathLedger(), dict.fromkeys(range(20), 0)
    waiting, alone, dead, done = set(leases), set[int](), set[int](), set[int]()
    for _ in range(400):
        if not (waiting or alone):
            break
        if alone and (not waiting or data.draw(some.booleans())):
            held = {alone.pop()}
        else:
            count = data.draw(some.integers(1, concurrency))
            held = set(data.draw(some.permutations(sorted(waiting)))[:count])
            waiting -= held
        for task in held:
            leases[task] += 1
            assert bound is None or leases[task] <= bound
        if not held & poisons:
            done |= held
            continue
        tasks = [a_task(str(task), lease=leases[task], most=bound) for task in held]
        ledger, fates = judge(*tasks, ledger=ledger)
        for fate in fates:
            task = int(fate.task.task)
            leases[task] -= fate.charge == "uncounted"
            if fate.verdict == "dead":
                dead.add(task)
            elif fate.verdict == "held back":
                alone.add(task)
            else:
                assert bound is None or leases[task] < bound
                waiting.add(task)
    assert dead == poisons
    assert done == set(range(20)) - poisons
