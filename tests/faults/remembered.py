"""I19 and I20: the attempts of a task and the history of its queue tell of the leases that ended, of no others. Pure.

Each lease of a stored task has ended, unless it is the task's live one, and is therefore among its attempts if it is
recent enough. A lease that no caller learned of needs a call that may have been granted it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from queue_core.attempts.attempt import MAX_ATTEMPTS
from queue_core.stats import LeaseOutcome
from tests.faults.history import HistoryCall
from tests.faults.lives import Contents, Effect, Grant, KeptAttempt, KeptLease, Life, Operation, TaskInStore
from tests.faults.order import ONE_TRY_SECONDS
from tests.faults.rules import live_until


def remembered(
    calls: Sequence[HistoryCall], lives: Mapping[str, Life], contents: Contents
) -> Iterator[tuple[str, str]]:
    """Yield each invariant that an attempt or an ended lease broke, and how."""
    unseen = _Unseen(calls, contents)
    for life in lives.values():
        for task in life.stored:
            for what in _attempts(task, life, contents, unseen):
                yield "I19", f"{life.uid}: {what}"
    for what in _histories(lives, contents):
        yield "I20", what


# -- attempts -------------------------------------------------------------------------------------------------------


class _Unseen:
    """The calls that may have been granted a lease that nobody learned of, and those that may have given it back."""

    def __init__(self, calls: Sequence[HistoryCall], contents: Contents) -> None:
        self._began: dict[str, int] = {}
        self._released = {call.request.worker for call in calls if call.request.verb == "release_worker"}
        for call in calls:
            if call.request.verb != "lease":
                continue
            took = None if call.answered is None else call.answered.at - call.invoked.at
            if call.outcome == "ok" and took is not None and took < 1e6 * ONE_TRY_SECONDS:
                continue  # it was sent once, and its answer has all that it was granted
            began = call.invoked.at - contents.clock_error
            self._began[call.request.worker] = min(began, self._began.get(call.request.worker, began))

    def why_not(self, attempt: KeptAttempt) -> str:
        """Return why an attempt can't belong to a lease that nobody learned of; "" if it can."""
        if attempt.outcome in ("raised", "timed_out"):
            return f"was {attempt.outcome}, but nobody was told of that lease"
        if self._began.get(attempt.worker, attempt.began_at + 1) > attempt.began_at:
            return "belongs to no lease that was ever granted"
        if attempt.outcome == "worker_died" and attempt.worker not in self._released:
            return f"says that {attempt.worker} died, of whom nobody said so"
        return ""


def _attempts(task: TaskInStore, life: Life, contents: Contents, unseen: _Unseen) -> Iterator[str]:
    if task.attempts is None:
        return
    kept = {attempt.token for attempt in task.attempts}
    if len(task.attempts) > MAX_ATTEMPTS:
        yield f"{len(task.attempts)} attempts are kept, {MAX_ATTEMPTS} at most should be"
    for one, following in pairwise(task.attempts):
        if following.began_at <= one.began_at:
            yield f"attempt {following.token} is kept after {one.token}"
    grants = {grant.lease.token: grant for grant in life.grants if grant.call is not None}
    for attempt in task.attempts:
        if task.state == "LEASED" and attempt.token == task.token:
            yield f"attempt {attempt.token} is of a lease that lives"
        grant = grants.get(attempt.token)
        if grant is not None:
            why = _unlike(attempt, grant, life, contents)
        else:
            why = "" if contents.runners else unseen.why_not(attempt)
        if why:
            yield f"attempt {attempt.token} {why}"
    oldest = task.attempts[0].began_at if len(task.attempts) >= MAX_ATTEMPTS else 0
    for grant in life.grants:
        token = grant.lease.token
        is_live = task.state == "LEASED" and token == task.token
        if token not in kept and not is_live and grant.leased_at >= oldest and grant.lease.name == task.name:
            yield f"lease {token} ended, but is not among its {len(task.attempts)} attempts"


