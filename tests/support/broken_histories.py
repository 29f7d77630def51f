"""Histories that break a promise, told by hand, each with its invariant: the crash tests' checker must find it."""

from collections.abc import Iterator
from dataclasses import replace

from queue_core.stats import QueueStats
from tests.faults.history import Asked
from tests.faults.story import QUEUE, SECOND, Story, a_lease, a_stored, an_add
from tests.support.honest_histories import FIRST, SECOND_LEASE


def broken() -> Iterator[tuple[str, str, Story]]:
    """The invariant, how it is broken, and the story."""
    yield "I1", "acknowledged and gone", Story().add()
    yield "I1", "known to exist, and gone", Story().add(outcome="unknown").add(status="exists")
    yield "I1", "leased, then gone", Story().add().lease(FIRST)
    yield "I1", "its only delete was refused", Story().add().lease(FIRST).end("delete", FIRST.token, "fail")
    yield "I1", "there though the add was refused", Story().add(outcome="fail").keeps(a_stored())
    yield (
        "I1",
        "handed over, and the next stage is missing",
        Story().add().lease(FIRST).end("delete", FIRST.token, then=(an_add("b"),)),
    )
    yield (
        "I1",
        "half a hand-over: deleted, not added",
        Story().add().lease(FIRST).end("delete", FIRST.token, "unknown", then=(an_add("b"),)),
    )
    yield (
        "I1",
        "half a hand-over: added, not deleted",
        Story()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown", then=(an_add("b"),))
        .keeps(a_stored(lease=FIRST, state="LEASED"), a_stored("b")),
    )
    yield (
        "I1",
        "leased, refused its deletion, and gone, though nobody knows of its add",
        Story().add(outcome="unknown").lease(FIRST).end("delete", FIRST.token, lost=True),
    )
    yield (
        "I1",
        "a deletion nobody knows the outcome of was not done, and yet the task is gone",
        Story()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown")
        .lease(a_lease(since=5.05, number=2))
        .end("delete", "a.5050000", lost=True),
    )
    yield (
        "I1",
        "half a hand-over: added, then leased instead of deleted",
        Story()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown", then=(an_add("b"),))
        .lease(a_lease(since=5.05, number=2))
        .end("delete", "a.5050000")
        .keeps(a_stored("b")),
    )
    yield (
        "I1",
        "a refused hand-over, and the next stage is there",
        Story()
        .add()
        .lease(a_lease(since=2.05, until=2.5))
        .end("delete", "a.2050000", lost=True, then=(an_add("b"),))
        .keeps(a_stored(lease=a_lease(since=2.05, until=2.5)), a_stored("b")),
    )
    two = Story().add().lease(FIRST)
    two.seconds = 3
    yield "I2", "leased twice at a time", two.lease(SECOND_LEASE).keeps(a_stored(lease=SECOND_LEASE))
    yield (
        "I2",
        "leased inside a renewed lease",
        Story()
        .add()
        .lease(a_lease(since=2.05, until=3.5))
        .end("renew", "a.2050000", new_end=90)
        .lease(SECOND_LEASE)
        .keeps(a_stored(lease=SECOND_LEASE)),
    )
    yield (
        "I2",
        "a lease that only the store knows of, inside another",
        Story().add().lease(FIRST).keeps(a_stored(lease=SECOND_LEASE, state="LEASED")),
    )
    yield "I2", "an answered lease was forgotten", Story().add().lease(FIRST).keeps(a_stored(leases=1))
    yield (
        "I2",
        "an answered renewal was forgotten",
        Story().add().lease(FIRST).end("renew", FIRST.token, new_end=200).keeps(a_stored(lease=FIRST, state="LEASED")),
    )
    short = a_lease(since=2.05, until=2.5)
    yield "I3", "deleted after the lease expired", Story().add().lease(short).end("delete", short.token)
    yield (
        "I3",
        "renewed after it was given back",
        Story()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .end("renew", FIRST.token, new_end=200)
        .keeps(a_stored(lease=FIRST)),
    )
    yield (
        "I3",
        "deleted with the token before the last",
        Story()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token, "unknown")
        .lease(SECOND_LEASE)
        .end("delete", FIRST.token),
    )
    yield (
        "I3",
        "given back twice",
        Story().add().lease(FIRST).end("release", FIRST.token).end("release", FIRST.token).keeps(a_stored(lease=FIRST)),
    )
    yield (
        "I3",
        "given back, and current again after the crash",
        Story().add().lease(FIRST).end("release", FIRST.token).keeps(a_stored(lease=FIRST, state="LEASED")),
    )
    yield (
        "I4",
        "deleted, and still there",
        Story().add().lease(FIRST).end("delete", FIRST.token).keeps(a_stored(lease=FIRST)),
    )
    stale = Story().add().lease(short).lease(a_lease(since=3.05, number=2))
    yield (
        "I4",
        "a delete that returned, and was not done: another holds the task, and deletes it",
        stale.end("delete", short.token).end("delete", "a.3050000"),
    )
    yield (
        "I3",
        "a release that returned, and was not done: another holds the task",
        Story()
        .add()
        .lease(short)
        .lease(a_lease(since=3.05, number=2))
        .end("release", short.token)
        .end("delete", "a.3050000"),
    )
    yield (
        "I2",
        "given back because of a socket, uncounted",
        Story()
        .add()
        .lease(FIRST)
        .lease(a_lease(since=3.05, ready=1.05))
        .end("delete", FIRST.token, lost=True)
        .end("delete", "a.3050000"),
    )
    yield (
        "I6",
        "given back because of a socket, and its holder is refused",
        Story()
        .add()
        .lease(FIRST)
        .lease(a_lease(since=3.05, ready=1.05))
        .end("delete", FIRST.token, lost=True)
        .end("delete", "a.3050000"),
    )
    yield "I4", "deleted, then leased", Story().add().lease(FIRST).end("delete", FIRST.token).lease(SECOND_LEASE)
    yield "I4", "deleted by name, then leased", Story().add().by_name("a").lease(a_lease(since=3.05))
    yield "I4", "deleted by name, and still there", Story().add().by_name("a").keeps(a_stored())
    yield "I5", "two adds of one name both added", Story().add().add().keeps(a_stored())
    yield "I5", "exists, though nobody had added it", Story().add(status="exists").keeps(a_stored())
    yield "I5", "one add, two tasks", Story().add().keeps(a_stored(), replace(a_stored(), name="a2"))
    yield (
        "I6",
        "a delete was refused inside the lease",
        Story().add().lease(FIRST).end("delete", FIRST.token, lost=True).keeps(a_stored(lease=FIRST)),
    )
    yield (
        "I6",
        "a renewal was refused inside a renewed lease",
        Story()
        .add()
        .lease(short)
        .end("renew", short.token, new_end=60)
        .end("renew", short.token, lost=True)
        .keeps(a_stored(lease=replace(short, expires_at=60 * SECOND))),
    )
    yield "I7", "an empty answer with a task there", Story().add().lease().keeps(a_stored())
    yield (
        "I7",
        "an empty answer before the task's first lease",
        Story()
        .add(tag="x")
        .lease(kind="tags", tags=("x",))
        .lease(a_lease(since=3.05, tag="x"))
        .end("delete", "a.3050000"),
    )
    yield "I8", "leased before its eta", Story().add(eta=50).lease(FIRST).end("delete", FIRST.token)
    yield "I8", "leased before its delay was over", Story().add(delay=30).lease(FIRST).end("delete", FIRST.token)
    yield (
        "I8",
        "leased before the delay of a release was over",
        Story()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token, delay=30)
        .lease(SECOND_LEASE)
        .end("delete", SECOND_LEASE.token),
    )
    tagged = a_lease(since=2.05, tag="x")
    yield (
        "I9",
        "another tag than asked for",
        Story().add(tag="x").lease(tagged, kind="tags", tags=("y",)).end("delete", tagged.token),
    )
    yield (
        "I9",
        "a tag to who asked for none",
        Story().add(tag="x").lease(tagged, kind="untagged").end("delete", tagged.token),
    )
    yield "I9", "another tag than was added", Story().add(tag="y").lease(tagged).end("delete", tagged.token)
    yield (
        "I9",
        "a batch of two tags",
        Story()
        .add("a", tag="x")
        .add("b", tag="y")
        .lease(a_lease("a", since=3.05, tag="x"), a_lease("b", since=3.05, tag="y"), kind="oldest")
        .end("delete", "a.3050000")
        .end("delete", "b.3050000"),
    )
    yield (
        "I10",
        "the later eta first, in one answer",
        Story()
        .add("a")
        .add("b")
        .lease(a_lease("b", since=3.05, ready=2.05), a_lease("a", since=3.05, ready=1.05))
        .end("delete", "a.3050000")
        .end("delete", "b.3050000"),
    )
    yield (
        "I10",
        "the later task first, and the earlier left",
        Story()
        .add("a")
        .add("b")
        .lease(a_lease("b", since=3.05, ready=2.05))
        .end("delete", "b.3050000")
        .keeps(a_stored("a")),
    )
    yield (
        "I10",
        "a task that went to the end when a lease of it expired that nobody saw, and is leased before the others",
        Story()
        .add("b")
        .add("a")
        .add("c")
        .call(Asked("lease", QUEUE, count=1, seconds=0.03), outcome="unknown")
        .lease(a_lease("b", since=5.05, number=2, ready=4.08))
        .end("delete", "b.5050000")
        .keeps(a_stored("a"), a_stored("c")),
    )
    yield (
        "I11",
        "one lease more than allowed",
        Story(max_leases=2).add().lease(replace(FIRST, number=3)).end("delete", FIRST.token),
    )
    yield (
        "I11",
        "a lease that did not count",
        Story()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .lease(replace(SECOND_LEASE, number=1))
        .end("delete", SECOND_LEASE.token),
    )
    yield (
        "I11",
        "the store counts fewer leases than were given",
        Story().add().lease(replace(FIRST, number=2)).keeps(replace(a_stored(lease=FIRST), leases=1)),
    )
    yield "I13", "other bytes came back", Story().add().lease(replace(FIRST, digest="0:")).end("delete", FIRST.token)
    yield "I13", "other bytes are kept", Story().add().keeps(replace(a_stored(), digest="0:"))
    yield "I13", "a task out of nowhere", Story().keeps(a_stored())
    yield "I16", "the store's own check", Story(problems=("counts.ready is 2, recount is 1",))
    yield (
        "I16",
        "counts that disagree with the tasks",
        Story(stats=QueueStats(QUEUE, ready=2, added_total=1)).add().keeps(a_stored()),
    )
    yield "I16", "a total below what was acknowledged", Story(stats=QueueStats(QUEUE, ready=1)).add().keeps(a_stored())
    yield (
        "I16",
        "a total above what was ever asked",
        Story(stats=QueueStats(QUEUE, ready=1, added_total=2, deleted_total=1)).add().keeps(a_stored()),
    )
