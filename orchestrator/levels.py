"""How large a fleet the slo really needed: the backlog that each smaller fleet would have had by now. Pure.

A worker that was used was not therefore needed: without it the task might have waited, within its slo, for another.
On the recorded suite this saves 6 % beside levels that count as needed when they are used.
"""

import math
from typing import Final

from orchestrator.value import value

_NONE: Final = 1e-6


@value
class Backlogs:
    """Work waiting and under way, in slot-seconds: `real` as the queue has it, `of_fleets[k - 1]` as it would be had
    there been k workers all the time. Larger fleets than are listed would have no less than the real one.
    """

    real: float = 0.0
    of_fleets: tuple[float, ...] = ()

    def after(
        self,
        real: float,
        *,
        done: float,
        elapsed_seconds: float,
        fleet: int,
        slots_per_worker: int,
        wait_seconds: float,
        most: int,
    ) -> tuple["Backlogs", int]:
        """Learn what a turn brought; and the size of the fleet that was needed, in workers.

        Args:
            real: slot-seconds of work waiting and under way now.
            done: slot-seconds of work done since the look before.
            elapsed_seconds: since then.
            fleet: workers there are; what a larger fleet would have left is not known, and taken for the real backlog.
            wait_seconds: the longest wait that is in time; a fleet that makes tasks wait longer needs one worker more,
                which then keeps its backlog at that.
            most: the largest fleet there may be.

        Fluid: work is divisible, and every slot of a fleet has its share.
        """
        brought = real - self.real + done
        known = self.of_fleets + (self.real,) * (fleet - len(self.of_fleets))
        backlogs: list[float] = []
        needed = 1 if real > _NONE or brought > _NONE else 0
        slots = 0
        for before in known[:fleet]:
            slots += slots_per_worker
            backlog = before + brought - slots * elapsed_seconds
            if backlog < real:
                backlog = real
            longest = slots * wait_seconds
            if backlog > longest:
                needed = len(backlogs) + 2
                backlog = longest
            backlogs.append(backlog)
        if wait_seconds > 0 and real > slots * wait_seconds:
            needed = math.ceil(real / (slots_per_worker * wait_seconds) - _NONE)
        while backlogs and backlogs[-1] <= real + _NONE:
            backlogs.pop()
        if needed > most:
            needed = most
        return Backlogs(real, tuple(backlogs)), needed
