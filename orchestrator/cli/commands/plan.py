"""`towline plan`: sample, learn, decide and plan as one turn would, print the result and execute nothing."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import cast

from orchestrator.assembly import celery_fleets
from orchestrator.base.clock import Monotonic, MonotonicClock, SystemMonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import QueueSample, UnservedTag
from orchestrator.cli.live_fleet import Json
from orchestrator.cli.project_file import load_project
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.figures import DRAINED, describe_pause, figures_of
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet, adopted, joined, unresponsive
from orchestrator.scaling.context import context_of
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Decision
from orchestrator.scaling.learning import PolicyState, learn
from orchestrator.scaling.plan import Plan, plan_actions
from orchestrator.scaling.policy import decide
from orchestrator.scaling.sharing import SharingPool, helper, order_of, sharers
from orchestrator.scaling.upcoming import lead_seconds
from orchestrator.settings_file import state_of
from orchestrator.source import SampleQuery
from orchestrator.sources.by_pool import PoolSources
from orchestrator.sources.pull_queue import QueueSource, as_reported, tags_of, unserved_in
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.conditions import ConditionsTracker
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_option, json_option
from queue_core.cli.output import echo, print_info, print_json, print_wrapped
from queue_core.cli.target import opened
from queue_core.client.queue import Queues
from queue_core.config.pool_tags import PoolTags
from queue_core.process.wording import counted


@command("plan", examples=("towline plan", "towline plan -f deploy/towline.yaml --json"))
@file_option
@json_option
def plan(file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Show what a supervisor would do now for each pool, and why. Nothing is started, stopped or written.

    The queues are sampled once, so arrival rates come from what an earlier supervisor learned, if there was one.
    """
    project = load_project(file)
    files, clock = state_of(project), SystemMonotonicClock()
    learned, tracker = _learned(files), ConditionsTracker(files, clock=clock)
    tracker.overrides.changed()
    is_drained = tracker.overrides.drained_at() is not None
    for trouble in tracker.take_errors():
        print_info(trouble)
    sampled: dict[str, SharingPool] = {}
    with (
        ExitStack() as stack,
        opened(makes_queues=False, url=None, store=None, token_file=None, file=file) as (queues, target),
    ):
        there = {spec.name for spec in queues.queues()}
        missing = [name for name in project.queue_file.queues if name not in there]
        brokers = stack.enter_context(closing(celery_fleets()))
        source, fleets = PoolSources(QueueSource(queues), brokers), _fleets(project.pools, files, clock)
        states = {name: _state_of(learned.get(name)) for name in project.pools}
        queries = [
            SampleQuery(
                pool, fleets[name].workers.keys(), lead_seconds(states[name].estimates, pool, DEFAULT_CONDITIONS)
            )
            for name, pool in project.pools.items()
        ]
        asked = [query for query in queries if not there.isdisjoint(query.pool.queues)]
        ahead = source.samples(asked, now=clock.monotonic())
        for query in queries:
            pool, name = query.pool, query.pool.name
            sample = ahead.get(name)
            try:
                if there.isdisjoint(pool.queues):  # the next reload makes it; until then it has no tasks
                    sample = QueueSample(clock.monotonic(), ready=0, delayed=0, in_flight=0, dead=0)
                elif sample is None:
                    sample = source.sample(
                        pool, workers=query.workers, ahead_seconds=query.ahead_seconds, now=clock.monotonic()
                    )
                elif isinstance(sample, SourceUnavailableError):
                    raise sample
            except SourceUnavailableError as error:
                where = target.shown if pool.source is None else f"the broker of pool {name}"
                raise CommandError(str(error), code=exits.UNAVAILABLE, where=where) from error
            sampled[name] = SharingPool(pool, observe(fleets[name], sample), sample, states[name])
        unserved = _unserved(queues, [pool for pool in project.pools.values() if not there.isdisjoint(pool.queues)])
    decided = _decide_in_order(sampled, clock, tracker)
    if as_json:
        records = []
        for pool in project.pools.values():
            found = [one.record() for one in unserved if one.queue in pool.queues]
            made = {"make_queue": pool.queue if pool.queue in missing else None}
            decision, todo = decided[pool.name]
            records.append(decision.record() | _actions(todo) | made | {"drained": is_drained, "unserved": found})
        print_json(records)
        return exits.OK
    published = _states(files)
    for sentence in ([DRAINED] if is_drained else []) + [f"{one.queue}: {one.sentence}" for one in unserved]:
        print_wrapped(sentence, "! ")
    for name in missing:
        echo(f"queue {name}: would be made")
    for name in project.pools:
        _print(*decided[name], sampled[name], published.get(name, ()), is_drained=is_drained)
    return exits.OK


def _states(files: StateDir) -> dict[str, list[str]]:
    """Return each pool's states as a running supervisor published them, but for pauses of queues, which are sampled."""
    snapshot = files.read_snapshot() if files.is_supervised() else None
    pools = figures_of(snapshot or {}, now_seconds=0.0).pools
    return {pool.pool: [state for state in pool.states if state != describe_pause(pool.queue)] for pool in pools}


