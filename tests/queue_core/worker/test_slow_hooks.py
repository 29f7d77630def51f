"""A hook that runs for long is logged, with the line at which it stands, until it ends."""

import threading
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from queue_core.clock import SystemClock
from queue_core.errors import AppError
from queue_core.worker import events
from queue_core.worker.functions.hooks import AppHooks
from queue_core.worker.slow_hooks import SlowHooks


class Waiting:
    """A log, and whether it has two entries: a hook waits for that."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.is_told = Event()

    def warning(self, event: str, **fields: object) -> None:
        """Keep an entry, as a logger does."""
        self.entries.append({"event": event, **fields})
        if len(self.entries) == 2:
            self.is_told.set()


def run(log: Waiting, register: Callable[[AppHooks], object]) -> None:
    """Run the hooks that `register` registers, one of which waits."""
    hooks = AppHooks()
    register(hooks)
    hooks.start(_complete, SlowHooks(log, SystemClock(), slow_seconds=0.001).watch)


def _complete(coroutine: object, timeout_seconds: float | None = None) -> object:
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits for nothing")


def test_a_hook_that_runs_for_long_is_named_with_its_line() -> None:
    log = Waiting()

    def load_model() -> None:
        assert log.is_told.wait(30)

    run(log, lambda hooks: hooks.on_start(load_model))
    first, second = log.entries[:2]
    assert (first["event"], first["hook"]) == (events.HOOK_SLOW, "on_start load_model")
    assert f"{__file__}:" in str(second["stack"]), "the first may have come before the hook's own line"
    assert "in load_model" in str(second["stack"])
    assert str(first["sentence"]).startswith("on_start load_model has been running for ")
    assert "test_slow_hooks.py:" in str(first["sentence"])
    assert float(str(second["seconds"])) >= float(str(first["seconds"]))


def test_a_generator_is_named_as_well() -> None:
    log = Waiting()

    def open_client() -> Iterator[int]:
        assert log.is_told.wait(30)
        yield 1

    run(log, lambda hooks: hooks.on_start(open_client))
    assert "in open_client" in str(log.entries[1]["stack"])


def test_an_async_hook_is_named_with_its_line() -> None:
    log = Waiting()

    async def connect() -> None:
        assert log.is_told.wait(30)

    run(log, lambda hooks: hooks.on_start(connect))
    assert log.entries[0]["hook"] == "on_start connect"
    assert "in connect" in str(log.entries[1]["stack"])


def test_a_hook_that_fails_is_watched_no_longer() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(AppError, match=r"on_start .*fails failed"):
        run(Waiting(), lambda hooks: hooks.on_start(fails))
    assert "slow-hooks" not in [thread.name for thread in threading.enumerate()]
