"""Dead tasks are grouped by the class of the error that their reasons begin with."""

import pytest

from queue_core.console.errors_by_class import MAX_EXAMPLES, error_class, error_groups
from tests.console.texts import FOREIGN


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("ValueError: bad width: -1 (tasks.py:9)", "ValueError"),
        ("requests.exceptions.Timeout: 30 s", "requests.exceptions.Timeout"),
        ("MemoryError", "MemoryError"),
        ("MemoryError (tasks.py:9)", "MemoryError"),
        ("its worker died: nobody knows why at all", "its worker died: nobody knows why"),
        ("", "no reason given"),
        (" \n ", "no reason given"),
        ("<b>x</b>", "<b>x</b>"),
        ("A" * 200 + ": x", "A" * 200 + ": x"),
    ],
)
def test_the_class_is_what_reasons_have_in_common(reason: str, found: str) -> None:
    assert error_class(reason) == found


@pytest.mark.parametrize("reason", FOREIGN)
def test_every_reason_has_a_class(reason: str) -> None:
    assert error_class(reason).strip()


def a_dead_task(name: str, *, reason: str, eta: int, tag: str | None = "send") -> dict[str, object]:
    return {"name": name, "reason": reason, "eta": eta, "tag": tag}


def test_the_largest_group_comes_first_with_its_newest_tasks() -> None:
    tasks = [a_dead_task(f"v{n}", reason=f"ValueError: {n % 2}", eta=n) for n in range(MAX_EXAMPLES + 5)]
    tasks += [a_dead_task("k", reason="KeyError: 'a'", eta=7, tag=None), a_dead_task("a", reason="Alarm", eta=1)]
    value, alarm, key = error_groups(tasks)
    assert (value.error, len(value.names), value.reason) == ("ValueError", MAX_EXAMPLES + 5, "ValueError: 0")
    assert [one["name"] for one in value.examples] == [f"v{n}" for n in range(MAX_EXAMPLES + 4, 4, -1)]
    assert (value.newest_at, value.tags) == (MAX_EXAMPLES + 4, ("send",))
    assert (alarm.error, key.error, key.tags) == ("Alarm", "KeyError", ())


def test_no_dead_task_makes_no_group() -> None:
    assert error_groups([]) == []
