"""A history's lines about one task, for people: what proves a violation. Pure."""

from collections.abc import Iterator, Sequence

from tests.faults.checker import Violation
from tests.faults.history import Call

SHOWN_TASKS = 20
NOT_ANSWERED = "no answer"


def excerpts(calls: Sequence[Call], violations: Sequence[Violation]) -> Iterator[str]:
    """For each violation that names a task, itself and the calls that concern the task, in order of invocation."""
    uids = {adding.uid for call in calls for adding in call.asked.adds}
    uids |= {adding.uid for call in calls for end in call.asked.ends for adding in end.then}
    named = [(violation, word.rstrip(":")) for violation in violations for word in violation.what.split()[:4]]
    shown: set[str] = set()
    for violation, uid in named:
        if uid in uids and uid not in shown and len(shown) < SHOWN_TASKS:
            shown.add(uid)
            yield f"{violation.invariant} {violation.what}"
            yield from (f"  {line}" for line in story_of(calls, uid))


def story_of(calls: Sequence[Call], uid: str) -> Iterator[str]:
    """Every call that added, leased or ended the task; times in seconds since the first call."""
    began = min((call.invoked.at for call in calls), default=0)
    tokens = {lease.token for call in calls for lease in call.answer.leases if lease.uid == uid}
    for call in sorted(calls, key=lambda one: one.invoked.ns):
        asked = [f"adds {adding.uid}" for adding in call.asked.adds if adding.uid == uid]
        for end in call.asked.ends:
            asked += [f"{call.asked.verb} of {end.token}"] if end.token in tokens else []
            asked += [f"then adds {uid} with {end.token}" for adding in end.then if adding.uid == uid]
        asked += ["by name"] if uid in call.asked.names else []
        told = [
            f"leased as {lease.token}, number {lease.number}, {(lease.leased_at - began) / 1e6:.4f} to "
            f"{(lease.expires_at - began) / 1e6:.4f}"
            for lease in call.answer.leases
            if lease.uid == uid
        ]
        told += [f"lost {token}" for token in call.answer.lost if token in tokens]
        told += [
            f"ends at {(end - began) / 1e6:.4f}" for token, end in sorted(call.answer.ends.items()) if token in tokens
        ]
        if asked or told:
            answered = NOT_ANSWERED if call.answered is None else f"{(call.answered.at - began) / 1e6:.4f}"
            yield (
                f"{(call.invoked.at - began) / 1e6:.4f} to {answered} {call.asked.worker or call.process} "
                f"{call.asked.verb} {'; '.join(asked)} -> {call.outcome} {call.error} {'; '.join(told)}".rstrip()
            )
