"""Hand-made histories with attempts and ended leases: those that keep I19 and I20, and those that break them."""

from collections.abc import Iterator
from dataclasses import replace

from tests.faults.history import RequestedCall, ReturnedLease
from tests.faults.story import QUEUE, HandMadeHistory, a_lease, a_stored, an_attempt, an_end

FIRST = a_lease(since=2.05)
SECOND = a_lease(since=4.05, number=2)
SHORT = a_lease(since=2.05, until=2.5)
AFTER_SHORT = a_lease(since=3.05, number=2)
MESSAGE = f"{FIRST.token} failed"
RAISED = an_attempt(FIRST, "raised", ended=3.05, message=MESSAGE)
EXPIRED = an_attempt(SHORT, "expired")


def failed() -> HandMadeHistory:
    """Return a history of a task whose lease was given back with an error."""
    return HandMadeHistory().add().lease(FIRST).end("release", FIRST.token, failure=MESSAGE)


def maybe_failed() -> HandMadeHistory:
    """Return one in which nobody knows whether it was."""
    return HandMadeHistory().add().lease(FIRST).end("release", FIRST.token, "unknown", failure=MESSAGE)


def lost() -> HandMadeHistory:
    """Return one in which a worker was killed before it learned of its lease."""
    return HandMadeHistory().add().call(RequestedCall("lease", QUEUE, count=1, worker="w"), outcome="unknown")


def expired() -> HandMadeHistory:
    """Return one in which a lease expired and another followed."""
    return HandMadeHistory().add().lease(SHORT).lease(AFTER_SHORT)


def many(number: int) -> tuple[HandMadeHistory, list[ReturnedLease]]:
    """Return one in which so many leases of a task were given back, and the leases."""
    story = HandMadeHistory().add()
    leases = [a_lease(since=2 * index + 2.05, number=index + 1) for index in range(number)]
    for lease in leases:
        story.lease(lease).end("release", lease.token)
    return story, leases


def deleted(outcome: str = "ok") -> HandMadeHistory:
    """Return one in which a task was deleted, or may have been."""
    return HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, outcome)  # type: ignore[arg-type]


def remembering() -> Iterator[tuple[str, HandMadeHistory]]:
    """Return what happens, and the history."""
    yield "failed, kept", failed().keeps(a_stored(lease=FIRST, tried=[RAISED]))
    yield "killed in the release, done", maybe_failed().keeps(a_stored(lease=FIRST, tried=[RAISED]))
    yield (
        "killed in the release, which was not done: the lease expired",
        maybe_failed().keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, "expired")])),
    )
    yield (
        "killed in the release, which was not done: the lease lives",
        maybe_failed().keeps(a_stored(lease=FIRST, state="LEASED", tried=[])),
    )
    yield (
        "given back without a word",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, ended=3.05)])),
    )
    yield "expired, leased again", expired().keeps(a_stored(lease=AFTER_SHORT, state="LEASED", tried=[EXPIRED]))
    yield (
        "expired after a renewal that shortened it, whose caller was killed",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("renew", FIRST.token, "unknown", seconds=0.5)
        .keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, "expired", ended=3.52)])),
    )
    died = HandMadeHistory().add().lease(FIRST, worker="w").call(RequestedCall("release_worker", worker="w"))
    yield (
        "its worker died",
        died.keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, "worker_died", ended=3.05, worker="w")])),
    )
    unseen = a_lease(since=2.05, until=2.5)
    yield (
        "a lease that nobody learned of, expired",
        lost().keeps(a_stored(lease=unseen, tried=[an_attempt(unseen, "expired", worker="w")])),
    )
    yield (
        "a lease that nobody learned of, taken back by a server",
        lost().keeps(a_stored(tried=[an_attempt(unseen, ended=2.1, worker="w")])),
    )
    yield (
        "a lease that a worker of the product gave back before its handler began",
        HandMadeHistory(runners=True).add().keeps(a_stored(tried=[an_attempt(FIRST, ended=2.1, worker="of a pool")])),
    )
    story, leases = many(12)
    yield (
        "the oldest attempts are gone",
        story.keeps(a_stored(lease=leases[-1], tried=[an_attempt(lease) for lease in leases[2:]])),
    )
    yield "deleted, and remembered", deleted().remembers(an_end(FIRST))
    yield "killed in the delete, done", deleted("unknown").remembers(an_end(FIRST))
    yield "killed in the delete, then deleted by name", deleted("unknown").by_name("a").remembers()
    yield (
        "deleted by name while it was leased",
        HandMadeHistory().add().lease(FIRST).by_name("a").remembers(an_end(FIRST)),
    )
    yield (
        "deleted by name while somebody held it who was killed before learning of it",
        lost().by_name("a").remembers(an_end(FIRST, worker="w")),
    )
    yield (
        "failed, then deleted",
        failed().lease(SECOND).end("delete", SECOND.token).remembers(an_end(SECOND), an_end(FIRST, "released")),
    )
    yield (
        "a deletion that was refused, after the lease had expired",
        expired()
        .end("delete", SHORT.token, lost=True)
        .keeps(a_stored(lease=AFTER_SHORT, state="LEASED", tried=[EXPIRED]))
        .remembers(an_end(SHORT, "expired")),
    )


