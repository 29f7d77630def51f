"""A task's story is told once, in order, from its attempts and from its queue's history."""

from queue_core.console.timeline import Step, timeline

Json = dict[str, object]
SECOND = 1_000_000
BASE: Json = {"added_at": SECOND, "state": "ready", "eta": 9 * SECOND, "reason": "", "attempts": []}


def an_attempt(number: int, *, outcome: str = "raised", **more: object) -> Json:
    """Return an attempt of two seconds."""
    given = {"error": "ValueError", "message": "bad", "place": "tasks.py:14", "worker": f"w{number}"}
    times = {"began_at": 10 * number * SECOND, "ended_at": (10 * number + 2) * SECOND}
    return {"lease_number": number, "outcome": outcome, **given, **times, **more}


def an_ended_lease(number: int, *, outcome: str = "released", **more: object) -> Json:
    """Return the same lease as a queue's history has it."""
    ended = {"ended_at": (10 * number + 2) * SECOND, "held_seconds": 2.0, "worker": f"w{number}", "added_at": SECOND}
    return {"lease_number": number, "outcome": outcome, "reason": "", "died": False, **ended, **more}


def told(steps: list[Step]) -> list[str]:
    return [f"{step.at // SECOND} {step.what}{f' by {step.worker}' if step.worker else ''}" for step in steps]


def test_attempts_are_leases_that_ended_and_say_why() -> None:
    steps = timeline({**BASE, "attempts": [an_attempt(1), an_attempt(2, outcome="worker_died", message="SIGKILL")]}, [])
    assert told(steps) == [
        "1 added",
        "10 leased by w1",
        "12 failed by w1",
        "20 leased by w2",
        "22 worker died by w2",
    ]
    assert (steps[2].said, steps[2].place, steps[2].seconds, steps[2].is_failure) == (
        "ValueError: bad",
        "tasks.py:14",
        2.0,
        True,
    )


def test_a_lease_of_the_history_that_is_an_attempt_is_told_once() -> None:
    steps = timeline({**BASE, "attempts": [an_attempt(2)]}, [an_ended_lease(2), an_ended_lease(1)])
    assert [step for step in told(steps) if "leased" in step] == ["10 leased by w1", "20 leased by w2"]


def test_a_task_of_the_same_name_before_is_another_task() -> None:
    assert told(timeline({**BASE, "added_at": 50 * SECOND}, [an_ended_lease(1)])) == ["50 added"]


def test_what_is_now_is_told_last() -> None:
    leased = {**BASE, "state": "in_flight", "leased_at": 30 * SECOND, "worker": "w3", "leases": 3}
    assert told(timeline({**leased, "attempts": [an_attempt(1)]}, []))[-1] == "30 leased by w3"
    dead = timeline({**BASE, "state": "dead", "eta": 40 * SECOND, "reason": "ValueError: bad"}, [])
    assert (told(dead)[-1], dead[-1].said, dead[-1].is_failure) == ("40 dead", "ValueError: bad", True)


def test_a_task_that_is_gone_is_told_from_the_history() -> None:
    steps = timeline(None, [an_ended_lease(2, outcome="deleted"), an_ended_lease(1)])
    assert told(steps) == ["1 added", "10 leased by w1", "12 given back by w1", "20 leased by w2", "22 completed by w2"]
    assert not any(step.is_failure for step in steps)
    assert timeline(None, []) == []


def test_an_outcome_of_a_later_version_is_shown_as_it_is_called() -> None:
    assert told(timeline({**BASE, "attempts": [an_attempt(1, outcome="evaporated")]}, []))[-1] == "12 evaporated by w1"


def test_leases_after_a_redrive_are_numbered_on() -> None:
    again: Json = {"began_at": 40 * SECOND, "ended_at": 42 * SECOND}
    steps = timeline({**BASE, "attempts": [an_attempt(1), an_attempt(2), {**an_attempt(1), **again}]}, [])
    assert [step.lease_number for step in steps] == [0, 1, 1, 2, 2, 3, 3]
