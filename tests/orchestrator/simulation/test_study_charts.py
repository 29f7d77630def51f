"""The chart of a study: one scale for what matters, waits beside workers, and an outlier that is marked."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from random import Random

from orchestrator.simulation.charts import svg_chart
from orchestrator.simulation.results import WAIT_SLOTS, RunResult
from orchestrator.simulation.rules import RuleScaler, rule_settings
from orchestrator.simulation.study import StudyRow, simulate
from orchestrator.simulation.workload import ServiceTimes, SimulatedWorld, Workload

SVG = "{http://www.w3.org/2000/svg}"
WORKLOAD = Workload("two bursts", [0.0] * 5 + [300.0] * 5, ServiceTimes(2.0, 0.0).drawn(10, Random(1)))


def a_result(*, peak: int = 4, wait: float = 10.0, slo: float = 30.0) -> RunResult:
    settings = rule_settings(WORKLOAD, slo_seconds=slo, least=0, most=peak, slots=1)
    world = SimulatedWorld(startup_seconds=1.0, cores=2)
    return simulate(WORKLOAD, world, RuleScaler("one-per-task", settings), slo_seconds=slo)


def test_waits_over_time_are_those_of_the_run() -> None:
    result = a_result(peak=1)
    starts = [at for at, _ in result.longest_waits]
    assert len(result.longest_waits) == WAIT_SLOTS + 1
    assert starts == sorted(starts)
    assert max(wait for _, wait in result.longest_waits) == result.wait_max
    assert result.longest_waits[-1] == (result.ended_at, 0.0)
    assert max(wait for at, wait in result.longest_waits if at > 290.0) > 0.0
    assert max(wait for at, wait in result.longest_waits if 60.0 < at < 290.0) == 0.0


def test_an_outlier_is_marked_and_leaves_the_scale_to_the_pools() -> None:
    ours, far = a_result(), replace(a_result(), peak=900, sizes=[(0.0, 900), (10.0, 0)], worker_seconds=9_000.0)
    rows = [StudyRow("resize", True, ours, None), StudyRow("one-per-task", False, far, None)]
    root = ET.fromstring(svg_chart(WORKLOAD, rows, title="two bursts"))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert texts.count("4") == 3  # the tops of arrivals and of both scales of workers
    assert "900" in texts
    assert len([path for path in root.iter(f"{SVG}path") if path.get("class") == "over"]) == 1
    assert any(text.startswith("2.50 worker-hours; ") for text in texts)
    assert texts.count("slo 30 s") == 2


def test_a_rule_that_is_not_far_above_the_pools_keeps_its_scale() -> None:
    rows = [StudyRow("resize", True, a_result(), None), StudyRow("fixed", False, a_result(peak=5), None)]
    root = ET.fromstring(svg_chart(WORKLOAD, rows, title="two bursts"))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert texts.count("5") == 2
    assert not [path for path in root.iter(f"{SVG}path") if path.get("class") == "over"]
