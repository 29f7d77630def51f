"""Find when a trouble of a pool begins and ends, so that each is logged once although it comes and goes. Pure."""

from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value

Severity = Literal["none", "bounded", "growing", "late"]
"""`bounded`: a bound denies workers, and no task is late; `growing`: a task waits longer than the slo while workers are
added; `late`: one does, and none is added."""

BOUNDED_SECONDS: Final = 5.0
"""A trouble that is not `late` is logged once it has lasted so long: most bursts are over by then."""
CALM_SECONDS: Final = 10.0
"""A trouble is over once it has not been seen for so long."""

_RANK: Final[dict[Severity, int]] = {"none": 0, "bounded": 1, "growing": 2, "late": 3}


@value
class TroubleEpisode:
    """A trouble from its beginning to its end: when it was seen first and last, and what of it was logged."""

    began_at: Monotonic
    seen_at: Monotonic
    logged: Severity = "none"

    @property
    def seconds(self) -> float:
        """The time over which the trouble was seen."""
        return self.seen_at - self.began_at


@value
class EpisodeChange:
    """The state of a pool's trouble after a look: the episode, if there is one, and what to log of it.

    `begins`: it is to be logged as that; `ended`: an episode that was logged and is over.
    """

    episode: TroubleEpisode | None = None
    begins: Severity = "none"
    ended: TroubleEpisode | None = None


def after_check(before: TroubleEpisode | None, severity: Severity, *, now: Monotonic) -> EpisodeChange:
    """Return the episode after a look at `now`, at which the pool's trouble was as severe as this."""
    if severity == "none":
        if before is None or now - before.seen_at < CALM_SECONDS:
            return EpisodeChange(before)
        return EpisodeChange(None, ended=before if before.logged != "none" else None)
    began_at = now if before is None else before.began_at
    logged: Severity = "none" if before is None else before.logged
    is_lasting = severity == "late" or now - began_at >= BOUNDED_SECONDS
    if is_lasting and _RANK[severity] > _RANK[logged]:
        return EpisodeChange(TroubleEpisode(began_at, now, severity), begins=severity)
    return EpisodeChange(TroubleEpisode(began_at, now, logged))
