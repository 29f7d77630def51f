"""The rules of one task's life, whatever was killed: each yields its violations. Pure.

A rule reports only what no order of the unanswered calls can explain. Orders between calls come from CLOCK_MONOTONIC,
orders between a call and a lease from the wall clock, which all processes of a host share. Instants of a store across a
network are each caller's estimate: compared with this host's time they may be off by `clock_error`.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from tests.faults.history import HistoryCall
from tests.faults.lives import FOREVER, Contents, Grant, Life, Operation

Rule = Callable[[Life, Contents], Iterator[str]]

READINGS_APART: Final = 1_000
"""Microseconds between a host's wall clock and a store's time that has kept its course: two readings were apart."""


def added_is_never_lost(life: Life, contents: Contents) -> Iterator[str]:
    """I1: a task acknowledged or leased is in the store or was deleted; refused deletes and adds had no effect."""
    if (life.is_acknowledged or life.grants) and not life.stored and not life.may_be_deleted:
        how = "was acknowledged" if life.is_acknowledged else "was leased"
        yield f"{life.uid} {how}, nobody deleted it, and it is gone"
    if life.is_seen and life.addings and all(adding.effect == "refused" for adding in life.addings):
        yield f"{life.uid} is there though every add of it was refused"


def leases_never_overlap(life: Life, contents: Contents) -> Iterator[str]:
    """I2: no lease begins while an earlier one surely lived, and the store kept the last one.

    With estimated clocks a caller that is ahead may have found the lease over, so that one that is behind leases the
    task.
    """
    for index, grant in enumerate(life.grants):
        until = live_until(grant, life, contents.clock_error) - 2 * contents.clock_error
        for other in life.grants[index + 1 :]:
            by = other.granted_by(contents)
            if by < until:
                yield (
                    f"{life.uid}: lease {other.lease.token} was granted {(until - by) / 1e6:.6f} s before "
                    f"{grant.lease.token} ended"
                )
    for last in life.grants[-1:]:
        for task in life.stored:
            if task.leased_at < last.leased_at:
                yield f"{life.uid}: lease {last.lease.token} was answered, but the store forgot it"
            elif (
                last.call is not None
                and task.state == "LEASED"
                and task.eta < live_until(last, life, contents.clock_error)
            ):
                yield f"{life.uid}: lease {last.lease.token} ends earlier in the store than its worker was told"


def stale_tokens_change_nothing(life: Life, contents: Contents) -> Iterator[str]:
    """I3: nothing succeeds with a token whose lease had ended or been followed by another; no end happens twice."""
    for grant in life.grants:
        done = [operation for operation in grant.operations if operation.effect == "done"]
        if sum(operation.ends_lease for operation in done) > 1:
            yield f"{life.uid}: {grant.lease.token} was ended more than once"
        for operation in done:
            why = _stale_because(operation, grant, life, contents)
            if why:
                yield f"{life.uid}: {operation.verb} succeeded with {grant.lease.token}, which {why}"
        released = any(operation.verb == "release" for operation in done)
        for task in life.stored:
            if released and task.token == grant.lease.token and task.state == "LEASED":
                yield f"{life.uid}: {grant.lease.token} was given back, but is current again"


def deleted_is_never_leased(life: Life, contents: Contents) -> Iterator[str]:
    """I4: after an acknowledged deletion there is no lease and no task."""
    for grant in life.grants:
        for operation in grant.operations:
            if operation.verb != "delete" or operation.effect != "done":
                continue
            if life.stored:
                yield f"{life.uid} was deleted with {grant.lease.token}, but the store still has it"
            for other in life.grants:
                if other.leased_at > grant.leased_at:
                    yield f"{life.uid} was deleted with {grant.lease.token}, then leased as {other.lease.token}"
    for call, effect in life.named_deletions:
        if effect != "done" or call.answered is None:
            continue
        if life.stored:
            yield f"{life.uid} was deleted by name, but the store still has it"
        for grant in life.grants:
            if grant.call is not None and grant.call.invoked.ns > call.answered.ns:
                yield f"{life.uid} was deleted by name, then leased as {grant.lease.token}"


def names_are_taken_once(life: Life, contents: Contents) -> Iterator[str]:
    """I5: of all adds of one uid at most one adds; `exists` needs an earlier add; there is one task, not two."""
    if sum(adding.status == "added" for adding in life.addings) > 1:
        yield f"{life.uid} was added more than once"
    for adding in life.addings:
        if adding.status in ("exists", "tombstoned") and not _may_be_preceded(adding.call, life):
            yield f"{life.uid} was said to exist before anyone had added it"
    names = {grant.lease.name for grant in life.grants} | {task.name for task in life.stored}
    if len(names) > 1 or len(life.stored) > 1:
        yield f"{life.uid} is there more than once: {', '.join(sorted(names))}"


def live_tokens_are_honoured(life: Life, contents: Contents) -> Iterator[str]:
    """I6: a delete, renew or release answered while its lease surely lived was not refused."""
    for grant in life.grants:
        for operation in grant.operations:
            call = operation.call
            if operation.effect != "refused" or call.outcome != "ok" or call.answered is None:
                continue
            until = live_until(grant, life, contents.clock_error, apart_from=operation)
            if call.answered.at + contents.clock_error < until:
                yield f"{life.uid}: {operation.verb} was refused inside the live lease {grant.lease.token}"


def never_leased_before_eta(life: Life, contents: Contents) -> Iterator[str]:
    """I8: no lease before the eta or delay of its add, nor before a release's delay is over.

    With estimated clocks a caller that is ahead may have found the task due, so that one that is behind leases it.
    """
    error = contents.clock_error
    etas = [
        adding.request.eta or adding.call.invoked.at - error + round(1e6 * (adding.request.delay_seconds or 0))
        for adding in life.addings
        if adding.effect != "refused"
    ]
    for grant in life.grants:
        by = grant.granted_by(contents) + error
        if grant.call is not None and grant.lease.ready_at > by + error:
            yield f"{life.uid}: leased at {grant.leased_at}, before its eta {grant.lease.ready_at}"
        if etas and by < min(etas):
            yield f"{life.uid}: leased at {grant.leased_at}, before its eta {min(etas)}"
    for grant, following in pairwise(life.grants):
        for operation in grant.operations:
            if operation.verb == "release" and operation.effect == "done" and operation.call.request.delay_seconds:
                earliest = operation.call.invoked.at - error + round(1e6 * operation.call.request.delay_seconds)
                by = following.granted_by(contents) + error
                if by < earliest:
                    yield f"{life.uid}: leased again {earliest - by} us before its delay was over"


def leased_when_asked(life: Life, contents: Contents) -> Iterator[str]:
    """I8: a lease's instant lies between its call and the answer, whatever a host's clock says."""
    for grant in life.grants:
        if grant.call is None or grant.call.answered is None or grant.call.request.verb != "lease":
            continue
        error = contents.clock_error + READINGS_APART
        early = grant.call.invoked.at - error - grant.leased_at
        late = grant.leased_at - grant.call.answered.at - error
        if max(early, late) > 0:
            yield f"{life.uid}: leased {max(early, late) / 1e6:.6f} s {'before the call' if early > 0 else 'after it'}"


def tags_are_respected(life: Life, contents: Contents) -> Iterator[str]:
    """I9: a lease returns tasks of the requested tags, and a task keeps the tag it was added with."""
    tags = {adding.request.tag for adding in life.addings}
    for grant in life.grants:
        if grant.call is not None and not grant.call.request.filter.accepts(grant.lease.tag):
            yield f"{life.uid}: tag {grant.lease.tag} answered a lease of {grant.call.request.filter}"
        if tags and grant.lease.tag not in tags:
            yield f"{life.uid}: leased with tag {grant.lease.tag}, added with {tags}"


def leases_are_counted(life: Life, contents: Contents) -> Iterator[str]:
    """I11: the number of leases rises with every counted lease, and never exceeds max_leases."""
    queue = next((adding.request.queue for adding in life.addings), "")
    bound = contents.max_leases.get(queue)
    for grant in life.grants:
        if bound is not None and grant.lease.number > bound:
            yield f"{life.uid}: lease number {grant.lease.number} of at most {bound}"
    for grant, following in pairwise(life.grants):
        least = grant.lease.number + (not _may_be_uncounted(grant))
        if following.lease.number < least:
            yield f"{life.uid}: lease number {following.lease.number} follows {grant.lease.number}"
    for task in life.stored:
        last = life.grants[-1] if life.grants else None
        if last is not None and task.leases < last.lease.number - _may_be_uncounted(last):
            yield f"{life.uid}: the store counts {task.leases} leases after number {last.lease.number}"


def payloads_come_back(life: Life, contents: Contents) -> Iterator[str]:
    """I13: leased and stored payloads are those that were added; nothing else ever appears."""
    digests = {adding.request.digest for adding in life.addings}
    for digest in [grant.lease.digest for grant in life.grants] + [task.digest for task in life.stored]:
        if digest not in digests:
            yield f"{life.uid}: payload {digest} was never added ({', '.join(sorted(digests)) or 'nothing was'})"


RULES: dict[str, tuple[Rule, ...]] = {
    "I1": (added_is_never_lost,),
    "I2": (leases_never_overlap,),
    "I3": (stale_tokens_change_nothing,),
    "I4": (deleted_is_never_leased,),
    "I5": (names_are_taken_once,),
    "I6": (live_tokens_are_honoured,),
    "I8": (never_leased_before_eta, leased_when_asked),
    "I9": (tags_are_respected,),
    "I11": (leases_are_counted,),
    "I13": (payloads_come_back,),
}


def live_until(grant: Grant, life: Life, clock_error: int, *, apart_from: Operation | None = None) -> int:
    """Return until when a lease surely lived: the earliest end that its renewals and possible ends allow."""
    until = grant.lease.expires_at
    for operation in sorted(grant.operations, key=lambda one: one.call.invoked.ns):
        if operation.verb != "renew" or operation.effect == "refused":
            continue
        if operation.new_end is not None:
            until = operation.new_end
        else:
            until = min(until, operation.call.invoked.at - clock_error + round(1e6 * operation.call.request.seconds))
    ends = [
        operation.call.invoked.at
        for operation in grant.operations
        if operation.ends_lease and operation.effect != "refused" and operation is not apart_from
    ]
    ends += [call.invoked.at for call in grant.given_back]
    ends += [call.invoked.at for call, effect in life.named_deletions if effect != "refused"]
    return min([until, *(end - clock_error for end in ends)])


def _dead_by(grant: Grant) -> int:
    """Return from when on a lease is surely over by time alone."""
    until = grant.lease.expires_at
    for operation in grant.operations:
        if operation.verb == "renew" and operation.effect != "refused":
            until = max(until, FOREVER if operation.new_end is None else operation.new_end)
    return until


def _stale_because(operation: Operation, grant: Grant, life: Life, contents: Contents) -> str:
    """Return why a token was stale.

    A following lease's instant may precede its delayed call: then its answer counts.
    """
    invoked = operation.call.invoked
    if invoked.at - contents.clock_error >= _dead_by(grant):
        return f"had expired at {_dead_by(grant)}"
    following = [other for other in life.grants if other.leased_at > grant.leased_at]
    if any(other.granted_by(contents) < invoked.at - contents.clock_error for other in following):
        return "another lease had followed"
    # A call without an answer may have taken effect at any time, even long after its caller gave up.
    ended = [
        other.call
        for other in grant.operations
        if other.ends_lease and other.effect == "done" and other.call.outcome == "ok"
    ]
    ended += [call for call in grant.given_back if call.outcome == "ok"]
    if any(call.answered is not None and call.answered.ns < invoked.ns for call in ended):
        return "had been given up"
    return ""


def _may_be_preceded(call: HistoryCall, life: Life) -> bool:
    answered = call.answered
    return answered is None or any(
        adding.call is not call and adding.effect != "refused" and adding.call.invoked.ns < answered.ns
        for adding in life.addings
        if adding.status in ("added", "")
    )


def _may_be_uncounted(grant: Grant) -> bool:
    return any(
        operation.verb == "release" and operation.call.request.charge == "uncounted" and operation.effect != "refused"
        for operation in grant.operations
    )
