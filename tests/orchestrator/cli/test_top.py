"""`towline top`: its lines at any size of terminal, its keys, and its frames. Pure; the screen tests use a terminal."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.live_fleet import Json, ShownFleet
from orchestrator.cli.top.full_screen import frame_of, keys_in
from orchestrator.cli.top.screen import Marks, fleet_text, screen
from orchestrator.cli.top.view import (
    POOL_ORDERS,
    WORKER_ORDERS,
    TopView,
    pressed,
    scaled_size,
    shown_pools,
    shown_workers,
)
from orchestrator.fleet.figures import FleetFigures
from queue_core.cli.wrapping import columns_of
from queue_core.process.terminal import TerminalSize

NOON = 1_764_158_671.0
POOLS = ("resize", "render", "thumbs", "mail", "crawl", "index", "export", "report")


def a_fleet(pools: Sequence[str] = POOLS, *, workers: int = 9, **changes: object) -> ShownFleet:
    """A fleet in which the second pool waits longest, and each worker has done as many tasks as its number."""
    shown: dict[str, Json] = {}
    for number, name in enumerate(pools):
        settings: Json = {"queue": "q", "slo_seconds": 5.0, "settings_min": 0, "settings_max": 4}
        sample: Json = {"ready": number, "in_flight": 1, "oldest_seconds": 9.0 if number == 1 else 0.5}
        decision: Json = {"rule": "deadline", "limited_by": ["max"], "notes": []}
        shown[name] = {"current": 1, "target": 2, "settings": settings, "sample": sample, "decision": decision}
    listed = [
        {
            "worker": f"{pools[number % len(pools)]}-{number:06}",
            "pool": pools[number % len(pools)],
            "state": "busy" if number % 2 else "idle",
            "since": NOON - number,
            "spawned_at": NOON - 60,
            "finished": number,
            "memory_bytes": number << 20,
            "tasks": [{"task": f"cat-{number}", "held_seconds": float(number)}] if number % 2 else [],
        }
        for number in range(workers if pools else 0)
    ]
    decided = {"pool": "resize", "current": 1, "target": 2, "why": "3 tasks waiting, no worker running"}
    decisions = [{**decided, "at": NOON - 60 * number} for number in range(9)]
    snapshot: Json = {"phase": "leading", "url": "http://127.0.0.1:7878", "pools": shown, "workers": listed}
    return replace(ShownFleet(snapshot, True, 0.3, shown_at=NOON, decisions=decisions), **changes)  # type: ignore[arg-type]


def lines_of(columns: int, lines: int, view: TopView | None = None, fleet: ShownFleet | None = None) -> list[str]:
    return screen(fleet or a_fleet(), view or TopView(), TerminalSize(columns, lines), Marks(glyphs="#."), ["why"] * 40)


def after(keys: str | Sequence[str], figures: FleetFigures | None = None) -> TopView:
    """The view after these keys."""
    view = TopView()
    for key in keys:
        view, _ = pressed(view, key, figures or a_fleet().figures)
    return view


def test_forty_columns_and_ten_lines_still_show_pool_workers_ready_and_how_many_more() -> None:
    lines = lines_of(40, 10)
    assert [line.split() for line in lines[1:5]] == [
        ["POOL", "WORKERS", "BUSY", "READY", "OLDEST"],
        [">", "resize", "1", "0", "0", "-"],
        ["render", "1", "1", "1", "9", "s"],
        ["6", "more", "(up", "and", "down", "choose)"],
    ]
    assert any(line.startswith("7 more") for line in lines)
    assert lines[-1].startswith("q leave  ? keys")


def test_a_wide_terminal_shows_all_of_it_with_bars() -> None:
    text = "\n".join(lines_of(130, 40))
    for part in ("OF MAX", "##...... 4", "P99/SLO", "LIMITED BY", "cat-7", "S by settings"):
        assert part in text
    assert "more" not in text
    assert text.count("3 tasks waiting, no worker running") == 5


def test_a_decision_that_was_made_four_times_in_a_second_is_one_line_with_a_count() -> None:
    decided = {"pool": "resize", "target": 8, "why": "4 tasks waiting"}
    decisions = [{**decided, "at": NOON - number / 4, "current": 3 - number} for number in range(4)]
    text = "\n".join(lines_of(130, 40, fleet=a_fleet(decisions=decisions)))
    assert text.count("4 tasks waiting") == 1
    assert "0 -> 8: 4 tasks waiting (x4)" in text


@given(
    st.integers(1, 140),
    st.integers(1, 50),
    st.integers(0, 12),
    st.integers(0, 40),
    st.sampled_from(["fleet", "help", "why"]),
    st.integers(0, 60),
    st.booleans(),
)
def test_no_frame_is_larger_than_its_terminal(
    columns: int, lines: int, pools: int, workers: int, page: str, scroll: int, has_colours: bool
) -> None:
    fleet = a_fleet([f"pool-{number}" for number in range(pools)], workers=workers, trouble="the store is away")
    view = TopView(page=page, scroll=scroll, message="a message", name_part="pool")  # type: ignore[arg-type]
    frame = screen(fleet, view, TerminalSize(columns, lines), Marks(has_colours), ["x"] * 30)
    assert len(frame) <= lines
    assert all(columns_of(line) <= columns for line in frame)


def test_old_figures_and_a_drained_host_are_said_at_the_top() -> None:
    text = " ".join(lines_of(80, 24, fleet=a_fleet(trouble="no answer", age_seconds=2.0, is_drained=True)))
    assert "data is 2 s old (no answer)" in text
    assert "towline undrain" in text
    assert "no supervisor is running" in lines_of(80, 24, fleet=a_fleet(is_alive=False))[2]


def test_what_is_wrong_with_a_pool_is_a_sentence_under_the_pools() -> None:
    fleet = a_fleet(["resize"])
    fleet.pools["resize"]["concern"] = {"kinds": ["late"], "why": "1 task waits for 34 s, 29 s longer than its slo"}
    assert "! resize: 1 task waits for 34 s, 29 s longer than its slo" in lines_of(80, 24, fleet=fleet)


def test_texts_of_strangers_are_shown_and_not_obeyed() -> None:
    evil = "a\x1b[2J\nb"
    fleet = a_fleet([evil], workers=2)
    fleet.snapshot["url"] = evil
    for lines in (lines_of(80, 24, fleet=fleet), fleet_text(fleet, width=None, marks=Marks())):
        assert not any("\x1b" in line or "\n" in line for line in lines)


def test_the_chosen_pool_stays_in_sight() -> None:
    for place, name in enumerate(POOLS):
        view = after(["down"] * place)
        assert view.pool == ("" if not place else name)
        assert any(line.startswith(f"> {name} ") for line in lines_of(40, 10, view))
    assert after(["down"] * 30).pool == POOLS[-1]
    assert after(["end", "home"]).pool == POOLS[0]


def test_pools_and_workers_are_sorted_by_what_matters() -> None:
    figures = a_fleet().figures
    by_wait = replace(TopView(), pool_order="oldest")
    assert shown_pools(figures, by_wait)[0].pool == "render"
    assert [shown_pools(figures, replace(TopView(), pool_order=order))[0].pool for order in POOL_ORDERS] == [
        *("resize", "report", "render", "resize", "crawl")
    ]
    first = {order: shown_workers(figures, replace(TopView(), worker_order=order))[0].worker for order in WORKER_ORDERS}
    assert first == {
        "age": "resize-000000",
        "state": "render-000001",
        "busy for": "report-000007",
        "done": "resize-000008",
        "memory": "resize-000008",
        "name": "crawl-000004",
    }
    assert after("s" * len(WORKER_ORDERS)) == after("S" * len(POOL_ORDERS)) == TopView()


def test_a_filter_is_typed_and_dropped() -> None:
    figures = a_fleet().figures
    view = after(["/", "R", "e", "x", "backspace", "enter"])
    assert (view.name_part, view.is_typing) == ("Re", False)
    assert [pool.pool for pool in shown_pools(figures, view)] == ["resize", "render", "report"]
    assert {worker.pool for worker in shown_workers(figures, view)} == {"resize", "render", "report"}
    assert after(["/", "q"]).name_part == "q"
    assert after(["/", "q", "escape"]) == TopView()
    assert "no pool with 'none'" in " ".join(lines_of(80, 24, replace(TopView(), name_part="none")))


@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("q", "quit"),
        ("enter", "explain"),
        ("w", "explain"),
        ("+", "grow"),
        ("-", "shrink"),
        ("0", "reset"),
        ("x", None),
    ],
)
def test_a_key_asks_for_an_action(key: str, action: str | None) -> None:
    assert pressed(TopView(), key, a_fleet().figures)[1] == action


def test_a_page_is_scrolled_and_left() -> None:
    assert after("?").page == "help"
    assert after(["?", "down", "down", "up"]).scroll == 1
    assert after(["?", "escape"]) == after(["?", "?"]) == TopView()
    first, later = lines_of(40, 10, TopView(page="help")), lines_of(40, 10, TopView(page="help", scroll=5))
    assert first[5] == later[0]
    assert "escape back" in later[-1]


def test_a_pause_is_shown_with_its_time() -> None:
    view = after("p")
    assert view.is_paused
    assert "paused at" in lines_of(80, 24, view)[0]
    assert "p go on" in lines_of(80, 24, view)[-1]
    assert after("p ") == TopView()


@pytest.mark.parametrize(
    ("step", "size", "found"),
    [
        pytest.param(1, None, 3, id="from the size decided on"),
        pytest.param(-1, 4, 3, id="from the size set by hand"),
        pytest.param(1, 4, 4, id="not beyond the max"),
        pytest.param(-1, 0, 0, id="nor below the min"),
    ],
)
def test_a_pool_is_scaled_within_its_bounds(step: int, size: int | None, found: int) -> None:
    pool = a_fleet().figures.pools[0]
    workers, why_not = scaled_size(pool, step=step, size=size)
    assert workers == found
    assert bool(why_not) == (size is not None and found == size)


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1bOB", ["up", "down"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["page up", "page down", "home", "end"]),
        ("\x1b", ["escape"]),
        ("é\r\x7f", ["é", "enter", "backspace"]),
        ("\x1b[1;5C\x1b[200~\x00\x02", []),
    ],
)
def test_keys_are_read_from_what_a_terminal_sends(sent: str, keys: list[str]) -> None:
    assert keys_in(sent) == keys


def test_a_frame_leaves_nothing_of_the_one_before() -> None:
    size = TerminalSize(10, 3)
    assert frame_of(["a", "b"], size, clears=False) == "\x1b[1;1H\x1b[2Ka\x1b[2;1H\x1b[2Kb\x1b[3;1H\x1b[J"
    assert frame_of(["a", "b", "c", "d"], size, clears=True).startswith("\x1b[2J")
    assert "d" not in frame_of(["a", "b", "c", "d"], size, clears=False)


def test_deaths_of_the_last_minutes_are_named_beside_the_pools() -> None:
    killed = [{"at": NOON - n, "worker": f"resize-{n}", "detail": "ended by SIGKILL"} for n in range(5)]
    long_ago = {"at": NOON - 700, "worker": "resize-old", "detail": "exit code 1"}
    text = "\n".join(lines_of(130, 40, fleet=a_fleet(deaths=[*killed, long_ago])))
    assert "! 5 workers died within 10 min; last resize-0: ended by SIGKILL" in text
    assert "! 1 worker died within 10 min; last resize-1" in "\n".join(
        lines_of(130, 40, fleet=a_fleet(deaths=killed[1:2]))
    )
    assert "died" not in "\n".join(lines_of(130, 40, fleet=a_fleet(deaths=[long_ago])))
