"""Verbs of PostgreSQL that are committed as they are made: one round trip, and a lost answer is found again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Thread

import psycopg
import pytest

from queue_core.admission import TagLimits
from queue_core.clock import Clock, Instant
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.store import Store, Transaction, Unit
from queue_core.stores import open_store
from queue_core.stores.postgres import maintenance
from queue_core.stores.postgres.session import PostgresSession
from queue_core.task import ANY, NewTask, TagFilter, TaskState
from queue_core.verbs import Added, ClientCall, Deletion, LeaseRequest, Release, Renewal
from tests.support.cutting_proxy import CuttingTcpProxy, a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.stores.postgres_connections import Operator, Pooler, operator, port_of, through
from tests.support.stores.stores import new_url
from tests.support.stores.task_builders import QUEUE, a_queue

ONE = LeaseRequest(1, 60.0, ANY, "w")
FIVE = LeaseRequest(5, 60.0, ANY, "w")
Verb = Callable[[Transaction], object]

_CALLS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE query LIKE '%exchange_one(%' AND state = 'active' AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A store that is reached over a wire that can be cut, and an operator who goes around it."""

    store: Store
    wire: CuttingTcpProxy
    operator: Operator

    @property
    def clock(self) -> Clock:
        return self.store.clock

    def do(self, verb: Verb) -> object:
        with self.store.begin("verb") as transaction:
            return verb(transaction)

    def added(self, *tasks: NewTask) -> None:
        self.do(lambda turn: turn.add(QUEUE, tasks, now=self.clock.now()))

    def leased(self, request: LeaseRequest = ONE) -> list[Deletion]:
        with self.store.begin("verb") as turn:
            return [Deletion(lease.token) for lease in turn.lease(QUEUE, request, now=self.clock.now()).leases]

    def number(self, query: str) -> int:
        row = self.operator.execute(query.encode()).fetchone()
        assert row is not None
        return int(str(row[0]))


@pytest.fixture
def url() -> str:
    return new_url("postgresql")


@pytest.fixture
def place(url: str) -> Iterator[Place]:
    with (
        a_tcp_proxy("127.0.0.1", port_of(url)) as wire,
        closing(open_store(through(url, wire.port))) as store,
        operator(url) as beside,
    ):
        a_queue(store, max_leases=None)
        here = Place(store, wire, beside)
        here.added(NewTask(b"first"))
        for request in (ONE, FIVE):
            done = here.leased(request)
            here.do(lambda turn, done=done, ask=request: turn.exchange(QUEUE, done, ask, now=here.clock.now()))  # type: ignore[misc]
        assert store.check().problems == ()
        yield here
        assert store.check().problems == ()


def exchange(place: Place, done: Sequence[Deletion], request: LeaseRequest) -> Verb:
    return lambda turn: turn.exchange(QUEUE, done, request, now=place.clock.now())


def add(place: Place, *tasks: NewTask) -> Verb:
    return lambda turn: turn.add(QUEUE, tasks, now=place.clock.now())


def told(answer: object) -> object:
    """An answer without what differs from call to call: ids, tokens and instants."""
    if isinstance(answer, tuple):
        deleted, granted = answer
        return (
            [each and (each.finished.tag, each.finished.lease_number, each.finished.outcome) for each in deleted],
            [(each.payload, each.tag, each.lease_number, each.worker, each.headers) for each in granted.leases],
            [(each.worker, each.lease_number, each.outcome) for each in granted.expired],
        )
    assert isinstance(answer, list)
    return [(each.status, each.ready, each.name.startswith("_") or each.name) for each in answer]


def plain(place: Place) -> Verb:
    return add(place, NewTask(b"x"))


def later(place: Place) -> Verb:
    return add(place, NewTask(b"x", tag="t", delay_seconds=60.0))


def mixed(place: Place) -> Verb:
    place.added(NewTask(name="taken"))
    return add(place, NewTask(name="taken"), NewTask(tag="t"), NewTask(name="free"), NewTask(delay_seconds=60.0))


def bounded(place: Place) -> Verb:
    return add(place, NewTask(b"x", max_leases=2), NewTask(name="n"))


def headed(place: Place) -> Verb:
    return add(place, NewTask(b"x", headers={"n": "1"}), NewTask(b"y"))


def one_for_one(place: Place) -> Verb:
    place.added(NewTask(b"a", tag="t"), NewTask(b"b"))
    return exchange(place, place.leased(), ONE)


def the_first(place: Place) -> Verb:
    place.added(NewTask(b"a" * 2_000, headers={"n": "1"}))
    return exchange(place, (), ONE)


def the_last(place: Place) -> Verb:
    place.added(NewTask(b"a"))
    return exchange(place, place.leased(), ONE)


