"""The commands whose screens are kept, and what is known to be wrong with them."""

from dataclasses import dataclass
from typing import Final, Literal

from tests.screens.terminal import Size

SHAPE: Final = "poisson:2/s,service=3s,for=5m"
SIMULATE: Final = ("simulate", "--shape", SHAPE, "--slo", "30s", "--rules", "one-per-task,celery", "--cores", "2")

SIZES: Final = (Size(80, 24), Size(120, 40), Size(40, 10))
WIDE: Final = Size(1_000, 50)
"""A terminal on which nothing is broken or left out."""
Look = Literal["80 x 24", "120 x 40", "40 x 10", "dumb", "NO_COLOR", "pipe", "wide"]


@dataclass(frozen=True, slots=True)
class ScreenCase:
    """A command whose screens are kept in the file of its name.

    `varies`: its words depend on the machine or on every setting there is, so that no text of it is kept.
    """

    name: str
    arguments: tuple[str, ...]
    code: int = 0
    varies: bool = False


CASES: Final = (
    ScreenCase("pools", ("pools",)),
    ScreenCase("workers", ("workers",)),
    ScreenCase("top", ("top", "--once")),
    ScreenCase("why-pool", ("why", "resize")),
    ScreenCase("why-task", ("why", "cat-17")),
    ScreenCase("why-died", ("why-died",)),
    ScreenCase("why-died-worker", ("why-died", "resize-k2ac81")),
    ScreenCase("peek", ("peek", "thumbs")),
    ScreenCase("peek-dead", ("peek", "thumbs", "--state", "dead")),
    ScreenCase("peek-nothing", ("peek", "transcoding", "--state", "dead")),
    ScreenCase("events", ("events",)),
    ScreenCase("events-of-task", ("events", "--task", "cat-17")),
    ScreenCase("events-nothing", ("events", "--task", "cat-99")),
    ScreenCase("logs", ("logs",)),
    ScreenCase("simulate", (*SIMULATE, "--startup", "2s")),
    ScreenCase("simulate-chart", (*SIMULATE, "--startup", "2s", "--chart")),
    ScreenCase("backtest", ("backtest", "--rules", "one-per-task", "--cores", "2", "--startup", "2s")),
    ScreenCase("doctor", ("doctor",), varies=True),
    ScreenCase("plan", ("plan",), varies=True),
    ScreenCase("queues", ("queues",)),
    ScreenCase("stats", ("stats", "thumbs")),
    ScreenCase("tags", ("stats", "thumbs", "--tags")),
    ScreenCase("config", ("config", "--origin"), varies=True),
    ScreenCase("health", ("health",), varies=True),
    ScreenCase("check", ("check",)),
    ScreenCase("check-wrong", ("check", "wrong.yaml"), code=78),
    ScreenCase("help", ("--help",)),
    ScreenCase("no-command", ("pols",), code=2),
    ScreenCase("no-size", ("scale", "resize", "-1"), code=2),
    ScreenCase("no-url", ("queues", "--url", "localhost:7878"), code=78),
    ScreenCase("no-duration", ("lease", "thumbs", "--wait", "5 s"), code=2),
    ScreenCase("too-many-workers", ("scale", "resize", "99"), code=65),
    ScreenCase("host-only", ("plan", "--url", "http://queue.example:7878"), code=2),
    ScreenCase("init-again", ("init",)),
)

BROKEN: Final[dict[tuple[str, Look], str]] = {}
"""Cases that fail, and why. They are strict: one that passes fails, until it is taken out here."""
