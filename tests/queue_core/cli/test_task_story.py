"""The story of a task, also after it is done: `towline why TASK`, `towline events --task`, `towline peek`."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest

from orchestrator.state.directory import StateDir
from queue_core.admission import TagLimits
from queue_core.attempts.attempt import Failure
from queue_core.cli.task_story import find_stories, merged_events, story_lines
from queue_core.client.connect import open_queues
from queue_core.client.local_calls import LocalQueue
from queue_core.client.queue import Queue
from queue_core.clock import ManualClock
from queue_core.task import NewTask, Progress, QueueSpec
from queue_core.testing import MemoryQueues
from queue_core.verbs import Page, Renewal
from tests.support.commands import Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 2}
  mails: {}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
"""
BAD_WIDTH = Failure("raised", "ValueError", "bad width", "tasks.py:14", "host-1")
PAYLOAD = b"the payload that nobody may see"


@contextmanager
def opened(towline: Commands, name: str = "thumbs") -> Iterator[Queue]:
    with closing(open_queues(f"sqlite:///{towline.folder}/queue.db")) as queues:
        queues.put_queue(QueueSpec("mails"))
        queues.put_queue(QueueSpec("thumbs", max_leases=2, retry_min_seconds=0.0))
        yield queues.queue(name)


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


def fail(queue: Queue, worker: str = "w-1") -> None:
    (held,) = queue.lease(worker=worker)
    queue.release(held, delay_seconds=0.0, error=BAD_WIDTH)


class FinishedMeanwhile(MemoryQueues):
    """Queues whose leased task is done between the two reads of its story."""

    def queue(self, name: str) -> LocalQueue:
        opened = super().queue(name)
        (lease,) = opened.lease()
        peek = opened.peek

        class Finishing:
            history = staticmethod(opened.history)

            def peek(self, **asked: Any) -> Page:
                page = peek(**asked)
                opened.delete(lease)
                return page

        return cast("LocalQueue", Finishing())


def test_a_task_that_is_done_while_its_story_is_read_is_done() -> None:
    queues = FinishedMeanwhile(QueueSpec("thumbs"))
    MemoryQueues.queue(queues, "thumbs").add(NewTask(PAYLOAD, name="cat"))
    (story,) = find_stories(queues, "thumbs/cat")
    assert (story.state, [lease.outcome for lease in story.leases]) == ("done", ["done"])


def test_a_dead_task_is_told_with_each_of_its_attempts(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(PAYLOAD, name="cat", tag="resize", headers={"request-id": "r-7"}))
        fail(queue)
        fail(queue, "w-2")
    told = towline("why", "cat")
    assert told.code == 0
    head, reason, *rest = told.out.splitlines()
    assert head.startswith("thumbs/cat, tag resize: dead for")
    assert reason == "  reason: ValueError: bad width (tasks.py:14)"
    assert "  headers: request-id=r-7" in rest
    firsts = [line.split()[:3] for line in rest if line.startswith("    ")]
    assert [(words[0], words[-1]) for words in firsts if words[0].endswith(".")] == [("1.", "w-1"), ("2.", "w-2")]
    assert rest[-1].endswith("`towline redrive thumbs --named cat`")
    assert "payload" not in told.out.replace("--payload", "")


def test_a_finished_task_is_told_from_its_queues_history(towline: Commands) -> None:
    with opened(towline) as queue:
        (added,) = queue.add(NewTask(PAYLOAD))
        fail(queue)
        (held,) = queue.lease(worker="w-2")
        queue.delete(held)
    told = towline("why", added.name)
    assert told.out.splitlines()[0].startswith(f"thumbs/{added.name}: done")
    assert "ValueError: bad width (tasks.py:14)" in told.out
    record = towline("why", f"thumbs/{added.name}", "--json").json
    assert isinstance(record, dict)
    assert (record["state"], record["task"]) == ("done", None)
    assert [(one["outcome"], one["worker"]) for one in record["leases"]] == [("released", "w-1"), ("done", "w-2")]


def test_a_task_that_was_deleted_while_it_ran_is_told_as_deleted_and_by_whom(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(PAYLOAD, name="cat"))
        queue.lease(worker="w-2")
    assert towline("delete", "thumbs", "--named", "cat").code == 0
    told = towline("why", "cat")
    assert told.out.startswith("thumbs/cat: deleted by process ")
    assert "while it was running on w-2" in told.out
    assert "done" not in told.out
    record = towline("why", "thumbs/cat", "--json").json
    assert isinstance(record, dict)
    assert (record["state"], [one["outcome"] for one in record["leases"]]) == ("deleted", ["deleted"])
    deleted = towline("events", "--task", "cat", "--json").lines[-1]
    assert isinstance(deleted, dict)
    assert deleted["event"] == "task.deleted"
    assert deleted["reason"].startswith("deleted by process ")


def test_a_task_in_flight_is_told_with_its_progress(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(b"x", name="film"))
        (held,) = queue.lease(worker="w-1")
        queue.renew(Renewal(held.token, 60.0, Progress(0.4, "page 12 of 30"), b"12"))
    lines = towline("why", "film").out.splitlines()
    assert "held by w-1" in lines[0]
    assert "  progress: 40%: page 12 of 30" in lines
    assert "  checkpoint: 2 bytes, for its next lease" in lines
    (task,) = towline("peek", "thumbs", "--json").json["tasks"]  # type: ignore[call-overload,index]
    assert (task["progress"], task["checkpoint_bytes"]) == ({"fraction": 0.4, "text": "page 12 of 30"}, 2)