def several(place: Place) -> Verb:
    place.added(*[NewTask(bytes([65 + number]), tag="odd" if number % 2 else None) for number in range(9)])
    return exchange(place, [*place.leased(FIVE), Deletion("1.1")], FIVE)


def of_a_tag(place: Place) -> Verb:
    place.added(NewTask(b"a", tag="t"), NewTask(b"b"), NewTask(b"c", tag="t"))
    return exchange(place, (), LeaseRequest(5, 60.0, TagFilter.of("t"), "w"))


def after_an_expiry(place: Place) -> Verb:
    place.added(NewTask(b"a"))
    place.leased(LeaseRequest(1, 0.001, ANY, "slow"))
    now = place.clock.now()
    eventually(lambda: place.clock.now() > now + 2_000)
    return exchange(place, (), FIVE)


VERBS = [plain, later, mixed, bounded, headed, one_for_one, the_first, the_last, several, of_a_tag, after_an_expiry]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb.__name__))
def test_an_answer_that_was_lost_is_told_all_the_same(place: Place, verb: Callable[[Place], Verb]) -> None:
    undisturbed = told(place.do(verb(place)))
    with place.store.begin() as turn:
        turn.purge(QUEUE, ANY, limit=1000, now=place.clock.now())
        turn.delete_queue(QUEUE)
    a_queue(place.store, max_leases=None)
    act = verb(place)
    before = place.number("SELECT coalesce(sum(added + leases + deleted + expired), 0) FROM towline.counts")
    place.wire.cut_next("lose answer")
    assert told(place.do(act)) == undisturbed
    assert place.wire.cuts == 1
    assert place.number("SELECT sum(added + leases + deleted + expired) FROM towline.counts") > before


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: str(verb.__name__))
def test_a_verb_that_did_not_arrive_has_changed_nothing(place: Place, verb: Callable[[Place], Verb]) -> None:
    failures: list[StoreUnavailableError] = []
    while not failures:  # what the store does now and then may come on the same wire, and be dropped in its place
        act = verb(place)
        before = place.number("SELECT sum(added + leases + deleted + expired) FROM towline.counts")
        place.wire.cut_next("drop")
        try:
            place.do(act)
        except StoreUnavailableError as error:
            failures.append(error)
    assert "nothing was changed" in str(failures[0])
    assert place.number("SELECT sum(added + leases + deleted + expired) FROM towline.counts") == before


@pytest.mark.parametrize("verb", [plain, one_for_one, several], ids=lambda verb: str(verb.__name__))
def test_a_verb_is_one_message_to_the_server(place: Place, verb: Callable[[Place], Verb]) -> None:
    counts = []
    for _ in range(5):  # what the store does now and then, such as trimming old rows, may come on the same wire
        act = verb(place)
        place.wire.cut_next("pass")
        place.do(act)
        counts.append(place.wire.messages)
    assert min(counts) == 1


@pytest.mark.parametrize("number", [1, 3])
def test_tasks_that_were_told_again_are_those_of_the_call(place: Place, number: int) -> None:
    tag = TagFilter.of("t")
    place.wire.cut_next("lose answer")
    added = place.do(add(place, *[NewTask(b"told again", tag="t", delay_seconds=60.0)] * number))
    with place.store.read() as turn:
        found = turn.peek(QUEUE, tag, frozenset(TaskState), limit=9, payload_bytes=10, now=place.clock.now())
    assert [task.payload for task in found.tasks] == [b"told again"] * number
    assert added == [Added(task.shown_name, "added", ready=False) for task in found.tasks]


def test_leases_that_were_told_again_are_those_of_the_call(place: Place) -> None:
    place.added(*[NewTask(bytes([65 + number])) for number in range(6)])
    theirs = place.leased()
    place.wire.cut_next("lose answer")
    ours = place.leased(FIVE)
    assert len(ours) == 5
    with place.store.begin() as turn:
        outcomes = turn.delete(QUEUE, [*theirs, *ours], now=place.clock.now())
    assert None not in outcomes


def test_leases_that_were_told_again_come_by_priority(place: Place) -> None:
    place.added(*[NewTask(b"%d" % priority, priority=priority) for priority in (0, 5, 9)])
    place.wire.cut_next("lose answer")
    with place.store.begin("verb") as turn:
        again = turn.lease(QUEUE, FIVE, now=place.clock.now()).leases
    assert (place.wire.cuts, [held.payload for held in again]) == (1, [b"9", b"5", b"0"])


def a_queue_of_turns(place: Place, tags: str) -> None:
    """Tags take turns in it; a task of each of these tags waits, in this order."""
    with place.store.begin() as turn:
        turn.delete_queue(QUEUE)
    a_queue(place.store, max_leases=None, per_tag=TagLimits(fair=True))
    place.added(*[NewTask(b"%d" % number, tag=tag) for number, tag in enumerate(tags)])


