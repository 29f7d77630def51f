"""Watch the clock below the store's time: a step is noticed within a second, even while nobody calls, and told."""

import asyncio
from collections.abc import Callable

from queue_core.clock import ClockSteps, StepsClock
from queue_core.log import get_logger
from queue_core.process.wording import clock_step_words
from queue_core.server.base import events
from queue_core.server.commit.group_commit import Committer
from queue_core.unit.unit_of_work import UnitOfWork

LOOK_SECONDS = 1.0
"""Seconds between two looks."""

log = get_logger()


class ClockWatch:
    """Looks at a store's clock now and then. Lives in the server's loop."""

    def __init__(self, committer: Committer, clock: object, *, look_for_etas: Callable[[], None]) -> None:
        """Args:
        clock: the store's; one that knows no steps is not watched.
        look_for_etas: called while etas may pass that the store's time has not reached.
        """
        self._committer = committer
        self._clock = clock if isinstance(clock, StepsClock) else None
        self._look_for_etas = look_for_etas
        self._told = self.steps().steps
        self._timer: asyncio.TimerHandle | None = None

    def steps(self) -> ClockSteps:
        """Return the steps of the clock so far; any thread may call this."""
        return ClockSteps() if self._clock is None else self._clock.steps()

    def start(self) -> None:
        """Begin to look; called in the loop."""
        if self._clock is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        assert self._clock is not None, "only a clock that may be stepped is watched"
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        if self._clock.is_stepped():
            self._committer.submit(_nothing, lambda _outcome: self._report())  # a change in the store notices it
        self._report()

    def _report(self) -> None:
        steps = self.steps()
        if steps.lag_seconds > 0:
            self._look_for_etas()
        if steps.steps != self._told:
            self._told = steps.steps
            log.warning(
                events.CLOCK_STEPPED,
                step_seconds=round(steps.step_seconds, 3),
                lag_seconds=round(steps.lag_seconds, 3),
                slewed_seconds=round(steps.slewed_seconds, 1),
                sentence=f"The clock was {clock_step_words(steps)}; no lease is affected.",
            )


def _nothing(_work: UnitOfWork) -> None:
    """Change nothing."""
