"""Hand-made histories that break a promise, each with its invariant: the crash tests' checker must find it."""

from collections.abc import Iterator
from dataclasses import replace

from queue_core.admission import Rate, TagLimits
from queue_core.stats import QueueStats
from queue_core.task import QueueSpec
from tests.faults.history import Answer, RequestedCall, ReturnedAdd, digest_of
from tests.faults.story import QUEUE, SECOND, HandMadeHistory, a_lease, a_stored, an_add
from tests.support.honest_histories import FIRST, SECOND_LEASE
from tests.support.remembered_histories import forgetting


def broken() -> Iterator[tuple[str, str, HandMadeHistory]]:
    """Return the invariant, how it is broken, and the history."""
    yield "I1", "acknowledged and gone", HandMadeHistory().add()
    yield "I1", "known to exist, and gone", HandMadeHistory().add(outcome="unknown").add(status="exists")
    yield "I1", "leased, then gone", HandMadeHistory().add().lease(FIRST)
    yield "I1", "its only delete was refused", HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, "fail")
    yield "I1", "there though the add was refused", HandMadeHistory().add(outcome="fail").keeps(a_stored())
    yield (
        "I1",
        "handed over, and the next stage is missing",
        HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, then=(an_add("b"),)),
    )
    yield (
        "I1",
        "half a hand-over: deleted, not added",
        HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, "unknown", then=(an_add("b"),)),
    )
    yield (
        "I1",
        "half a hand-over: added, not deleted",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown", then=(an_add("b"),))
        .keeps(a_stored(lease=FIRST, state="LEASED"), a_stored("b")),
    )
    yield (
        "I1",
        "leased, refused its deletion, and gone, though nobody knows of its add",
        HandMadeHistory().add(outcome="unknown").lease(FIRST).end("delete", FIRST.token, lost=True),
    )
    yield (
        "I1",
        "a deletion nobody knows the outcome of was not done, and yet the task is gone",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown")
        .lease(a_lease(since=5.05, number=2))
        .end("delete", "a.5050000", lost=True),
    )
    yield (
        "I1",
        "half a hand-over: added, then leased instead of deleted",
        HandMadeHistory()
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
        HandMadeHistory()
        .add()
        .lease(a_lease(since=2.05, until=2.5))
        .end("delete", "a.2050000", lost=True, then=(an_add("b"),))
        .keeps(a_stored(lease=a_lease(since=2.05, until=2.5)), a_stored("b")),
    )
    two = HandMadeHistory().add().lease(FIRST)
    two.seconds = 3
    yield "I2", "leased twice at a time", two.lease(SECOND_LEASE).keeps(a_stored(lease=SECOND_LEASE))
    yield (
        "I2",
        "leased inside a renewed lease",
        HandMadeHistory()
        .add()
        .lease(a_lease(since=2.05, until=3.5))
        .end("renew", "a.2050000", new_end=90)
        .lease(SECOND_LEASE)
        .keeps(a_stored(lease=SECOND_LEASE)),
    )
    yield (
        "I2",
        "a lease that only the store knows of, inside another",
        HandMadeHistory().add().lease(FIRST).keeps(a_stored(lease=SECOND_LEASE, state="LEASED")),
    )
    yield "I2", "an answered lease was forgotten", HandMadeHistory().add().lease(FIRST).keeps(a_stored(leases=1))
    yield (
        "I2",
        "an answered renewal was forgotten",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("renew", FIRST.token, new_end=200)
        .keeps(a_stored(lease=FIRST, state="LEASED")),
    )
    short = a_lease(since=2.05, until=2.5)
    yield "I3", "deleted after the lease expired", HandMadeHistory().add().lease(short).end("delete", short.token)
    yield (
        "I3",
        "renewed after it was given back",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .end("renew", FIRST.token, new_end=200)
        .keeps(a_stored(lease=FIRST)),
    )
    yield (
        "I3",
        "deleted with the token before the last",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token, "unknown")
        .lease(SECOND_LEASE)
        .end("delete", FIRST.token),
    )
    yield (
        "I3",
        "given back twice",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .end("release", FIRST.token)
        .keeps(a_stored(lease=FIRST)),
    )
    yield (
        "I3",
        "given back, and current again after the crash",
        HandMadeHistory().add().lease(FIRST).end("release", FIRST.token).keeps(a_stored(lease=FIRST, state="LEASED")),
    )
    yield (
        "I4",
        "deleted, and still there",
        HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token).keeps(a_stored(lease=FIRST)),
    )
    stale = HandMadeHistory().add().lease(short).lease(a_lease(since=3.05, number=2))
    yield (
        "I4",
        "a delete that returned, and was not done: another holds the task, and deletes it",
        stale.end("delete", short.token).end("delete", "a.3050000"),
    )
    yield (
        "I3",
        "a release that returned, and was not done: another holds the task",
        HandMadeHistory()
        .add()
        .lease(short)
        .lease(a_lease(since=3.05, number=2))
        .end("release", short.token)
        .end("delete", "a.3050000"),
    )
    yield (
        "I2",
        "given back because of a socket, uncounted",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .lease(a_lease(since=3.05, ready=1.05))
        .end("delete", FIRST.token, lost=True)
        .end("delete", "a.3050000"),
    )
    yield (
        "I6",
        "given back because of a socket, and its holder is refused",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .lease(a_lease(since=3.05, ready=1.05))
        .end("delete", FIRST.token, lost=True)
        .end("delete", "a.3050000"),
    )
    yield (
        "I4",
        "deleted, then leased",
        HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token).lease(SECOND_LEASE),
    )
    yield "I4", "deleted by name, then leased", HandMadeHistory().add().by_name("a").lease(a_lease(since=3.05))
    yield "I4", "deleted by name, and still there", HandMadeHistory().add().by_name("a").keeps(a_stored())
    yield "I5", "two adds of one name both added", HandMadeHistory().add().add().keeps(a_stored())
    yield "I5", "exists, though nobody had added it", HandMadeHistory().add(status="exists").keeps(a_stored())
    yield "I5", "one add, two tasks", HandMadeHistory().add().keeps(a_stored(), replace(a_stored(), name="a2"))
    yield (
        "I6",
        "a delete was refused inside the lease",
        HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, lost=True).keeps(a_stored(lease=FIRST)),
    )
    yield (
        "I6",
        "a renewal was refused inside a renewed lease",
        HandMadeHistory()
        .add()
        .lease(short)
        .end("renew", short.token, new_end=60)
        .end("renew", short.token, lost=True)
        .keeps(a_stored(lease=replace(short, expires_at=60 * SECOND))),
    )
    yield "I7", "an empty answer with a task there", HandMadeHistory().add().lease().keeps(a_stored())
    yield (
        "I7",
        "an empty answer before the task's first lease",
        HandMadeHistory()
        .add(tag="x")
        .lease(kind="tags", tags=("x",))
        .lease(a_lease(since=3.05, tag="x"))
        .end("delete", "a.3050000"),
    )
    yield "I8", "leased before its eta", HandMadeHistory().add(eta=50).lease(FIRST).end("delete", FIRST.token)
    yield (
        "I8",
        "leased before its delay was over",
        HandMadeHistory().add(delay=30).lease(FIRST).end("delete", FIRST.token),
    )
    yield (
        "I8",
        "leased before the delay of a release was over",
        HandMadeHistory()
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
        HandMadeHistory().add(tag="x").lease(tagged, kind="tags", tags=("y",)).end("delete", tagged.token),
    )
    yield (
        "I9",
        "a tag to who asked for none",
        HandMadeHistory().add(tag="x").lease(tagged, kind="untagged").end("delete", tagged.token),
    )
    yield "I9", "another tag than was added", HandMadeHistory().add(tag="y").lease(tagged).end("delete", tagged.token)
    yield (
        "I9",
        "a batch of two tags",
        HandMadeHistory()
        .add("a", tag="x")
        .add("b", tag="y")
        .lease(a_lease("a", since=3.05, tag="x"), a_lease("b", since=3.05, tag="y"), kind="oldest")
        .end("delete", "a.3050000")
        .end("delete", "b.3050000"),
    )
    yield (
        "I10",
        "the later eta first, in one answer",
        HandMadeHistory()
        .add("a")
        .add("b")
        .lease(a_lease("b", since=3.05, ready=2.05), a_lease("a", since=3.05, ready=1.05))
        .end("delete", "a.3050000")
        .end("delete", "b.3050000"),
    )
    yield (
        "I10",
        "the later task first, and the earlier left",
        HandMadeHistory()
        .add("a")
        .add("b")
        .lease(a_lease("b", since=3.05, ready=2.05))
        .end("delete", "b.3050000")
        .keeps(a_stored("a")),
    )
    yield (
        "I10",
        "a task that went to the end when a lease of it expired that nobody saw, and is leased before the others",
        HandMadeHistory()
        .add("b")
        .add("a")
        .add("c")
        .call(RequestedCall("lease", QUEUE, count=1, seconds=0.03), outcome="unknown")
        .lease(a_lease("b", since=5.05, number=2, ready=4.08))
        .end("delete", "b.5050000")
        .keeps(a_stored("a"), a_stored("c")),
    )
    yield (
        "I11",
        "one lease more than allowed",
        HandMadeHistory(max_leases=2).add().lease(replace(FIRST, number=3)).end("delete", FIRST.token),
    )
    yield (
        "I11",
        "a lease that did not count",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .lease(replace(SECOND_LEASE, number=1))
        .end("delete", SECOND_LEASE.token),
    )
    yield (
        "I11",
        "the store counts fewer leases than were given",
        HandMadeHistory().add().lease(replace(FIRST, number=2)).keeps(replace(a_stored(lease=FIRST), leases=1)),
    )
    yield (
        "I13",
        "other bytes came back",
        HandMadeHistory().add().lease(replace(FIRST, digest="0:")).end("delete", FIRST.token),
    )
    headed = replace(an_add("a"), digest=digest_of(b"payload", {"request-id": "r-7"}))
    yield (
        "I13",
        "the payload is kept, its headers are not",
        HandMadeHistory()
        .call(RequestedCall("add", QUEUE, adds=(headed,)), Answer(added=(ReturnedAdd("a", "added"),)))
        .keeps(replace(a_stored(), digest=digest_of(b"payload"))),
    )
    yield "I13", "other bytes are kept", HandMadeHistory().add().keeps(replace(a_stored(), digest="0:"))
    yield "I13", "a task out of nowhere", HandMadeHistory().keeps(a_stored())
    yield "I16", "the store's own check", HandMadeHistory(problems=("counts.ready is 2, recount is 1",))
    yield (
        "I16",
        "counts that disagree with the tasks",
        HandMadeHistory(stats=QueueStats(QUEUE, ready=2, added_total=1)).add().keeps(a_stored()),
    )
    yield (
        "I16",
        "a total below what was acknowledged",
        HandMadeHistory(stats=QueueStats(QUEUE, ready=1)).add().keeps(a_stored()),
    )
    yield (
        "I16",
        "a total above what was ever asked",
        HandMadeHistory(stats=QueueStats(QUEUE, ready=1, added_total=2, deleted_total=1)).add().keeps(a_stored()),
    )
    yield (
        "I16",
        "a task that was removed by name, and is counted as done",
        HandMadeHistory(stats=QueueStats(QUEUE, added_total=1, deleted_total=1)).add().by_name("a"),
    )
    yield (
        "I16",
        "a task that is gone, and nobody deleted it",
        HandMadeHistory(stats=QueueStats(QUEUE, added_total=1)).add(),
    )
    yield (
        "I16",
        "a task that is done, and is not counted",
        HandMadeHistory(stats=QueueStats(QUEUE, added_total=1)).add().lease(FIRST).end("delete", FIRST.token),
    )
    two_at_once = a_lease("b", since=3.05, tag="t")
    yield (
        "I22",
        "two leases of a queue that allows one",
        HandMadeHistory(limits=QueueSpec(QUEUE, max_in_flight=1)).add().add("b").lease(FIRST).lease(two_at_once),
    )
    yield (
        "I22",
        "two leases of a tag that allows one",
        HandMadeHistory(limits=QueueSpec(QUEUE, per_tag=TagLimits(max_in_flight=1)))
        .add(tag="t")
        .add("b", tag="t")
        .lease(a_lease("a", since=3.01, tag="t"), two_at_once),
    )
    yield (
        "I22",
        "three leases of a tag in a second, of a burst of two and one a second",
        HandMadeHistory(limits=QueueSpec(QUEUE, per_tag=TagLimits(rate=Rate(1.0, burst=2))))
        .add(tag="t")
        .add("b", tag="t")
        .add("c", tag="t")
        .lease(*[a_lease(uid, since=4.01 + number / 10, tag="t") for number, uid in enumerate("abc")]),
    )
    yield from forgetting()
