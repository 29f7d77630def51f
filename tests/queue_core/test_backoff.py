"""How long a failed task waits."""

from typing import Literal

import pytest

from queue_core.semantics import release_delay_seconds, retry_delay_seconds
from queue_core.task import QueueSpec

SPEC = QueueSpec("q", retry_min_seconds=1, retry_max_seconds=300)


@pytest.mark.parametrize(("leases", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (1_000_000, 300)])
def test_the_delay_doubles_up_to_its_bound(leases: int, seconds: float) -> None:
    assert retry_delay_seconds(SPEC, leases=leases, jitter=0.0) == seconds


def test_jitter_takes_off_at_most_a_tenth() -> None:
    assert retry_delay_seconds(SPEC, leases=10, jitter=0.999_999) > 269.9


@pytest.mark.parametrize(
    ("asked", "charge", "expected"),
    [(None, "counted", 1.0), (None, "uncounted", None), (7.0, "counted", 7.0), (0.0, "counted", 0.0)],
)
def test_a_release_waits_as_asked_else_as_the_queue_says(
    asked: float | None, charge: Literal["counted", "uncounted"], expected: float | None
) -> None:
    assert release_delay_seconds(SPEC, requested_seconds=asked, charge=charge, leases=1, jitter=0.0) == expected
