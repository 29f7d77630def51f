"""Waking waiters over a real PostgreSQL: of this process and of others, within milliseconds, and at what cost."""

import statistics
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queue_core.clock import SystemClock
from queue_core.stores.postgres.notify import listener
from queue_core.stores.postgres.notify.signals import NotifySignals
from queue_core.task import ANY, UNTAGGED, TagFilter
from tests.support.eventually import eventually
from tests.support.stores.postgres_connections import (
    LONG,
    await_notifications,
    closing,
    operator,
    rows,
    signals_on,
    woken,
)


@pytest.fixture(params=["of this process", "of another"])
def there(request: pytest.FixtureRequest, url: str, here: NotifySignals) -> Iterator[NotifySignals]:
    """Who publishes."""
    if request.param == "of this process":
        yield here
        return
    with signals_on(url) as signals:
        yield signals


# -- what every store's signals promise ---------------------------------------------------------------------------


def test_a_publish_between_subscribe_and_wait_is_not_missed(there: NotifySignals, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    there.publish("q", "a", 1)
    assert ear.wait(timeout_seconds=LONG)
    assert not ear.wait(timeout_seconds=0)
    ear.close()


@pytest.mark.parametrize(
    ("tags", "tag", "expected"),
    [
        (ANY, None, True),
        (ANY, "a", True),
        (TagFilter.oldest(), "a", True),
        (TagFilter.of("a"), "a", True),
        (TagFilter.of("a"), "b", False),
        (TagFilter.of("a"), None, False),
        (TagFilter.of("b", "a"), "a", True),
        (TagFilter.oldest("b", "a"), "c", False),
        (UNTAGGED, None, True),
        (UNTAGGED, "a", False),
        (TagFilter.of(*[f"t{index}" for index in range(50)]), "t49", True),
        (TagFilter.of('quo"te, \\ {NULL}'), 'quo"te, \\ {NULL}', True),
        (TagFilter.of("NULL"), None, False),
        (TagFilter.of("Größe"), "Größe", True),
    ],
)
def test_a_waiter_hears_of_what_it_would_take(
    here: NotifySignals, tags: TagFilter, tag: str | None, expected: bool
) -> None:
    ear = here.subscribe("q", tags)
    here.publish("other", tag, 5)
    await_notifications(here, here)
    assert woken(ear) == [False]
    here.publish("q", tag, 1)
    await_notifications(here, here)
    assert woken(ear) == [expected]
    ear.close()


def test_as_many_are_woken_as_there_are_tasks_most_recently_active_first(
    there: NotifySignals, here: NotifySignals
) -> None:
    first, second, third = (here.subscribe("q", ANY) for _ in range(3))
    there.publish("q", None, 2)
    await_notifications(there, here)
    assert woken(first, second, third) == [False, True, True]
    there.publish("q", None, 9)
    await_notifications(there, here)
    assert woken(first, second, third) == [True, True, True]
    closing(first, second, third)


def test_whoever_is_awake_comes_after_those_who_wait(there: NotifySignals, here: NotifySignals) -> None:
    idle, busy = here.subscribe("q", ANY), here.subscribe("q", ANY)
    there.publish("q", None, 1)
    assert busy.wait(timeout_seconds=LONG)
    there.publish("q", None, 1)
    await_notifications(there, here)
    assert woken(idle) == [True]
    there.publish("q", None, 1)
    await_notifications(there, here)
    assert woken(busy, idle) == [True, False]
    closing(idle, busy)


def test_one_that_waited_in_vain_is_as_idle_as_before_when_it_comes_back(here: NotifySignals) -> None:
    idle, busy = here.subscribe("q", ANY), here.subscribe("q", ANY)
    assert woken(idle) == [False]
    idle.close()
    idle = here.subscribe("q", ANY)
    here.publish("q", None, 1)
    await_notifications(here, here)
    assert woken(idle, busy) == [False, True]
    closing(idle, busy)


def test_an_unused_wake_up_is_passed_on(there: NotifySignals, here: NotifySignals) -> None:
    first = here.subscribe("q", ANY)
    unfit = here.subscribe("q", TagFilter.of("b"))
    last = here.subscribe("q", ANY)
    there.publish("q", "a", 1)
    await_notifications(there, here)
    last.close()
    await_notifications(here, here)
    assert woken(first, unfit) == [True, False]
    closing(first, unfit)


def test_wake_ends_a_wait_of_another_thread(here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    other = here.subscribe("q", ANY)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ear.wait, timeout_seconds=LONG)
        ear.wake()
        waiting.result(LONG)
    ear.close()
    await_notifications(here, here)
    assert woken(other) == [False]
    other.close()
    other.close()


def test_the_most_recently_active_is_found_among_processes(url: str, here: NotifySignals) -> None:
    with signals_on(url) as there:
        ears = [here.subscribe("q", ANY), there.subscribe("q", ANY), here.subscribe("q", ANY)]
        here.publish("q", None, 2)
        await_notifications(here, here)
        await_notifications(here, there)
        assert woken(*ears) == [False, True, True]
        closing(*ears)


def test_a_hundred_waiters_of_one_process_are_woken_by_one_publish(here: NotifySignals) -> None:
    tag = "\x01" * 500  # the longest there is when a notification spells it out
    ears = [here.subscribe("q", TagFilter.of(tag)) for _ in range(450)]
    here.publish("q", tag, len(ears))
    assert all(ear.wait(timeout_seconds=LONG) for ear in ears)
    closing(*ears)


# -- cost ---------------------------------------------------------------------------------------------------------


def test_who_never_waits_opens_no_connection_to_listen(url: str, here: NotifySignals) -> None:
    for number in range(100):
        here.publish("q", str(number), 1)
    here.close()
    assert rows(url, "listeners") == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "towline-listener"]


