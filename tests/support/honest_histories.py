"""Hand-made histories that keep every promise: the crash tests' checker must accept each of them."""

from collections.abc import Iterator
from dataclasses import replace

from queue_core.admission import Rate, TagLimits
from queue_core.stats import QueueStats
from queue_core.task import QueueSpec
from tests.faults.history import Answer, HistoryCall, RequestedCall, RequestedEnd
from tests.faults.story import QUEUE, SECOND, HandMadeHistory, a_lease, a_stored, an_add, at
from tests.support.remembered_histories import remembering

FIRST = a_lease(since=2.05)
SECOND_LEASE = a_lease(since=4.05, number=2)


def honest() -> Iterator[tuple[str, HandMadeHistory]]:
    """Return what happens, and the history."""
    yield "added, kept", HandMadeHistory().add().keeps(a_stored())
    yield "killed in the add, not kept", HandMadeHistory().add(outcome="unknown")
    yield "killed in the add, kept", HandMadeHistory().add(outcome="unknown").keeps(a_stored())
    yield "done", HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token)
    yield "killed in the delete, gone", HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, "unknown")
    yield (
        "killed in the delete, kept",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown")
        .keeps(a_stored(lease=FIRST, state="LEASED")),
    )
    yield (
        "released, leased again",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token)
        .lease(SECOND_LEASE)
        .end("delete", SECOND_LEASE.token),
    )
    yield (
        "killed in the release, leased again inside the first lease",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token, "unknown")
        .lease(SECOND_LEASE)
        .end("delete", SECOND_LEASE.token),
    )
    yield (
        "killed in a renewal that shortened the lease",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("renew", FIRST.token, "unknown", seconds=0.5)
        .lease(SECOND_LEASE)
        .keeps(a_stored(lease=SECOND_LEASE)),
    )
    yield (
        "a renewal that shortened the lease, sent again when it had ended",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("renew", FIRST.token, "unknown", seconds=0.5, lost=True)
        .lease(SECOND_LEASE)
        .keeps(a_stored(lease=SECOND_LEASE)),
    )
    yield (
        "expired, refused, leased again",
        HandMadeHistory()
        .add()
        .lease(a_lease(since=2.05, until=2.5))
        .end("delete", "a.2050000", lost=True)
        .lease(SECOND_LEASE)
        .keeps(a_stored(lease=SECOND_LEASE)),
    )
    yield (
        "a lease nobody lived to see is counted",
        HandMadeHistory().add().lease(a_lease(since=2.05, number=3)).end("delete", "a.2050000"),
    )
    yield (
        "given back uncounted",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("release", FIRST.token, charge="uncounted")
        .lease(replace(SECOND_LEASE, number=1))
        .end("delete", SECOND_LEASE.token),
    )
    yield "added again", HandMadeHistory().add().add(status="exists").keeps(a_stored())
    yield "added again after a kill", HandMadeHistory().add(outcome="unknown").add(status="exists").keeps(a_stored())
    yield "deleted by name", HandMadeHistory().add().by_name("a")
    yield (
        "handed over",
        HandMadeHistory().add().lease(FIRST).end("delete", FIRST.token, then=(an_add("b"),)).keeps(a_stored("b")),
    )
    yield (
        "killed in the hand-over, done",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown", then=(an_add("b"),))
        .keeps(a_stored("b")),
    )
    yield (
        "killed in the hand-over, undone",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown", then=(an_add("b"),))
        .keeps(a_stored(lease=FIRST, state="LEASED")),
    )
    yield (
        "not known to be deleted, leased again, deleted",
        HandMadeHistory()
        .add()
        .lease(a_lease(since=2.05, until=3.9))
        .end("delete", "a.2050000", "unknown", then=(an_add("b"),))
        .lease(SECOND_LEASE)
        .end("delete", SECOND_LEASE.token),
    )
    yield (
        "not known to be handed over, and done: what followed is finished, too",
        HandMadeHistory()
        .add()
        .lease(FIRST)
        .end("delete", FIRST.token, "unknown", then=(an_add("b"),))
        .lease(a_lease("b", since=4.05))
        .end("delete", "b.4050000"),
    )
    late = HandMadeHistory().add().lease(FIRST)
    late.call(
        RequestedCall("delete", QUEUE, ends=(RequestedEnd(FIRST.token, (an_add("b"),)),)),
        outcome="unknown",
        gave_up=0.2,
    )
    late.end("renew", FIRST.token, new_end=90)
    yield "a deletion that arrived after its caller had given up, and renewed meanwhile", late.keeps(a_stored("b"))
    late = HandMadeHistory().add().lease(FIRST)
    late.call(
        RequestedCall("delete", QUEUE, ends=(RequestedEnd(FIRST.token, (an_add("b"),)),)),
        outcome="unknown",
        gave_up=0.2,
    )
    late.add("c").lease(a_lease("c", since=5.05, ready=4.05)).end("delete", "c.5050000")
    late.lease(a_lease("b", since=7.05, ready=5.5)).end("delete", "b.7050000")
    yield "handed over after its caller had given up, and after a lease of a later task", late
    held_up = HandMadeHistory(clock_error=50_000).add().lease(FIRST)
    held_up.seconds = 2.5
    held_up.end("release", FIRST.token).calls.append(
        HistoryCall(
            RequestedCall("lease", QUEUE, count=9, seconds=60.0),
            at(3.2),
            "ok",
            at(3.8),
            Answer(leases=(replace(SECOND_LEASE, token="a.2050001", leased_at=round(3.2 * SECOND)),)),
        )
    )
    held_up.end("delete", "a.2050001")
    yield "released, then leased by a call that had read the clock before", held_up
    yield (
        "its own first try is what a repeated add meets",
        HandMadeHistory(adds_repeat=True).add(status="exists").lease(FIRST).end("delete", FIRST.token),
    )
    yield (
        "its own first try is what a repeated add meets, deleted meanwhile",
        HandMadeHistory(adds_repeat=True, stats=QueueStats(QUEUE, added_total=1)).add(status="tombstoned").by_name("a"),
    )
    overtaken = (
        HandMadeHistory().add("a").add("b").lease(a_lease("b", since=3.05, ready=2.05)).end("delete", "b.3050000")
    )
    overtaken.call(RequestedCall("release_worker", worker="killed"), outcome="unknown")
    overtaken.lease(a_lease("a", since=6.05)).end("delete", "a.6050000")
    yield "overtaken while a worker had it that was killed before it knew", overtaken
    yield (
        "an empty answer while the only task is leased",
        HandMadeHistory().add().lease(FIRST).lease().keeps(a_stored(lease=FIRST)),
    )
    in_turn = a_lease("b", since=5.05, tag="t")
    yield (
        "a place that a deletion returned, and a token that came with time",
        HandMadeHistory(limits=QueueSpec(QUEUE, max_in_flight=1, per_tag=TagLimits(1, Rate(1.0))))
        .add(tag="t")
        .add("b", tag="t")
        .lease(a_lease("a", since=3.05, tag="t"))
        .end("delete", "a.3050000")
        .lease(in_turn)
        .keeps(a_stored("b", lease=in_turn, state="LEASED")),
    )
    yield from remembering()
