"""Charts: well-formed for any page, on a scale that an outlier does not take over, and told in words as well."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from orchestrator.base.charts import (
    Chart,
    ChartMark,
    ChartPanel,
    Curve,
    rates_of,
    rounded_up,
    scale_top,
    shown_value,
    slots_of,
    svg_of,
)

SVG = "{http://www.w3.org/2000/svg}"
STEPS = [(float(at), float(at % 7)) for at in range(60)]


def a_chart(*, steps: list[tuple[float, float]] | None = None) -> Chart:
    waits = [Curve("longest", steps or STEPS, "soft"), Curve("half under", [(0.0, 1.0)], "one")]
    panels = [
        ChartPanel(
            "workers <1>", "workers", [Curve("parse & render", STEPS, "one")], notes=["1.50 worker-hours; " * 9]
        ),
        ChartPanel("waits", "seconds", waits, limit=(5.0, "slo 5 s")),
    ]
    return Chart(60.0, panels, [ChartMark(58.0, "parse-a killed")], title="A fleet of <workers> for a minute")


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("values", "least", "top"),
    [
        pytest.param([], 0.0, 1.0, id="nothing"),
        pytest.param([], 6.25, 8.0, id="only what it must show"),
        pytest.param([3.0, 4.0, 7.0], 0.0, 8.0, id="above the greatest"),
        pytest.param([3.0] * 99 + [7.0], 0.0, 8.0, id="a peak that does not stand out"),
        pytest.param([3.0] * 99 + [700.0], 0.0, 3.0, id="an outlier is not obeyed"),
        pytest.param([0.0] * 900 + [3.0] * 99 + [700.0], 0.0, 3.0, id="nor beside much idle time"),
        pytest.param([0.01] * 99 + [7.0], 6.25, 8.0, id="a peak near what it must show is no outlier"),
        pytest.param([3.0, 700.0], 0.0, 800.0, id="two values have no outlier"),
    ],
)
def test_a_scale_shows_what_matters(values: list[float], least: float, top: float) -> None:
    assert scale_top(values, least=least) == top


@pytest.mark.parametrize(
    ("value", "top"), [(1, 1), (1.01, 1.2), (9, 10), (0.042, 0.05), (12, 12), (166, 200), (1_277, 1_500)]
)
def test_a_scale_ends_at_a_number_that_is_short_to_write(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)


def test_a_slot_has_the_greatest_value_of_its_time() -> None:
    steps = [(0.0, 1.0), (2.5, 9.0), (2.6, 0.0), (8.0, 2.0)]
    assert slots_of(steps, seconds=10.0, slots=5) == [1.0, 9.0, 0.0, 0.0, 2.0]
    assert slots_of([(12.0, 3.0)], seconds=10.0, slots=2) == [0.0, 3.0]
    assert rates_of([0.1, 0.2, 9.9], seconds=10.0, slots=2) == [(0.0, 0.4), (5.0, 0.2)]


@pytest.mark.parametrize("width", [350, 900])
def test_a_drawing_is_well_formed_and_stays_inside(width: int) -> None:
    root = ET.fromstring(svg_of(a_chart(), width=width))
    assert root.get("viewBox", "").split()[2] == str(width)
    for node in root.iter(f"{SVG}text"):
        size = 6.3 * len("".join(node.itertext())) if node.get("class") == "faint" else 0.0
        begin = float(node.get("x", "nan")) - {"end": size, "middle": size / 2}.get(node.get("text-anchor", ""), 0.0)
        assert begin >= -8
        assert begin + size <= width + 8
    assert float(root.get("height", "0")) > max(float(node.get("y", "0")) for node in root.iter(f"{SVG}text"))


def test_an_outlier_is_marked_with_its_value() -> None:
    steps = [(float(at), 700.0 if at == 30 else 1.0) for at in range(60)]
    drawn = svg_of(a_chart(steps=steps), width=900)
    assert "700" in texts(drawn)
    assert len(re.findall(r'<path class="over"', drawn)) == 1
    assert '<path class="over"' not in svg_of(a_chart(), width=900)


def test_units_limits_and_marks_are_written() -> None:
    found = texts(svg_of(a_chart(), width=900))
    assert {"workers <1>workers", "waitsseconds", "slo 5 s", "parse-a killed", "half under", "0 s"} <= set(found)
    label = ET.fromstring(svg_of(a_chart(), width=900)).get("aria-label")
    assert (
        label == "A fleet of <workers> for a minute: workers <1> (workers), waits (seconds) over 1 min; parse-a killed"
    )


def test_marks_that_are_near_each_other_are_written_below_each_other() -> None:
    marks = [ChartMark(at, f"parse-{at:.0f} killed") for at in (31.0, 30.0, 55.0, 59.0)]
    root = ET.fromstring(svg_of(replace(a_chart(), marks=marks), width=900))
    rows = {"".join(text.itertext()): float(text.get("y", "0")) for text in root.iter(f"{SVG}text")}
    assert rows["parse-30 killed"] == rows["parse-55 killed"]
    assert rows["parse-31 killed"] == rows["parse-59 killed"] == rows["parse-30 killed"] + 15


def test_a_drawing_is_for_light_and_dark_pages() -> None:
    drawn = svg_of(a_chart(), width=900)
    assert "prefers-color-scheme: dark" in drawn
    outside = re.sub(r"<style>.*?</style>", "", drawn, flags=re.DOTALL)
    assert "#" not in outside
    assert all(rule.strip().startswith((".chart", "@media", "--", "}")) for rule in style_rules(drawn))


def style_rules(drawn: str) -> list[str]:
    """The beginnings of the rules: in a page they must not reach beyond the drawing."""
    style = re.search(r"<style>(.*?)</style>", drawn, re.DOTALL)
    assert style
    return [line for line in style[1].splitlines() if line.strip()]


def test_nothing_to_draw_is_drawn() -> None:
    empty = Chart(1.0, [ChartPanel("workers", "workers", [Curve("all", [], "one")])])
    assert ET.fromstring(svg_of(empty, width=350)).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.75, "0.75"), (12.5, "12.5"), (1_277, "1,277"), (3.14159, "3.14")]
)
def test_values_of_a_scale(number: float, text: str) -> None:
    assert shown_value(number) == text
