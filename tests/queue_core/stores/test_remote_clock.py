"""The clock of a store that several hosts share: the store's time, whatever this host's clock says."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.clock import START, Instant, microseconds_since_boot
from queue_core.errors import StoreUnavailableError
from queue_core.stores.remote_clock import (
    DRIFT,
    MAX_STANDSTILL_SECONDS,
    NEVER_STEPPED,
    STALE_SECONDS,
    VAGUE_STALE_SECONDS,
    ClockRecord,
    RemoteClock,
    decode_record,
)

SECOND = 1_000_000


@dataclass
class World:
    """A host, since its boot, and a store whose clock may drift and be set. Times in microseconds."""

    since_boot: float = 5 * SECOND
    store: float = START
    drift: float = 0.0

    def __post_init__(self) -> None:
        self.clock = RemoteClock(since_boot=lambda: int(self.since_boot))

    def advance(self, microseconds: float) -> None:
        self.since_boot += microseconds
        self.store += microseconds * (1 + self.drift)

    def ask(self, *, there: float = 100, back: float = 100) -> None:
        """A round trip."""
        sent_at = self.clock.since_boot()
        self.advance(there)
        store_now = Instant(int(self.store))
        self.advance(back)
        self.clock.observe(store_now, sent_at=sent_at, received_at=self.clock.since_boot())

    @property
    def error(self) -> float:
        return abs(self.clock.now() - self.store)


def test_the_time_is_unknown_before_the_store_has_answered() -> None:
    world = World()
    assert world.clock.is_stale
    assert world.clock.error_seconds == float("inf")
    with pytest.raises(StoreUnavailableError):
        world.clock.now()


def test_the_time_is_the_stores_to_within_half_a_round_trip() -> None:
    world = World()
    world.ask(there=30, back=170)
    assert world.error <= 101
    assert world.clock.error_seconds == pytest.approx(101e-6, rel=0.01)


def test_an_estimate_that_may_be_far_off_is_made_better_soon() -> None:
    world = World()
    world.ask(there=0.2 * SECOND, back=0.1 * SECOND)
    assert not world.clock.is_stale
    world.advance(VAGUE_STALE_SECONDS * SECOND + 1)
    assert world.clock.is_stale
    world.ask()
    world.advance(VAGUE_STALE_SECONDS * SECOND + 1)
    assert not world.clock.is_stale


def test_a_vague_estimate_is_told_from_an_exact_one() -> None:
    world = World()
    assert world.clock.is_vague
    world.ask(there=0.2 * SECOND, back=0.1 * SECOND)
    assert world.clock.is_vague
    world.ask()
    assert not world.clock.is_vague


def test_a_long_round_trip_does_not_spoil_what_a_short_one_showed() -> None:
    world = World()
    world.ask(there=50, back=50)
    world.ask(there=0, back=20 * SECOND)
    assert world.error <= 51 + 20 * SECOND * DRIFT


def test_the_short_round_trip_of_many_is_believed() -> None:
    world = World()
    for there, back in [(0, 40_000), (35_000, 0), (60, 60), (0, 50_000)]:
        world.ask(there=there, back=back)
    assert world.error <= 65 + 50_000 * DRIFT


def test_the_error_grows_with_age_by_the_drift_and_an_answer_lessens_it() -> None:
    world = World(drift=DRIFT / 2)
    world.ask()
    before = world.clock.error_seconds
    world.advance(100 * SECOND)
    assert world.clock.error_seconds == pytest.approx(before + 100 * DRIFT)
    assert world.error <= world.clock.error_seconds * SECOND
    world.ask()
    assert world.clock.error_seconds < 0.001
    assert world.error <= world.clock.error_seconds * SECOND + 1


def test_a_suspended_host_wakes_to_the_right_time() -> None:
    world = World()
    world.ask()
    world.advance(8 * 3600 * SECOND)
    assert world.error <= world.clock.error_seconds * SECOND
    assert world.clock.is_stale


def test_an_answer_is_fresh_for_seconds() -> None:
    world = World()
    world.ask(there=0, back=0)
    world.advance(STALE_SECONDS * SECOND)
    assert not world.clock.is_stale
    world.advance(1)
    assert world.clock.is_stale


def test_it_stands_still_where_it_was_ahead_and_never_goes_back() -> None:
    world = World()
    world.ask(there=10_000, back=0)  # read at the end, believed to be in the middle: 5 ms ahead
    shown = world.clock.now()
    world.ask(there=10, back=10)
    assert world.clock.now() == shown
    world.advance(4_000)
    assert world.clock.now() == shown
    world.advance(2_000)
    assert world.clock.now() > shown
    assert world.error < 25


@pytest.mark.parametrize("seconds", [-86_400, -20, -2, 2, 20, 86_400])
def test_a_store_whose_clock_is_set_is_followed_little_by_little(seconds: float) -> None:
    world = World()
    world.ask()
    shown = world.clock.now()
    world.store += seconds * SECOND
    world.ask()
    assert world.clock.now() - shown < 1_000
    assert world.clock.steps().steps == 1
    assert world.clock.steps().step_seconds == pytest.approx(seconds, abs=0.001)
    lease = 60 * SECOND
    world.advance(0.9 * lease)
    world.ask()
    assert world.clock.now() < shown + lease
    world.advance(0.2 * lease)
    world.ask()
    assert world.clock.now() > shown + lease
    world.advance(abs(seconds) * SECOND / 0.08)
    world.ask()
    assert world.error <= 101


def test_a_store_whose_clock_is_set_by_less_than_a_second_is_followed_at_its_next_answer() -> None:
    world = World()
    world.ask()
    world.clock.now()
    world.store += 0.5 * SECOND
    world.ask()
    assert world.error <= 101


def test_a_store_set_back_by_less_than_a_second_is_waited_for() -> None:
    world = World()
    world.ask()
    shown = world.clock.now()
    world.store -= MAX_STANDSTILL_SECONDS * SECOND / 2
    world.ask()
    assert world.clock.now() == shown
    world.advance(MAX_STANDSTILL_SECONDS * SECOND)
    assert world.error <= 101


def test_an_answer_from_before_the_clock_was_set_is_forgotten() -> None:
    world = World()
    world.ask()
    sent_at, old = world.clock.since_boot(), Instant(int(world.store))
    world.advance(1000)
    world.store += 3600 * SECOND
    world.ask()
    world.clock.observe(old, sent_at=sent_at, received_at=world.clock.since_boot())
    assert world.clock.steps().steps == 1
    assert world.clock.steps().lag_seconds == pytest.approx(3600.0, abs=0.001)


def test_answers_may_be_noted_in_any_order() -> None:
    world = World()
    world.ask()
    sent_at, store_now = world.clock.since_boot(), Instant(int(world.store))
    world.advance(50)
    received_at = world.clock.since_boot()
    world.advance(10 * SECOND)
    world.ask()
    world.clock.observe(store_now, sent_at=sent_at, received_at=received_at)
    assert world.error <= 101 + SECOND * DRIFT


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 60 * SECOND), st.floats(0, SECOND), st.floats(0, SECOND)), min_size=1, max_size=30
    ),
    drift=st.floats(-DRIFT, DRIFT),
)
def test_the_error_is_never_larger_than_it_says(steps: list[tuple[float, float, float]], drift: float) -> None:
    world = World(drift=drift)
    shown = 0
    for pause, there, back in steps:
        world.ask(there=there, back=back)
        world.advance(pause)
        bound = world.clock.error_seconds * SECOND
        now = world.clock.now()
        assert now >= shown
        # A clock that stands still may be ahead by what it showed before.
        assert abs(now - world.store) <= bound + 2 or now == shown
        shown = now


def test_time_since_boot_counts_on() -> None:
    first = microseconds_since_boot()
    assert first > 0
    assert microseconds_since_boot() >= first


def test_its_monotonic_seconds_do_not_depend_on_the_store() -> None:
    world = World()
    before = world.clock.monotonic()
    assert world.clock.monotonic() >= before


class Shared:
    """A store with its record, and hosts that read both with each answer."""

    def __init__(self, hosts: int) -> None:
        self.record = NEVER_STEPPED
        self.worlds = [World() for _ in range(hosts)]

    def open(self) -> World:
        """A process that opens the store now."""
        world = World(since_boot=self.worlds[0].since_boot, store=self.worlds[0].store)
        self.worlds.append(world)
        self.ask(world)
        return world

    def step(self, seconds: float) -> None:
        for world in self.worlds:
            world.store += seconds * SECOND

    def advance(self, seconds: float) -> None:
        for world in self.worlds:
            world.advance(seconds * SECOND)

    def ask(self, world: World, *, keep: bool = True) -> None:
        at = world.clock.since_boot()
        world.clock.observe(Instant(int(world.store)), sent_at=at, received_at=at, record=self.record)
        if keep and world.clock.unkept is not None:
            self.record = decode_record(world.clock.unkept.encode())
            world.clock.observe(Instant(int(world.store)), sent_at=at, received_at=at, record=self.record)


@pytest.mark.parametrize("seconds", [-3_600, -20, 20, 3_600])
def test_all_processes_follow_a_step_alike_whoever_notices_it_and_so_do_later_ones(seconds: float) -> None:
    shared = Shared(2)
    one, other = shared.worlds
    shared.ask(one)
    shared.ask(other)
    before = one.clock.now()
    shared.advance(1.0)
    shared.step(seconds)
    shared.ask(one, keep=False)  # both notice before either has written
    shared.ask(other, keep=False)
    shared.ask(one)
    shared.advance(2.0)
    shared.ask(other)
    assert other.clock.unkept is None
    late = shared.open()
    assert {world.clock.steps().steps for world in shared.worlds} == {1}
    for world in shared.worlds:
        assert world.clock.now() - before == pytest.approx(3.0 * SECOND, rel=0.1)
    shared.advance(60.0)
    shared.ask(late)
    shared.ask(one)
    assert abs(late.clock.now() - one.clock.now()) < SECOND / 1000


def test_a_second_step_right_after_one_that_another_process_noticed_is_no_time_either() -> None:
    shared = Shared(2)
    one, other = shared.worlds
    shared.ask(one)
    shared.ask(other)
    before = other.clock.now()
    shared.step(3_600)
    shared.ask(one)
    shared.step(7_200)
    shared.ask(other)
    assert other.clock.now() - before < SECOND
    shared.ask(one)
    assert one.clock.now() - before < SECOND
    assert shared.open().clock.now() - before < SECOND


def test_a_record_of_steps_is_kept_as_text() -> None:
    record = ClockRecord(lag=-5, at=START, steps=2, step=-7)
    assert decode_record(record.encode()) == record
    assert decode_record("") == NEVER_STEPPED