def test_leases_that_were_told_again_come_as_tags_take_turns(place: Place) -> None:
    a_queue_of_turns(place, "aaabbc")
    place.wire.cut_next("lose answer")
    with place.store.begin("verb") as turn:
        again = turn.lease(QUEUE, FIVE, now=place.clock.now()).leases
    assert (place.wire.cuts, "".join(str(held.tag) for held in again)) == (1, "abcab")


@pytest.mark.parametrize("unit", ["verb", "transaction"])
def test_the_repeat_of_a_call_gets_its_leases_as_tags_take_turns(place: Place, unit: Unit) -> None:
    a_queue_of_turns(place, "aaabbc")
    answers = []
    for is_repeat in (False, True):
        with place.store.begin(unit) as turn:
            once = turn.once_for_call(ClientCall("client", 1, is_repeat), "lease")
            assert once is not None
            answers.append([held.token for held in once.lease(QUEUE, FIVE, now=place.clock.now()).leases])
    assert answers[1] == answers[0]
    with place.store.read() as turn:
        held = turn.peek(QUEUE, ANY, frozenset({TaskState.LEASED}), limit=9, payload_bytes=0, now=place.clock.now())
    tags = {task.token: str(task.tag) for task in held.tasks}
    assert "".join(tags[token] for token in answers[1]) == "abcab"


def test_a_lease_that_was_told_again_has_the_checkpoint(place: Place) -> None:
    place.added(NewTask(b"x", headers={"n": "1"}))
    (held,) = place.leased()
    place.do(lambda turn: turn.renew(QUEUE, [Renewal(held.token, 60, checkpoint=b"half")], now=place.clock.now()))
    place.do(lambda turn: turn.release(QUEUE, [Release(held.token, 0)], now=place.clock.now()))
    place.wire.cut_next("lose answer")
    with place.store.begin("verb") as turn:
        (again,) = turn.lease(QUEUE, ONE, now=place.clock.now()).leases
    assert (place.wire.cuts, again.headers, again.checkpoint) == (1, {"n": "1"}, b"half")


def test_a_call_under_way_fails_once_its_mark_was_requested_for(place: Place) -> None:
    place.added(NewTask(b"a"))
    failures: list[BaseException] = []

    def call() -> None:
        try:
            place.leased()
        except StoreUnavailableError as error:
            failures.append(error)

    with operator(str(place.operator.info.dsn)) as holder, holder.transaction():
        holder.execute("LOCK TABLE towline.workers IN ACCESS EXCLUSIVE MODE")
        caller = Thread(target=call)
        place.wire.cut_next("stall")
        caller.start()
        eventually(lambda: place.number("SELECT count(*) FROM pg_locks WHERE NOT granted") == 1)
        place.wire.sever()
        caller.join()
    assert len(failures) == 1
    eventually(lambda: not place.number(_CALLS))
    assert place.number("SELECT count(*) FROM towline.tasks WHERE state = 2") == 0


