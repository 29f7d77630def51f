"""What a supervisor of many pools pays per pool does not grow with their number."""

import statistics

from structlog.testing import capture_logs

from tests.bench.pools import turn_seconds


def test_four_times_the_pools_cost_about_four_times_as_much() -> None:
    with capture_logs():
        few, _ = turn_seconds(50)
        many, _ = turn_seconds(200)
    assert statistics.median(many) < 7 * statistics.median(few)
