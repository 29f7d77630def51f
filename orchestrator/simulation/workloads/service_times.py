"""How long tasks take when nothing recorded it: drawn around a mean. Pure."""

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Lognormal around `mean_seconds`. `spread` is the deviation over the mean: 0 is always the same, 1 is usual."""

    mean_seconds: float
    spread: float = 1.0

    def drawn(self, count: int, rng: Random) -> list[float]:
        """So many of them."""
        if not self.spread:
            return [self.mean_seconds] * count
        variance = math.log(1.0 + self.spread**2)
        deviation = math.sqrt(variance)
        middle = math.log(self.mean_seconds) - variance / 2.0
        return [rng.lognormvariate(middle, deviation) for _ in range(count)]