@pytest.mark.parametrize("calls", [[], [1, 2]], ids=["no call yet", "two calls"])
def test_a_mark_that_was_requested_for_is_the_last_of_its_connection(place: Place, calls: list[int]) -> None:
    for number in calls:
        place.operator.execute("SELECT towline.set_commit_marker(7, %s, ARRAY[%s::int8])", (number, number))
    asked = [
        place.operator.execute("SELECT xid IS NULL, ids FROM towline.close_commit_marker(7, 2)").fetchone()
        for _ in "ab"
    ]
    assert asked == ([(False, [2])] * 2 if calls else [(True, None)] * 2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        place.operator.execute("SELECT towline.set_commit_marker(7, 3)")


def test_an_answer_that_is_not_kept_any_more_is_not_made_up(place: Place) -> None:
    place.added(NewTask(b"a"), NewTask(b"b"))
    done = place.leased()
    place.operator.execute("INSERT INTO towline.trimmed SELECT id, '9223372036854775807'::xid8 FROM towline.queues")
    place.wire.cut_next("lose answer")
    with pytest.raises(OutcomeUnknownError, match="no longer kept"):
        place.do(exchange(place, done, ONE))


def test_a_connection_that_was_forgotten_is_marked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SAMPLES_BETWEEN", 1)
    place.operator.execute("UPDATE towline.commit_markers SET marked_at = now() - interval '25 hours'")
    place.operator.execute("INSERT INTO towline.commit_markers VALUES (1, 1, '1', now() - interval '23 hours')")
    place.added(NewTask(b"a"), NewTask(b"b"))
    done = place.leased()
    place.operator.execute(
        "UPDATE towline.commit_markers SET marked_at = now() - interval '25 hours' WHERE connection <> 1"
    )
    place.do(lambda turn: turn.delete(QUEUE, done, now=place.clock.now()))
    assert place.number("SELECT count(*) FROM towline.commit_markers WHERE connection = 1") == 1
    place.operator.execute("DELETE FROM towline.commit_markers")
    place.wire.cut_next("lose answer")
    assert len(place.leased()) == 1


def test_what_can_not_be_cut_back_fails_no_verb(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SAMPLES_BETWEEN", 1)
    place.operator.execute("ALTER FUNCTION towline.forget_commit_markers() RENAME TO forgotten")
    place.added(NewTask(b"a"))
    done = place.leased()
    deleted = place.do(lambda turn: turn.delete(QUEUE, done, now=place.clock.now()))
    assert deleted != [None]
    assert place.number("SELECT count(*) FROM towline.tasks WHERE queue > 0") == 0


def test_what_follows_a_verb_is_a_transaction_of_its_own(place: Place) -> None:
    place.added(NewTask(b"a"))
    with pytest.raises(ZeroDivisionError), place.store.begin("verb") as turn:
        turn.lease(QUEUE, ONE, now=place.clock.now())
        turn.add(QUEUE, [NewTask(b"b")], now=place.clock.now())
        raise ZeroDivisionError
    assert place.number("SELECT count(*) FROM towline.tasks WHERE state = 2") == 1
    assert place.number("SELECT count(*) FROM towline.tasks WHERE queue > 0") == 1


def test_behind_a_pooler_a_lost_answer_is_found_again(url: str) -> None:
    pooler = Pooler("127.0.0.1", port_of(url))
    try:
        with (
            a_tcp_proxy("127.0.0.1", pooler.port) as wire,
            closing(open_store(through(url, wire.port))) as store,
            operator(url) as beside,
        ):
            a_queue(store)
            here = Place(store, wire, beside)
            here.added(NewTask(b"a"), NewTask(b"b"))
            done = here.leased()
            wire.cut_next("lose answer")
            assert told(here.do(exchange(here, done, ONE))) == (
                [(None, 1, "deleted")],
                [(b"b", None, 1, "w", None)],
                [],
            )
            assert wire.cuts == 1
    finally:
        pooler.close()


def test_behind_a_pooler_a_relaxed_store_begins_transactions(url: str) -> None:
    pooler = Pooler("127.0.0.1", port_of(url))
    try:
        with closing(open_store(through(url, pooler.port), durability="relaxed")) as store, operator(url) as beside:
            a_queue(store)
            with store.begin("verb") as turn:
                turn.add(QUEUE, [NewTask(b"a")], now=store.clock.now())
            assert beside.execute("SELECT count(*) FROM towline.commit_markers").fetchone() == (0,)
            assert beside.execute("SELECT count(*) FROM towline.tasks WHERE queue > 0").fetchone() == (1,)
    finally:
        pooler.close()


def test_a_repeat_that_looks_just_before_its_first_try_ends_is_told_what_that_did(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.added(NewTask(b"x"))
    (deletion,) = place.leased()
    look = PostgresSession._find_earlier
    first = [ClientCall("s", 1)]

    def delete(turn: Transaction, call: ClientCall) -> list[bool]:
        once = turn.once_for_call(call, "delete")
        assert once is not None
        return [outcome is not None for outcome in once.delete(QUEUE, [deletion], now=place.clock.now())]

    def look_then_let_the_first_end(session: PostgresSession, call: ClientCall) -> None:
        look(session, call)
        if first:
            with place.store.begin("verb") as turn:
                assert delete(turn, first.pop()) == [True]

    monkeypatch.setattr(PostgresSession, "_find_earlier", look_then_let_the_first_end)
    with place.store.begin("verb") as turn:
        assert delete(turn, ClientCall("s", 1, is_repeat=True)) == [True]


def test_a_first_try_that_comes_after_its_repeat_takes_no_effect(place: Place) -> None:
    """It was held up with the time that it began at, when its lease was live; its repeat found the lease expired."""
    place.added(NewTask())
    begun_at = place.clock.now()
    with place.store.begin("verb") as turn:
        (held,) = turn.lease(QUEUE, LeaseRequest(1, 1.0, ANY, "w"), now=begun_at).leases
    late = held.expires_at

    def delete(call: ClientCall, now: Instant) -> object:
        with place.store.begin("verb") as turn:
            once = turn.once_for_call(call, "delete")
            assert once is not None
            return list(once.delete(QUEUE, [Deletion(held.token)], now=now))

    for _ in range(2):
        assert delete(ClientCall("client", 1, is_repeat=True), late) == [None]
    with pytest.raises(StoreUnavailableError):
        delete(ClientCall("client", 1), begun_at)
    assert place.number("SELECT count(*) FROM towline.tasks WHERE queue > 0") == 1
    assert delete(ClientCall("client", 2), begun_at) != [None]