def test_nobody_is_notified_where_nobody_waits(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("other", ANY)
    with operator(url) as connection:
        for fits in ("'q', NULL, 5", "'q', 'a', 1"):
            assert connection.execute(f"SELECT towline.wake({fits})").fetchone() == (0,)  # type: ignore[call-overload]
    ear.close()


def test_nothing_is_left_of_waiters_that_are_gone(url: str, here: NotifySignals) -> None:
    ears = [here.subscribe("q", ANY) for _ in range(20)]
    assert rows(url, "waiters") == 20
    closing(*ears)
    await_notifications(here, here)
    eventually(lambda: rows(url, "waiters") == 0)
    here.close()
    assert rows(url, "listeners") == 0


def test_a_waiter_is_woken_in_a_few_milliseconds(url: str, here: NotifySignals) -> None:
    monotonic = SystemClock().monotonic
    took = []
    with signals_on(url) as there:
        for _ in range(50):
            ear = here.subscribe("q", ANY)
            started = monotonic()
            there.publish("q", "a", 1)
            assert ear.wait(timeout_seconds=LONG)
            took.append(monotonic() - started)
            ear.close()
    assert statistics.median(took) < 0.01


def test_the_connection_is_closed_when_nobody_waits_any_more_and_opened_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER_SECONDS", 0.02)
    monkeypatch.setattr(listener, "PASS_ON_SECONDS", 0.01)
    with signals_on(url) as here:
        for _ in range(2):
            ear = here.subscribe("q", ANY)
            assert rows(url, "listeners") == 1
            here.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG)
            ear.close()
            eventually(lambda: rows(url, "listeners") == 0)


@pytest.mark.parametrize("ending", ["signals.close()", "pass"], ids=["closes", "just ends"])
def test_what_a_program_published_right_before_its_end_is_told(url: str, here: NotifySignals, ending: str) -> None:
    ear = here.subscribe("q", ANY)
    program = f"""
        from tests.support.stores.postgres_connections import signals_on
        opened = signals_on({url!r})
        signals = opened.__enter__()
        signals.publish("q", None, 1)
        {ending}
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
    assert ear.wait(timeout_seconds=LONG)
    ear.close()