@pytest.mark.parametrize(
    ("delay", "said"), [pytest.param(0.0, "ready, waits", id="ready"), pytest.param(60.0, "its time, in", id="delayed")]
)
def test_a_task_that_waits_says_for_what(towline: Commands, delay: float, said: str) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(b"x", name="later", delay_seconds=delay))
    assert said in towline("why", "later").out


def test_a_name_in_two_queues_tells_of_both(towline: Commands) -> None:
    for name in ("thumbs", "mails"):
        with opened(towline, name) as queue:
            queue.add(NewTask(b"x", name="same"))
    heads = [line for line in towline("why", "same").out.splitlines() if line and not line.startswith(" ")]
    assert sorted(head.partition(":")[0] for head in heads) == ["mails/same", "thumbs/same"]
    assert towline("why", "mails/same").out.startswith("mails/same:")


def test_a_task_with_a_pools_name_is_told_when_asked_for(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(b"x", name="resize"))
    assert "no supervisor has run here" in towline("why", "resize").err
    assert towline("why", "resize", "--task").out.startswith("thumbs/resize: ready")


def test_a_name_that_is_nothing_says_what_to_do(towline: Commands) -> None:
    with opened(towline):
        told = towline("why", "resiz")
    assert told.code == 66
    assert "there is no pool, no queue and no task 'resiz'" in told.err
    assert "did you mean" in told.err


def test_the_events_of_a_task_are_known_without_a_server(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(b"x", name="cat", tag="resize"))
        fail(queue)
        (held,) = queue.lease(worker="w-2")
        queue.delete(held)
    events = towline("events", "--task", "cat", "--json").lines
    assert [event["event"] for event in events] == [  # type: ignore[index]
        "task.added",
        "task.leased",
        "lease.released",
        "task.leased",
        "task.deleted",
    ]
    assert events[2]["reason"] == "ValueError: bad width (tasks.py:14)"  # type: ignore[index]


def test_the_events_of_a_task_are_each_told_once(towline: Commands) -> None:
    """A server remembers events that the store knows as well."""
    stored = [
        {"event": "task.added", "at": 1, "queue": "q", "task": "t"},
        {"event": "task.leased", "at": 2, "queue": "q", "task": "t", "lease_number": 1},
    ]
    remembered = [
        {"event": "task.leased", "at": 2, "queue": "q", "task": "t", "lease_number": 1, "waited_seconds": 0.5},
        {"event": "lease.renewed", "at": 3, "queue": "q", "task": "t", "lease_number": 1},
    ]
    assert merged_events(remembered, stored) == [stored[0], *remembered]


def test_peek_shows_how_the_last_attempt_ended(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(b"x", name="cat"))
        fail(queue)
    assert "ValueError: bad width (tasks.py:14)" in towline("peek", "thumbs").out
    (task,) = towline("peek", "thumbs", "--json").json["tasks"]  # type: ignore[call-overload,index]
    assert [(one["outcome"], one["place"], one["host"]) for one in task["attempts"]] == [
        ("raised", "tasks.py:14", "host-1")
    ]


def test_an_error_given_by_hand_is_kept(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(b"x", name="cat"))
    lease = towline("lease", "thumbs", "--json").json
    assert towline("release", "thumbs", lease["token"], "--error", "the disk is full").code == 0  # type: ignore[call-overload,index]
    assert "the disk is full" in towline("why", "cat").out


def test_of_a_lease_that_expired_it_says_what_its_workers_certificate_does(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add(NewTask(PAYLOAD, name="cat"))
        queue.lease(worker="resize-aaa", seconds=0.0)
        queue.lease(worker="resize-bbb", seconds=0.0)
        assert queue.stats().dead == 1
    (towline.folder / ".towline").mkdir()
    hung = {"worker": "resize-bbb", "pool": "resize", "cause": "unresponsive", "detail": "it hung at tasks.py:27"}
    StateDir(towline.folder / ".towline").deaths.append({"at": 0.0} | hung)
    told = towline("why", "cat").out
    assert "its worker: it hung at tasks.py:27; see `towline why-died resize-bbb`" in told
    assert "why-died resize-aaa" not in told
    assert "fix the error above" in told


def test_leases_after_a_redrive_are_numbered_on(towline: Commands) -> None:
    with opened(towline) as queue:
        queue.add([NewTask(b"x", name="cat")])
        fail(queue)
        fail(queue)
        queue.redrive(names=["cat"])
        fail(queue)
    numbers = [line.split()[0] for line in towline("why", "cat", "--task").out.splitlines() if "raised after" in line]
    assert numbers == ["1.", "2.", "3."]


def test_a_finished_task_says_how_long_it_could_not_be_leased(towline: Commands) -> None:
    clock = ManualClock()
    with closing(MemoryQueues(clock=clock)) as queues:
        queues.put_queue(QueueSpec("thumbs", per_tag=TagLimits(max_in_flight=1), history_keep=10))
        queue = queues.queue("thumbs")
        queue.add([NewTask(b"x", name="first", tag="t"), NewTask(b"x", name="second", tag="t")])
        (first,) = queue.lease()
        clock.advance(10.0)
        queue.delete([first])
        (second,) = queue.lease()
        queue.delete([second])
        (story,) = find_stories(queues, "second")
        (line, *_) = story_lines(story, now=clock.now())
    assert line.endswith("; it started 10 s after it was added, waited 0 s for a worker and took 0 s")