def _unlike(attempt: KeptAttempt, grant: Grant, life: Life, contents: Contents) -> str:
    """Return how an attempt differs from all that may have become of its lease; "" if it does not."""
    assert grant.call is not None
    if attempt.number != grant.lease.number:
        return f"has number {attempt.number}, its lease had {grant.lease.number}"
    if attempt.worker != grant.call.request.worker:
        return f"is of worker {attempt.worker}, its lease was of {grant.call.request.worker}"
    releases = [one for one in grant.operations if one.verb == "release" and one.effect != "refused"]
    done = [one for one in releases if one.effect == "done"]
    if done:
        return "" if any(_says(attempt, one) for one in done) else f"is {attempt.outcome}, not what its release said"
    if any(_says(attempt, one) for one in releases):
        return ""
    if attempt.outcome == "expired":
        lived = live_until(grant, life, contents.clock_error)
        return f"expired {lived - attempt.ended_at} us before its end" if attempt.ended_at < lived else ""
    if attempt.outcome == "worker_died" and grant.given_back:
        return ""
    # A runner gives back what it can't begin, and its supervisor what it held when it died, neither of them recorded.
    if contents.runners and attempt.outcome in ("given_back", "worker_died") and not grant.call.request.seconds:
        return ""
    return f"is {attempt.outcome}, which nobody asked for"


def _says(attempt: KeptAttempt, release: Operation) -> bool:
    failure = release.call.request.failure
    return (attempt.outcome, attempt.message) == (("raised", failure) if failure else ("given_back", ""))


# -- history --------------------------------------------------------------------------------------------------------


def _histories(lives: Mapping[str, Life], contents: Contents) -> Iterator[str]:
    """Hold whole histories to the ends of leases: deletions are there once, releases are there."""
    rows: dict[tuple[str, str], list[KeptLease]] = {}
    for queue, leases in contents.histories.items():
        for lease in leases:
            rows.setdefault((queue, lease.name), []).append(lease)
    known: set[tuple[str, str]] = set()
    for life in lives.values():
        keys = {(grant.call.request.queue, grant.lease.name) for grant in life.grants if grant.call is not None}
        keys |= {(task.queue, task.name) for task in life.stored}
        keys |= {(call.request.queue, life.uid) for call, _ in life.named_deletions}
        known |= keys
        for queue, name in sorted(key for key in keys if key[0] in contents.histories):
            for what in _of_task(life, queue, rows.get((queue, name), [])):
                yield f"{life.uid}: {what}"
    if not contents.runners:
        for (queue, name), of_name in rows.items():
            if (queue, name) not in known and any(row.outcome == "deleted" for row in of_name):
                yield f"{name} of {queue} was deleted, says the history, but nobody held it"


def _of_task(life: Life, queue: str, leases: Sequence[KeptLease]) -> Iterator[str]:
    ends = Counter((lease.outcome, lease.worker, lease.number) for lease in leases)
    deletions = sum(number for (outcome, _, _), number in ends.items() if outcome == "deleted")
    if deletions > 1:
        yield f"its history has {deletions} deletions"
    if deletions and life.stored:
        yield "its history has a deletion, but it is in the store"
    grants = [grant for grant in life.grants if grant.call is not None and grant.call.request.queue == queue]
    maybe_deleted = _ends(grants, "delete", "deleted", ("done", "open"))
    # Deleting by name ends the lease of whoever holds the task.
    by_name = any(effect != "refused" for _, effect in life.named_deletions)
    for end in ends:
        if end[0] == "deleted" and end not in maybe_deleted and not by_name:
            yield f"its history has {_told(end)}, which nobody asked for"
    surely = _ends(grants, "delete", "deleted", ("done",)) + _ends(grants, "release", "released", ("done",))
    for end, number in surely.items():
        if ends[end] < number:
            yield f"its history has {_told(end)} {ends[end]} times, it happened {number} times"


def _ends(
    grants: Sequence[Grant], verb: str, outcome: LeaseOutcome, effects: Sequence[Effect]
) -> "Counter[tuple[LeaseOutcome, str, int]]":
    """Return how often leases ended by this verb, as their history has it."""
    return Counter(
        (outcome, grant.call.request.worker, grant.lease.number)
        for grant in grants
        if grant.call is not None and any(one.verb == verb and one.effect in effects for one in grant.operations)
    )


def _told(end: tuple[LeaseOutcome, str, int]) -> str:
    outcome, worker, number = end
    return f"lease number {number} of {worker or 'no worker'} {outcome}"
