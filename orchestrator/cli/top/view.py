"""The view of `towline top`: the rows that it shows of a fleet, and how keys change it. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from orchestrator.base.values import value
from orchestrator.fleet.figures import FleetFigures, PoolFigures, WorkerFigures

Page = Literal["fleet", "help", "why"]
Action = Literal["quit", "explain", "grow", "shrink", "reset"]
"""A change that a key asks for beyond the view."""

POOL_ORDERS: Final = ("settings", "ready", "oldest", "workers", "name")
WORKER_ORDERS: Final = ("age", "state", "busy for", "done", "memory", "name")

KEYS: Final = (
    ("q", "leave"),
    ("?", "these keys, and the words"),
    ("up, down", "choose a pool; on a page of text: scroll"),
    ("page up, page down", "scroll the workers"),
    ("enter, w", "why the chosen pool has its size"),
    ("+, -", "one worker more or fewer in the chosen pool for an hour, within its min and max"),
    ("0", "the chosen pool's size is that of its settings again"),
    ("/", "show only pools and workers with this in their name"),
    ("s, S", "sort the workers, the pools"),
    ("p, space", "hold the view still; again: go on"),
    ("escape", "back; drop the filter"),
)
WORDS: Final = (
    ("starting", "it has not requested a task yet"),
    ("leasing", "a call of it waits for a task"),
    ("busy", "it works on TASK, and has held it FOR so long"),
    ("idle", "it holds no task, and no call of it waits"),
    ("finishing", "it was asked to end, and gets no more tasks"),
    ("P99/SLO", "of the last hour's waits the 99th percentile, over the slo"),
)


@value
class TopView:
    """The state of the view: the chosen pool ("": the first), orders, filter and page."""

    pool: str = ""
    pool_order: str = POOL_ORDERS[0]
    worker_order: str = WORKER_ORDERS[0]
    name_part: str = ""
    is_typing: bool = False
    is_paused: bool = False
    page: Page = "fleet"
    scroll: int = 0
    message: str = ""


def shown_pools(figures: FleetFigures, view: TopView) -> list[PoolFigures]:
    """Return the pools that the filter lets through, in the view's order: the most of it first."""
    found = [pool for pool in figures.pools if _matches(view, pool.pool)]
    match view.pool_order:
        case "ready":
            found.sort(key=lambda pool: -pool.ready)
        case "oldest":
            found.sort(key=lambda pool: -pool.oldest_seconds)
        case "workers":
            found.sort(key=lambda pool: -pool.workers)
        case "name":
            found.sort(key=lambda pool: pool.pool)
    return found


def shown_workers(figures: FleetFigures, view: TopView) -> list[WorkerFigures]:
    """Return the workers that the filter lets through, in the view's order."""
    found = [worker for worker in figures.all_workers if _matches(view, worker.worker, worker.pool)]
    match view.worker_order:
        case "state":
            found.sort(key=lambda worker: worker.state)
        case "busy for":
            found.sort(key=lambda worker: -max((task.held_seconds for task in worker.tasks), default=-1.0))
        case "done":
            found.sort(key=lambda worker: -worker.finished)
        case "memory":
            found.sort(key=lambda worker: -worker.memory_bytes)
        case "name":
            found.sort(key=lambda worker: worker.worker)
    return found


def chosen(pools: Sequence[PoolFigures], view: TopView) -> PoolFigures | None:
    """Return the chosen pool, or the first where that is not shown; None without any."""
    return next((pool for pool in pools if pool.pool == view.pool), pools[0] if pools else None)


def pressed(view: TopView, key: str, figures: FleetFigures) -> tuple[TopView, Action | None]:
    """Return the view after a key, and what the key asks for beyond it."""
    view = replace(view, message="")
    if view.is_typing:
        return _typed(view, key), None
    if key == "q":
        return view, "quit"
    if key == "?":
        return replace(view, page="fleet" if view.page == "help" else "help", scroll=0), None
    if view.page != "fleet":
        return _on_a_page(view, key), None
    return _on_the_fleet(view, key, figures)


def scaled_size(pool: PoolFigures, *, step: int, size: int | None) -> tuple[int, str]:
    """Return the size that a step away from the present one gives, and why it is not more or less ("": it is).

    `size` is the one set by hand; None: there is none, and the decided one counts.
    """
    before = size if size is not None else pool.target if pool.target is not None else pool.workers
    low, high = pool.min_workers or 0, pool.max_workers
    wanted = before + step
    if wanted < low:
        return low, f"{pool.pool}: its min is {low}"
    if high is not None and wanted > high:
        return high, f"{pool.pool}: its max is {high}; `towline scale {pool.pool} {wanted}` says how to go beyond"
    return wanted, ""


def _on_the_fleet(view: TopView, key: str, figures: FleetFigures) -> tuple[TopView, Action | None]:
    action: Action | None = None
    match key:
        case "up" | "down" | "home" | "end":
            view = _moved(view, key, figures)
        case "page up" | "page down":
            view = replace(view, scroll=max(0, view.scroll + (5 if key == "page down" else -5)))
        case "enter" | "w":
            action = "explain"
        case "+" | "=":
            action = "grow"
        case "-":
            action = "shrink"
        case "0":
            action = "reset"
        case "/":
            view = replace(view, is_typing=True, name_part="")
        case "s":
            view = replace(view, worker_order=_next(WORKER_ORDERS, view.worker_order), scroll=0)
        case "S":
            view = replace(view, pool_order=_next(POOL_ORDERS, view.pool_order))
        case "p" | " ":
            view = replace(view, is_paused=not view.is_paused)
        case "escape":
            view = replace(view, name_part="", scroll=0)
    return view, action


def _on_a_page(view: TopView, key: str) -> TopView:
    match key:
        case "up" | "page up":
            return replace(view, scroll=max(0, view.scroll - (1 if key == "up" else 10)))
        case "down" | "page down":
            return replace(view, scroll=view.scroll + (1 if key == "down" else 10))
        case "escape" | "enter" | "w" | "backspace":
            return replace(view, page="fleet", scroll=0)
    return view


def _typed(view: TopView, key: str) -> TopView:
    match key:
        case "enter":
            return replace(view, is_typing=False)
        case "escape":
            return replace(view, is_typing=False, name_part="")
        case "backspace":
            return replace(view, name_part=view.name_part[:-1])
    return replace(view, name_part=view.name_part + key) if len(key) == 1 and key.isprintable() else view


def _moved(view: TopView, key: str, figures: FleetFigures) -> TopView:
    pools = shown_pools(figures, view)
    now = chosen(pools, view)
    if now is None:
        return view
    last = len(pools) - 1
    place = {"home": 0, "end": last}.get(key, pools.index(now) + (1 if key == "down" else -1))
    return replace(view, pool=pools[min(max(0, place), last)].pool)


def _matches(view: TopView, *names: str) -> bool:
    return any(view.name_part.casefold() in name.casefold() for name in names)


def _next(choices: Sequence[str], choice: str) -> str:
    return choices[(choices.index(choice) + 1) % len(choices)]
