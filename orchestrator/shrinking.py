"""The rules that let idle workers go: each after a hold learned at its level, or once a smaller fleet does. Pure."""

from collections.abc import Mapping

from orchestrator.scene import Scene, Wish, restart_seconds
from orchestrator.upcoming import fewest


def shrink(scene: Scene) -> tuple[Wish, Mapping[int, float]]:
    """Let idle workers go, least recently used first, while a rule says so; and the hold of each level looked at.

    A worker's level counts those that are up: while others start, the one that is idle is all there is.
    """
    facts = scene.facts
    sample, spec, now = facts.sample, facts.spec, facts.now
    wish = Wish(facts.current, "hold", "nothing to change")
    if not scene.idle or (sample.ready and not sample.paused):
        return wish, {}
    state = scene.state
    restart = restart_seconds(state.estimates, spec)
    below = scene.crew.workers_below if scene.crew.helpers else 0  # the pool's first worker is number below + 1 of all
    starting = len(scene.crew.ready_in_seconds)
    level = facts.current - starting
    low = max(spec.workers.min - starting, scene.warm.kept - below, scene.busy, fewest(scene) - starting)
    held: dict[int, float] = {}
    for worker in scene.idle:
        if level <= low:
            break
        needed_at = state.estimates.gaps.needed_at(level + below)
        spare_at = worker.since if needed_at is None else needed_at
        if level <= len(state.grown_at):  # what was asked for a moment ago is not spare, whatever was needed till then
            spare_at = max(spare_at, state.grown_at[level - 1])
        spare_seconds = now - spare_at
        hold = held[level] = state.estimates.gaps.hold_seconds(level + below, restart_seconds=restart)
        if spare_seconds >= hold:
            why = f"worker {level} was not needed for {spare_seconds:.0f} s; it pays to keep it for {hold:.0f} s"
            wish = Wish(level - 1 + starting, "idle", why)
        elif level - 1 + below >= max(1, state.paper.workers) and scene.pace.is_start_in_time:
            why = f"{max(1, state.paper.workers)} meet the slo on paper, for {restart:.0f} s now"
            wish = Wish(level - 1 + starting, "paper", why)
        else:
            break
        level -= 1
    return wish, held