def _unserved(queues: Queues, pools: Iterable[PoolSpec]) -> list[UnservedTag]:
    """Return the tags of waiting tasks that no pool works on. Raises `QueueError`."""
    by_queue: dict[str, list[PoolTags]] = {}
    for pool in pools:
        for queue in pool.queues:
            by_queue.setdefault(queue, []).append(PoolTags(pool.name, queue, tags_of(pool)))
    return [one for served in by_queue.values() for one in unserved_in(queues, as_reported(queues, served))]


def _decide_in_order(
    sampled: dict[str, SharingPool], clock: MonotonicClock, tracker: ConditionsTracker
) -> dict[str, tuple[Decision, Plan]]:
    """Decide for one pool after the other, in a turn's order: starts planned for one count for the next."""
    shared = sharers(pool.spec for pool in sampled.values())
    found = {}
    for name in sorted(sampled, key=lambda name: order_of(sampled[name].spec)):
        pool, now = sampled[name], clock.monotonic()
        spec, conditions = tracker.of(pool.spec, pool.fleet)
        others = [sampled[other] for other in shared.get(name, ()) if sampled[other].fleet.alive]
        conditions = replace(conditions, helpers=tuple([helper(pool, other, now=now) for other in others]))
        learned = learn(pool.state, pool.sample, fleet=pool.fleet, spec=spec, now=now)
        decision = decide(
            context_of(pool.sample, fleet=pool.fleet, spec=spec, state=learned, now=now, conditions=conditions)
        )
        todo = plan_actions(decision, fleet=pool.fleet, spec=spec, now=now)
        found[name] = decision, todo
        fleet = pool.fleet
        for number, _ in enumerate(todo.spawn):
            worker = f"{name}-{number}"
            fleet = joined(fleet, worker=worker, ref="", spec_digest=spec.digest(), spawned_at=now)
        sampled[name] = replace(pool, fleet=fleet)
    return found


def _state_of(learned: object) -> PolicyState:
    try:
        return PolicyState.from_json(learned) if learned is not None else PolicyState()
    except ValueError:
        return PolicyState()


def _fleets(pools: Iterable[str], files: StateDir, clock: MonotonicClock) -> dict[str, Fleet]:
    """Return the pools' workers as a running supervisor published them; empty fleets without one."""
    fleets = {name: Fleet(name) for name in pools}
    snapshot = files.read_snapshot() if files.is_supervised() else None
    offset = clock.monotonic() - clock.wall_seconds()
    for worker in cast("list[Json]", (snapshot or {}).get("workers", [])):
        name = str(worker.get("pool"))
        if name not in fleets or worker.get("state") in ("draining", "killed"):
            continue
        fleets[name] = adopted(
            fleets[name],
            worker=str(worker["worker"]),
            ref=str(worker["ref"]),
            spec_digest=str(worker["spec_digest"]),
            spawned_at=Monotonic(cast("float", worker["spawned_at"]) + offset),
            now=clock.monotonic(),
        )
        if worker.get("state") == "unresponsive":
            fleets[name] = unresponsive(fleets[name], str(worker["worker"]), now=clock.monotonic())
    return fleets


def _learned(files: StateDir) -> dict[str, object]:
    try:
        return files.read_learned()
    except ValueError:
        return {}


def _actions(todo: Plan) -> dict[str, object]:
    return {
        "spawn": len(todo.spawn),
        "retire": [leave.worker for leave in todo.retire],
        "finish": [leave.worker for leave in todo.finish],
        "kill": [leave.worker for leave in todo.kill],
        "end": [leave.worker for leave in todo.end],
    }


def _print(decision: Decision, todo: Plan, pool: SharingPool, states: Sequence[str], *, is_drained: bool) -> None:
    head = f"{decision.pool}: {decision.current} -> {counted(decision.target, 'worker')}, by rule `{decision.rule}`"
    print_wrapped(head, hang=2)
    print_wrapped(decision.why, "  ")
    if pool.sample.paused and "queue_paused" not in decision.limited_by:
        for queue in pool.spec.queues:
            print_wrapped(describe_pause(queue), "  ! ")
    for state in states:
        if state not in decision.notes:
            print_wrapped(state, "  ! ")
    if decision.trouble and decision.trouble != decision.why:
        print_wrapped(decision.trouble, "  ! ")
    for limit in decision.limits:
        print_wrapped(f"limited by {limit.guard}: {limit.why}", "  ", hang=4)
    for note in decision.notes:
        print_wrapped(note, "  in force: ", hang=4)
    would = "without the drain it would" if is_drained else "would"
    if todo.spawn:
        print_wrapped(f"{would} start {counted(len(todo.spawn), 'worker')}", "  ", hang=4)
    for verb, leaves in (("retire", todo.retire), ("drain", todo.finish), ("end", (*todo.kill, *todo.end))):
        for leave in leaves:
            print_wrapped(f"{would} {verb} {leave.worker}: {leave.why}", "  ", hang=4)
    if todo.is_empty or is_drained:
        echo("  would do nothing" + (" while this host is drained" if is_drained else ""))
