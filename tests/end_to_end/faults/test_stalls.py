"""A little of `python3 -m tests.fuzz --stalls`: hostile and largest requests, and a server's longest pauses."""

from dataclasses import replace

import pytest

from tests.fuzz.stalls.run import MAX_GROWTH_BYTES, MAX_PAUSE_SECONDS, SIZES, Outcome, Report, Request, stalls
from tests.fuzz.stalls.server import a_probed_server

SHORT = SIZES[:2]
BUSY = 3
"""So much longer may a pause be beside other tests: caches are shared, and collecting a probe's answer takes time."""


@pytest.mark.timeout(300)
def test_no_request_by_anyone_stops_the_loop_for_long() -> None:
    with a_probed_server() as server:
        report = stalls(server, seconds=0.0, seed=1, longest=SHORT)
    assert report.failures(most_seconds=BUSY * MAX_PAUSE_SECONDS) == []
    assert {one.request.role for one in report.outcomes} >= {"", "viewer", "producer", "worker", "operator", "admin"}
    assert {0, 500}.isdisjoint(one.status for one in report.outcomes if one.request.door == "GET /livez")


def test_a_pause_a_bare_500_and_memory_that_stays_are_failures() -> None:
    request = Request("GET /", "", "plain", "GET", "/")
    paused = Outcome(request, MAX_PAUSE_SECONDS * 2, "here.py:1 work", 200)
    report = Report([paused, replace(paused, pause_seconds=0.0), replace(paused, pause_seconds=0.0, status=500)])
    told = report.failures()
    assert len(told) == 2
    assert "100.0 ms  200  nobody   GET /  plain  here.py:1 work" in told[0]
    assert told[1].startswith("answered 500")
    report.after_bytes = MAX_GROWTH_BYTES + 1
    assert report.failures()[2] == "memory grew by 20 MiB"
