"""The cost of repaired faults: tasks that ran twice, and how long waits stayed long afterwards. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.faults.checker import Violation
from tests.faults.history import ClockReading, HistoryCall, ReturnedLease
from tests.faults.lives import FOREVER
from tests.faults.outcome import FaultTally

SLO_SECONDS = 2.0
RECOVERY_SECONDS = 10.0
SLACK_MICROSECONDS = 500_000
"""A task whose handler ended this shortly before a fault may not have been deleted in time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault with the times of its begin and repair."""

    name: str
    began: ClockReading
    repaired: ClockReading


@dataclass(frozen=True, slots=True)
class _Run:
    """A handler's run of a task. `until` (microseconds): when its deletion was requested, or the task ran again."""

    lease: ReturnedLease
    until: int

    def is_under_way(self, at: int, *, slack: int = 0) -> bool:
        """Return whether a fault at that instant hit it, within `slack`."""
        return self.lease.leased_at - slack <= at <= self.until + slack


def judge(tally: FaultTally, calls: Sequence[HistoryCall], faults: Sequence[Fault]) -> None:
    """Record for every fault how many tasks were in flight, how many of them ran again, and until when waits were long.

    Violations: a task that ran again without a fault; waits beyond 2 s, 10 s after a repair.
    """
    runs = _runs(calls)
    doubled = dict.fromkeys((fault.name for fault in faults), 0)
    for of_task in runs.values():
        for run in of_task[:-1]:
            met = [fault for fault in faults if run.is_under_way(fault.began.at, slack=SLACK_MICROSECONDS)]
            for fault in met[-1:]:
                doubled[fault.name] += 1
            if not met:
                what = f"{run.lease.uid} ran again after {run.lease.token}, which no fault met in flight"
                tally.found([Violation("I2", what)], "two servers")
    for fault, following in zip(faults, [*(fault.began.at for fault in faults[1:]), None], strict=True):
        every = [run for of_task in runs.values() for run in of_task]
        tally.figures[f"{fault.name}_in_flight_tasks"] = sum(run.is_under_way(fault.began.at) for run in every)
        tally.figures[f"{fault.name}_tasks_run_twice"] = doubled[fault.name]
        recovered_seconds = _late_until((run.lease for run in every), fault.repaired.at, following)
        tally.figures[f"{fault.name}_waits_short_after_seconds"] = recovered_seconds
        if recovered_seconds > RECOVERY_SECONDS:
            what = f"waits were beyond {SLO_SECONDS} s until {recovered_seconds:.1f} s after the repair"
            tally.found([Violation("I7", what)], fault.name)


def _runs(calls: Sequence[HistoryCall]) -> dict[str, list[_Run]]:
    """Return the recorded runs of each task, in order."""
    ended: dict[str, int] = {}
    for call in calls:
        if call.request.verb == "delete":
            ended.update({end.token: call.invoked.at for end in call.request.ends})
    leases: dict[str, list[ReturnedLease]] = {}
    for call in calls:
        for lease in call.answer.leases:
            leases.setdefault(lease.uid, []).append(lease)
    runs: dict[str, list[_Run]] = {}
    for uid, of_task in leases.items():
        of_task.sort(key=lambda lease: lease.leased_at)
        following = [*(lease.leased_at for lease in of_task[1:]), FOREVER]
        runs[uid] = [
            _Run(lease, ended.get(lease.token, again)) for lease, again in zip(of_task, following, strict=True)
        ]
    return runs


def _late_until(leases: Iterable[ReturnedLease], repaired_at: int, until: int | None) -> float:
    """Return seconds from the repair to the last late lease before the next fault."""
    late = [
        lease.leased_at
        for lease in leases
        if lease.leased_at > repaired_at
        and (until is None or lease.leased_at < until)
        and lease.leased_at - lease.ready_at > SLO_SECONDS * 1e6
    ]
    return (max(late) - repaired_at) / 1e6 if late else 0.0
