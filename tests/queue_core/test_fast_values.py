"""A value with other fields is what `dataclasses.replace` returns."""

from dataclasses import fields, replace

import pytest

from queue_core.fast_values import replaced
from queue_core.stats import FinishedLease
from queue_core.task import StoredTask, TaskState
from tests.support.stores.task_builders import at

TASK = StoredTask(7, "q", b"x", at(1), at(0), "named", "a", TaskState.LEASED, 3, at(2), at(1), "w", max_leases=5)
LEASE = FinishedLease("q", "named", "a", "w", 3, "released", 0.5, 1.5, at(3))


@pytest.mark.parametrize(
    ("one", "changes"),
    [(TASK, {}), (TASK, {"tag": None}), (TASK, {"state": TaskState.DEAD, "eta": at(9)}), (LEASE, {"died": True})],
)
def test_a_value_has_the_fields_given_and_else_its_own(one: StoredTask, changes: dict[str, object]) -> None:
    found = replaced(one, **changes)  # type: ignore[arg-type]
    assert found == replace(one, **changes)  # type: ignore[arg-type]
    assert found is not one
    assert type(found) is type(one)


@pytest.mark.parametrize("name", [field.name for field in fields(TASK)])
def test_each_field_is_put_in_its_own_place(name: str) -> None:
    changed = replaced(TASK, **{name: "other"})  # type: ignore[arg-type]
    assert [field.name for field in fields(TASK) if getattr(changed, field.name) == "other"] == [name]


def test_a_field_that_the_value_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError):
        replaced(TASK, payloads=b"")  # type: ignore[call-arg]
