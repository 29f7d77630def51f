"""A little of `python3 -m tests.fuzz --stalls`: hostile and largest requests, and what they take of a server's loop."""

import pytest

from tests.fuzz.stalls.run import MAX_PAUSE_SECONDS, OWN, SIZES, Outcome, Report, Request, stalls
from tests.fuzz.stalls.server import Pause, a_probed_server

SHORT = SIZES[:2]
FREE_BYTES = 80 << 20
"""Without giving any back a server grows by twice as much."""


@pytest.mark.timeout(600)
def test_no_request_by_anyone_takes_the_loop_for_long() -> None:
    with a_probed_server() as server:
        report = stalls(server, seconds=0.0, seed=1, longest=SHORT)
    assert report.failures(OWN) == []
    assert report.grown_bytes < FREE_BYTES
    assert {one.request.role for one in report.outcomes} >= {"", "viewer", "producer", "worker", "operator", "admin"}
    assert {0, 500}.isdisjoint(one.status for one in report.outcomes if one.request.door == "GET /livez")


def test_a_pause_and_a_bare_500_are_failures() -> None:
    request = Request("GET /", "", "plain", "GET", "/")
    long = Pause(own_seconds=MAX_PAUSE_SECONDS, lock_seconds=MAX_PAUSE_SECONDS, where="here.py:1 work")
    report = Report([Outcome(request, long, 200), Outcome(request, Pause(), 200), Outcome(request, Pause(), 500)])
    told = report.failures()
    assert len(told) == 2
    assert told[0].split() == [
        *["100.0", "50.0", "50.0", "0.0", "0.0", "0.0", "200", "nobody", "GET", "/", "plain", "here.py:1", "work"],
    ]
    assert told[1].startswith("answered 500")
    assert report.failures(OWN) == told[1:]
