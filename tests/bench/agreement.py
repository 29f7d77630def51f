"""Compare the project's simulator with an outside one: same policy, tasks and settings, but own starts and turns.

    python3 -m tests.bench.agreement --simulator PATH/autoscale_sim.py --traces PATH/traces

The outside file is loaded from its path and is not part of the project. For each of its scenarios both run the policy
over the same seeds. Mean worker-seconds must agree within 3 % (or within three standard errors of the difference, if
that is more), late shares within 0.3 points, clairvoyant schedules within 1 %. Exit code 1 when a scenario does not.

Waits, changes and starts are shown, not compared. These differences can't be removed through the outside's interface:

- Both draw start times from one distribution, but in different order, and their turns fall on different instants: an
  outside turn that is due at once, or follows one that was, comes up to a tenth of a turn late (see `sim_adapter`). So
  runs of one seed diverge at the first start, and only means over seeds are comparable.
- A lease that began and ended between two samples is assumed to have ended half-way; of the leases that began between
  two samples, those still running are assumed to be the late ones.
- When a guard retires busy workers, the outside starts with the oldest workers, a pool with the youngest leases
  (`plan`).

The scenario `meta` magnifies this: without a guard a burst drives the pool into contention, from which it never
recovers.
"""

import argparse
import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.simulation.rules import RuleScaler, rule_settings
from orchestrator.simulation.scaler import PolicyScaler, Scaler
from orchestrator.simulation.study import hindsight, simulate
from orchestrator.simulation.workload import SimulatedWorld, Workload
from tests.bench.sim_adapter import CORES, Towline

