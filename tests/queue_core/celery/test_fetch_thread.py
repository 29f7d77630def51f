"""Calls beside an event loop: one at a time, each outcome is taken or given back."""

import threading

import pytest

from queue_core.celery.transport.fetch_thread import FetchThread
from tests.support.eventually import eventually


class Site:
    def __init__(self) -> None:
        self.over = threading.Event()
        self.unwanted: list[str] = []
        self.thread: FetchThread[str] = FetchThread(self.over.set, unwanted=self.unwanted.append, name="calls")


@pytest.fixture
def site() -> Site:
    return Site()


def test_what_a_call_brings_is_taken_once(site: Site) -> None:
    assert site.thread.take() is None
    site.thread.begin(lambda: "tasks")
    assert site.over.wait(10)
    assert site.thread.is_busy
    assert (site.thread.take(), site.thread.take(), site.thread.is_busy) == ("tasks", None, False)
    site.thread.stop(wait_seconds=10)
    assert site.unwanted == []


def test_the_error_of_a_call_is_raised_where_it_is_taken_and_the_next_call_is_made(site: Site) -> None:
    def fail() -> str:
        raise ConnectionError("gone")

    site.thread.begin(fail)
    assert site.over.wait(10)
    with pytest.raises(ConnectionError):
        site.thread.take()
    site.over.clear()
    site.thread.begin(lambda: "tasks")
    assert site.over.wait(10)
    assert site.thread.take() == "tasks"
    site.thread.stop(wait_seconds=10)


def test_what_was_not_taken_is_unwanted_at_the_end(site: Site) -> None:
    site.thread.begin(lambda: "tasks")
    assert site.over.wait(10)
    site.thread.stop(wait_seconds=10)
    assert site.unwanted == ["tasks"]


def test_what_a_call_brings_after_the_end_is_unwanted(site: Site) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert goes_on.wait(10)
        return "late"

    site.thread.begin(slow)
    assert begun.wait(10)
    site.thread.stop(wait_seconds=0)
    assert site.unwanted == []
    goes_on.set()
    eventually(lambda: site.unwanted == ["late"])
    assert not site.over.is_set()


def test_a_call_that_is_left_is_made_by_whoever_asks_first_and_once(site: Site) -> None:
    assert not site.thread.make_offered()
    site.thread.offer(lambda: "offered")
    assert site.thread.make_offered()
    assert site.over.is_set()
    assert (site.thread.make_offered(), site.thread.begin(lambda: "other")) == (False, False)
    assert site.thread.take() == "offered"
    site.thread.stop(wait_seconds=10)


def test_a_call_that_begins_takes_the_place_of_one_that_is_left(site: Site) -> None:
    site.thread.offer(lambda: "offered")
    assert site.thread.begin(lambda: "begun")
    assert not site.thread.make_offered()
    assert site.over.wait(10)
    assert site.thread.take() == "begun"
    assert not site.thread.make_offered()
    site.thread.stop(wait_seconds=10)


def test_after_the_end_no_call_is_made(site: Site) -> None:
    site.thread.offer(lambda: "offered")
    site.thread.stop(wait_seconds=10)
    assert (site.thread.make_offered(), site.thread.begin(lambda: "other")) == (False, False)