def forgetting() -> Iterator[tuple[str, str, HandMadeHistory]]:
    """Return the invariant, how it is broken, and the history."""
    yield "I19", "a failure that was told and is not kept", failed().keeps(a_stored(lease=FIRST, tried=[]))
    yield "I19", "a failure that is kept twice", failed().keeps(a_stored(lease=FIRST, tried=[RAISED, RAISED]))
    yield (
        "I19",
        "another message than was told",
        failed().keeps(a_stored(lease=FIRST, tried=[replace(RAISED, message="another")])),
    )
    yield (
        "I19",
        "a failure that is kept as an expiry",
        failed().keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, "expired")])),
    )
    yield (
        "I19",
        "a failure that is kept though its release was refused",
        expired()
        .end("release", SHORT.token, lost=True, failure=MESSAGE)
        .keeps(a_stored(lease=AFTER_SHORT, state="LEASED", tried=[RAISED])),
    )
    yield (
        "I19",
        "a failure that nobody told",
        expired().keeps(
            a_stored(lease=AFTER_SHORT, state="LEASED", tried=[an_attempt(SHORT, "raised", message=MESSAGE)])
        ),
    )
    yield (
        "I19",
        "given back, as nobody asked",
        expired().keeps(a_stored(lease=AFTER_SHORT, state="LEASED", tried=[an_attempt(SHORT)])),
    )
    yield (
        "I19",
        "a worker that died, as nobody said",
        expired().keeps(a_stored(lease=AFTER_SHORT, state="LEASED", tried=[an_attempt(SHORT, "worker_died")])),
    )
    yield (
        "I19",
        "an expiry that another lease followed, and that is not kept",
        expired().keeps(a_stored(lease=AFTER_SHORT, state="LEASED", tried=[])),
    )
    yield (
        "I19",
        "an expiry before its end",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, "expired", ended=50)])),
    )
    yield (
        "I19",
        "an expiry before the end of a renewal",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("renew", FIRST.token, new_end=200)
        .keeps(a_stored(lease=FIRST, tried=[an_attempt(FIRST, "expired")])),
    )
    yield (
        "I19",
        "a lease that lives and is an attempt",
        maybe_failed().keeps(a_stored(lease=FIRST, state="LEASED", tried=[RAISED])),
    )
    yield "I19", "another worker's", failed().keeps(a_stored(lease=FIRST, tried=[replace(RAISED, worker="w")]))
    yield "I19", "another number", failed().keeps(a_stored(lease=FIRST, tried=[replace(RAISED, number=2)]))
    yield (
        "I19",
        "a lease that was never granted",
        failed().keeps(a_stored(lease=FIRST, tried=[an_attempt(a_lease(since=1.5), "expired"), RAISED])),
    )
    yield (
        "I19",
        "a lease that began before anybody asked for it",
        lost().keeps(a_stored(tried=[an_attempt(a_lease(since=1.5), "expired", worker="w")])),
    )
    yield (
        "I19",
        "a failure of a lease that nobody learned of",
        lost().keeps(a_stored(tried=[an_attempt(FIRST, "raised", worker="w")])),
    )
    yield (
        "I19",
        "a worker that died with a lease that nobody learned of, as nobody said",
        lost().keeps(a_stored(tried=[an_attempt(FIRST, "worker_died", worker="w")])),
    )
    story, leases = many(2)
    tried = [an_attempt(lease) for lease in leases]
    yield "I19", "out of order", story.keeps(a_stored(lease=leases[-1], tried=tried[::-1]))
    story, leases = many(11)
    tried = [an_attempt(lease) for lease in leases]
    yield "I19", "one attempt too many", story.keeps(a_stored(lease=leases[-1], tried=tried))
    story, leases = many(11)
    yield (
        "I19",
        "the oldest of eleven is kept instead of a later one",
        story.keeps(a_stored(lease=leases[-1], tried=tried[:4] + tried[5:])),
    )
    yield "I20", "a deletion that is not remembered", deleted().remembers()
    yield "I20", "a deletion that is remembered twice", deleted().remembers(an_end(FIRST), an_end(FIRST))
    yield "I20", "a deletion by another worker", deleted().remembers(an_end(FIRST, worker="w"))
    yield (
        "I20",
        "a deletion that nobody asked for",
        HandMadeHistory().add().lease(FIRST).by_name("a", "unknown").remembers(an_end(FIRST)),
    )
    yield (
        "I20",
        "a deletion that was refused",
        HandMadeHistory().add().lease(SHORT).end("delete", SHORT.token, lost=True).remembers(an_end(SHORT)),
    )
    yield (
        "I20",
        "a deletion of what is still there",
        deleted("unknown").keeps(a_stored(lease=FIRST, state="LEASED")).remembers(an_end(FIRST)),
    )
    yield "I20", "a deletion of a task that nobody held", HandMadeHistory().add().remembers(an_end(FIRST))
    yield (
        "I20",
        "a deletion by token and another by name",
        deleted("unknown").by_name("a").remembers(an_end(FIRST), an_end(SECOND)),
    )
    yield "I20", "a release that is not remembered", failed().keeps(a_stored(lease=FIRST)).remembers()