COST_SHARE: Final = 0.03
LATE_SHARE: Final = 0.003
YARDSTICK_SHARE: Final = 0.01
_ERRORS: Final = 3.0
_MODULE: Final = "outside_simulator"
_RULES: Final = {
    "one-per-task": "naive",
    "keda-hpa": "keda",
    "keda-hpa-tuned": "keda_tuned",
    "celery": "celery",
    "target-tracking": "aws_tt",
}


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run: worker-seconds, late share, waits in slos, changes of size, starts."""

    cost: float
    late: float
    p99_over_slo: float
    worst_over_slo: float
    changes: float
    starts: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return 1 when they disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", type=Path, required=True, help="the outside simulator's file")
    parser.add_argument("--traces", type=Path, required=True, help="the folder of its arrivals")
    parser.add_argument("--suite", default="anchor", choices=("anchor", "synth", "guard"))
    parser.add_argument("--only", default="", help="scenarios, by name")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rules", action="store_true", help="compare the standard rules too, which both have")
    options = parser.parse_args(arguments)
    outside = _loaded(options.simulator)
    chosen = options.only.split(",") if options.only else None
    print(
        f"{'scenario':<10} {'what':<16} {'worker-hours':>20} {'':>7} {'late':>15} {'p99/slo':>13} {'worst/slo':>13} "
        f"{'changes':>13} {'starts':>13}"
    )
    agree = True
    for scenario in _scenarios(outside, options.suite, options.traces):
        if chosen is None or scenario.name.rstrip("*") in chosen:
            agree &= _yardsticks_agree(outside, scenario)
            agree &= _agree(outside, scenario, "towline", Towline, range(1, options.seeds + 1))
            for ours, theirs in _RULES.items() if options.rules else ():
                agree &= _agree(outside, scenario, ours, outside.POLICIES[theirs], range(1, options.seeds + 1))
    print("they agree" if agree else "they do not agree")
    return 0 if agree else 1


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"not a Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    return module


def _scenarios(outside: ModuleType, suite: str, traces: Path) -> list:
    if suite == "anchor":
        return outside.anchor(str(traces))
    return outside.synth() if suite == "synth" else outside.guard()


def _yardsticks_agree(outside: ModuleType, scenario) -> bool:
    theirs = outside.oracle(scenario)["cost"]
    ours = hindsight(_workload(scenario), slo_seconds=scenario.slo, startup_seconds=scenario.startup).worker_seconds
    is_close = abs(ours / theirs - 1.0) <= YARDSTICK_SHARE
    print(f"{scenario.name:<10} {'hindsight':<16} {_pair(theirs / 3600, ours / 3600)} {_percent(ours / theirs - 1.0)}")
    return is_close


def _agree(outside: ModuleType, scenario, name: str, policy: type, seeds: range) -> bool:
    theirs = [_theirs(outside, scenario, policy, seed) for seed in seeds]
    ours = [_ours(scenario, name, seed) for seed in seeds]
    cost = [_mean([run.cost for run in runs]) for runs in (theirs, ours)]
    late = [_mean([run.late for run in runs]) for runs in (theirs, ours)]
    error = math.hypot(*(_error([run.cost for run in runs]) for runs in (theirs, ours)))
    away = cost[1] / cost[0] - 1.0
    is_close = abs(cost[1] - cost[0]) <= max(COST_SHARE * cost[0], _ERRORS * error) and (
        abs(late[1] - late[0]) <= max(LATE_SHARE, _ERRORS * _late_error(theirs, ours))
    )
    p99 = [_mean([run.p99_over_slo for run in runs]) for runs in (theirs, ours)]
    worst = [_mean([run.worst_over_slo for run in runs]) for runs in (theirs, ours)]
    changes = [_mean([run.changes for run in runs]) for runs in (theirs, ours)]
    starts = [_mean([run.starts for run in runs]) for runs in (theirs, ours)]
    print(
        f"{scenario.name:<10} {name:<16} {_pair(cost[0] / 3600, cost[1] / 3600)} {_percent(away)} "
        f"{late[0]:>7.2%} {late[1]:>7.2%} "
        f"{p99[0]:>6.2f} {p99[1]:>6.2f} {worst[0]:>6.2f} {worst[1]:>6.2f} "
        f"{changes[0]:>6.0f} {changes[1]:>6.0f} {starts[0]:>6.0f} {starts[1]:>6.0f}"
        f"{'' if is_close else '   DIFFERS'}",
        flush=True,
    )
    return is_close


def _theirs(outside: ModuleType, scenario, policy: type, seed: int) -> RunFigures:
    told = outside.simulate(scenario, policy(outside.Cfg(scenario)), seed)
    slo = scenario.slo
    waits = told["p99"] / slo, told["max"] / slo
    return RunFigures(told["worker_s"], told["viol"] / 100, *waits, told["actions"], told["starts"])


def _ours(scenario, name: str, seed: int) -> RunFigures:
    result = simulate(
        _workload(scenario), _world(scenario), _scaler(scenario, name), slo_seconds=scenario.slo, seed=seed
    )
    return RunFigures(
        result.worker_seconds,
        result.late_share,
        result.p99_over_slo,
        result.worst_over_slo,
        result.grew + result.shrank,
        result.starts,
    )


def _scaler(scenario, name: str) -> Scaler:
    bounds = {"min": scenario.min_workers, "max": scenario.max_workers}
    if name != "towline":
        told = rule_settings(
            _workload(scenario), slo_seconds=scenario.slo, least=bounds["min"], most=bounds["max"], slots=1
        )
        return RuleScaler(name, told)
    settings = {"name": "simulated", "queue": "simulated", "app": "tasks:app", "slo": scenario.slo, "workers": bounds}
    return PolicyScaler(PoolSpec.model_validate(settings), cores=CORES)


def _workload(scenario) -> Workload:
    return Workload(scenario.name, scenario.ready, scenario.svc, scenario.enq, scenario.fail)


def _world(scenario) -> SimulatedWorld:
    return SimulatedWorld(
        startup_seconds=scenario.startup,
        max_leases=scenario.max_attempts,
        retry_min_seconds=scenario.backoff,
        contention=scenario.contention,
        failing=scenario.outage,
        no_start_until=scenario.crash_until,
        cores=CORES,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def _late_error(theirs: Sequence[RunFigures], ours: Sequence[RunFigures]) -> float:
    return math.hypot(*(_error([run.late for run in runs]) for runs in (theirs, ours)))


def _pair(theirs: float, ours: float) -> str:
    return f"{theirs:>9.2f} {ours:>10.2f}"


def _percent(share: float) -> str:
    return f"{share:>+7.1%}"


if __name__ == "__main__":
    sys.exit(main())
