"""Each verb comes to the same in process, over HTTP, as a coroutine of both, and as a command.

A verb is a value or a method of a facade: one that has no story here fails the last tests.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from queue_core.client.asynchronous.connect import async_queues_of, open_queues_async
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue, Queues
from queue_core.client.schedules import Schedules
from queue_core.clock import SystemClock, after
from queue_core.schedules.schedule import Schedule
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.unit.every_verb import VERBS
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion, ObservationQuery
from queue_core.verbs.criteria import Search
from queue_core.verbs.matching import CHANGES
from tests.support.commands import Commands
from tests.support.servers import IMPATIENT, QUEUE, RunningServer, a_server

NIGHTLY: Final = Schedule("nightly", QUEUE, every=86_400.0)
STATES: Final = {
    TaskState.READY: "ready",
    TaskState.DELAYED: "delayed",
    TaskState.LEASED: "in-flight",
    TaskState.DEAD: "dead",
    TaskState.HELD: "held",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A store that a server serves and this program has open too, with one task in each state.

    Args:
        token: of the lease that the worker `w` has of the task `held`.
    """

    server: RunningServer
    local: LocalQueues
    token: str


@pytest.fixture
def stage() -> Iterator[Stage]:
    with a_server(spec=QueueSpec(QUEUE, max_leases=1)) as server:
        local = LocalQueues(QueueService(server.store))
        queue = local.queue(QUEUE)
        queue.add([NewTask(b"x", name=name, tag=name[0]) for name in ("dead", "held", "ready")])
        queue.add(NewTask(b"x", name="late", tag="l", delay_seconds=3_600))
        queue.release(queue.lease(tags=TagFilter.of("d"), worker="gone"), error="no such image")
        (held,) = queue.lease(tags=TagFilter.of("h"), worker="w")
        local.schedules.declare([NIGHTLY])
        yield Stage(server, local, held.token)


def tasks(queues: Queues) -> dict[str, str]:
    """Return the state of each task, by its name."""
    return {task.shown_name: STATES[task.state] for task in queues.queue(QUEUE).peek().tasks}


BEFORE: Final = {"dead": "dead", "held": "in-flight", "ready": "ready", "late": "delayed"}


def unchanged(queues: Queues) -> object:
    return tasks(queues) == BEFORE


def is_paused(queues: Queues) -> object:
    return queues.queue(QUEUE).stats().paused


def pauses(queues: Queues) -> object:
    return [one.paused_at is not None for one in queues.schedules.list()]


@dataclass(frozen=True, slots=True)
class Story:
    """A call of one verb.

    Args:
        call: makes it of any client; `token` is that of the stage.
        answer: the part of its result that `shown` takes.
        left: what `found` finds in the store afterwards.
        command: the same as a command line; none: there is no such command.
        told: the same part of the command's JSON, which is a list where it is several lines.
    """

    call: Callable[[Any, str], Any]
    answer: object
    shown: Callable[[Any], object] = lambda result: result
    found: Callable[[Queues], object] = unchanged
    left: object = True
    command: str = ""
    told: Callable[[Any], object] = lambda json: json["count"]
    before: Callable[[Queues], object] = lambda _queues: None


def changed(*gone: str, **states: str) -> dict[str, str]:
    """Return the state of each task where some are gone or in another."""
    return {name: state for name, state in {**BEFORE, **states}.items() if name not in gone}


def _matching(action: str, command: str, state: TaskState, left: dict[str, str], **given: Any) -> Story:
    wanted = Search(ANY, frozenset({state}))
    return Story(
        lambda queues, _: queues.queue(QUEUE).change_matching(action, wanted, dry_run=False, **given),
        (1, 1),
        shown=lambda batch: (batch.matched, batch.changed),
        found=tasks,
        left=left,
        command=f"search {QUEUE} --state {STATES[state]} {command} --yes",
        told=lambda json: (json["matched"], json["changed"]),
    )


def _ready_tag(queues: Queues) -> object:
    return [task.tag for task in queues.queue(QUEUE).peek(names=["ready"]).tasks]


STORIES: Final[dict[str, Story]] = {
    "add": Story(
        lambda queues, _: queues.queue(QUEUE).add(NewTask(b"x", name="new")),
        ["new"],
        shown=lambda added: [one.name for one in added],
        found=tasks,
        left=changed(new="ready"),
        command=f"add {QUEUE} x --name new",
        told=lambda json: [json["name"]],
    ),
    "lease": Story(
        lambda queues, _: queues.queue(QUEUE).lease(worker="another"),
        ["ready"],
        shown=lambda leases: [one.name for one in leases],
        found=tasks,
        left=changed(ready="in-flight"),
        command=f"lease {QUEUE} --worker another",
        told=lambda json: [json["name"]],
    ),
    "exchange": Story(
        lambda queues, token: queues.queue(QUEUE).exchange([Deletion(token), Deletion("99.99")], worker="w"),
        (["ready"], ["99.99"]),
        shown=lambda done: ([one.name for one in done[0]], list(done[1])),
        found=tasks,
        left=changed("held", ready="in-flight"),
    ),
    "renew": Story(
        lambda queues, token: queues.queue(QUEUE).renew(token, seconds=60),
        ["held"],
        shown=lambda renewed: [one.name for one in renewed],
        command=f"renew {QUEUE} TOKEN --for 60",
        told=lambda json: [json["name"]],
    ),
    "release": Story(
        lambda queues, token: queues.queue(QUEUE).release(token, charge="uncounted"),
        [("held", False)],
        shown=lambda released: [(one.name, one.died) for one in released],
        found=tasks,
        left=changed(held="ready"),
        command=f"release {QUEUE} TOKEN --uncounted",
        told=lambda json: [(json["name"], json["died"])],
    ),
    "delete": Story(
        lambda queues, token: queues.queue(QUEUE).delete(token),
        [],
        found=tasks,
        left=changed("held"),
        command=f"delete {QUEUE} TOKEN",
        told=lambda json: [] if json["status"] == "deleted" else [json],
    ),
    "wait_ready": Story(lambda queues, _: queues.wait_ready([(QUEUE, ANY)], wait_seconds=0.0), QUEUE),
    "degradations": Story(lambda queues, _: queues.degradations(), []),
    "present_workers": Story(
        lambda queues, _: queues.present_workers(), ["w"], shown=lambda workers: [one.worker for one in workers]
    ),
    "DeleteByName": Story(
        lambda queues, _: queues.queue(QUEUE).delete_by_name(["held", "none"]),
        ["deleted", "unknown"],
        found=tasks,
        left=changed("held"),
        command=f"delete {QUEUE} --named held --named none",
        told=lambda lines: [one["status"] for one in lines],
    ),
    "Purge": Story(
        lambda queues, _: queues.queue(QUEUE).purge(),
        3,
        found=tasks,
        left={"dead": "dead"},
        command=f"purge {QUEUE} --yes",
    ),
    "Pause": Story(
        lambda queues, _: queues.queue(QUEUE).pause(),
        None,
        found=is_paused,
        command=f"pause {QUEUE}",
        told=lambda json: None if json == {"queue": QUEUE, "paused": True} else json,
    ),
    "Resume": Story(
        lambda queues, _: queues.queue(QUEUE).resume(),
        None,
        found=is_paused,
        left=False,
        command=f"resume {QUEUE}",
        told=lambda json: None if json == {"queue": QUEUE, "paused": False} else json,
        before=lambda queues: queues.queue(QUEUE).pause(),
    ),
    "Redrive": Story(
        lambda queues, _: queues.queue(QUEUE).redrive(["dead", "ready"]),
        1,
        found=tasks,
        left=changed(dead="ready"),
        command=f"redrive {QUEUE} --named dead --named ready",
    ),
    "ReadStats": Story(
        lambda queues, _: queues.queue(QUEUE).stats(tags=TagFilter.of("d", "r")),
        (1, 0, 0, 1),
        shown=lambda stats: (stats.ready, stats.delayed, stats.in_flight, stats.dead),
        command=f"stats {QUEUE} --tag d --tag r",
        told=lambda json: tuple(json[name] for name in ("ready", "delayed", "in_flight", "dead")),
    ),
    "ReadTagStats": Story(
        lambda queues, _: queues.queue(QUEUE).tag_stats(),
        [("d", 0), ("h", 0), ("l", 0), ("r", 1)],
        shown=lambda found: sorted((one.tag, one.stats.ready) for one in found),
        command=f"stats {QUEUE} --tags",
        told=lambda json: sorted((one["tag"], one["ready"]) for one in json),
    ),
    "Peek": Story(
        lambda queues, _: queues.queue(QUEUE).peek(states=frozenset({TaskState.DEAD}), names=["dead", "ready"]),
        ["dead"],
        shown=lambda page: [task.shown_name for task in page.tasks],
        command=f"peek {QUEUE} --state dead --named dead --named ready",
        told=lambda json: [task["name"] for task in json["tasks"]],
    ),
    "ReadHistory": Story(
        lambda queues, _: queues.queue(QUEUE).history(names=["dead"]),
        [("dead", "gone")],
        shown=lambda history: [(one.name, one.worker) for one in history.leases],
    ),
    "PutQueue": Story(
        lambda queues, _: queues.put_queue(QueueSpec("new")),
        True,
        found=lambda queues: [spec.name for spec in queues.queues()],
        left=["new", QUEUE],
    ),
    "DeleteQueue": Story(
        lambda queues, _: queues.delete_queue(QUEUE), 4, found=lambda queues: queues.queues(), left=[]
    ),
    "ListQueues": Story(
        lambda queues, _: queues.queues(),
        [(QUEUE, 1)],
        shown=lambda specs: [(spec.name, spec.max_leases) for spec in specs],
        command="queues",
        told=lambda json: [(spec["name"], spec["max_leases"]) for spec in json],
    ),
    "ReadStorage": Story(
        lambda queues, _: queues.storage(),
        None,
        shown=lambda storage: storage.limit_bytes,
        command="queues storage",
        told=lambda json: json["limit_bytes"],
    ),
    "LimitStorage": Story(
        lambda queues, _: queues.set_storage_limit(1_000),
        None,
        found=lambda queues: queues.storage().limit_bytes,
        left=1_000,
        command="queues storage --limit 1000",
        told=lambda json: None if json["limit_bytes"] == 1_000 else json,
    ),
    "RetireWorker": Story(
        lambda queues, _: queues.retire_worker("w", busy="finish"),
        False,
        found=lambda queues: queues.retire_worker("idle"),
    ),
    "ReleaseWorker": Story(
        lambda queues, _: queues.release_worker("w"),
        ["held"],
        shown=lambda released: [one.name for one in released],
        found=lambda queues: tasks(queues)["held"],
        left="dead",
    ),
    "Lead": Story(
        lambda queues, _: queues.lead("planner", "me", seconds=60),
        True,
        found=lambda queues: queues.lead("planner", "you", seconds=60),
        left=False,
    ),
    "Observe": Story(
        lambda queues, _: queues.observe(QUEUE, workers=["w"]),
        (1, ["w"]),
        shown=lambda seen: (seen.stats.ready, [lease.worker for lease in seen.live]),
    ),
    "ObserveMany": Story(
        lambda queues, _: queues.observe_many([ObservationQuery(QUEUE), ObservationQuery("none")]),
        [1, None],
        shown=lambda many: [None if one is None else one.stats.ready for one in many],
    ),
    "Register": Story(
        lambda queues, _: queues.register("notes", "n", {"a": "b"}, seconds=60),
        None,
        found=lambda queues: [(one.name, one.facts) for one in queues.registrations("notes")],
        left=[("n", {"a": "b"})],
    ),
    "ListRegistrations": Story(
        lambda queues, _: queues.registrations("notes"),
        [("n", {"a": "b"})],
        shown=lambda found: [(one.name, one.facts) for one in found],
        before=lambda queues: queues.register("notes", "n", {"a": "b"}, seconds=60),
    ),
    "Keep": Story(
        lambda queues, _: queues.keep("supervisor", "a"),
        None,
        found=lambda queues: queues.kept("supervisor"),
        left="a",
    ),
    "ReadKept": Story(
        lambda queues, _: queues.kept("supervisor"),
        "a",
        before=lambda queues: queues.keep("supervisor", "a"),
    ),
    "ListSchedules": Story(
        lambda queues, _: queues.schedules.list(),
        [("nightly", QUEUE)],
        shown=lambda found: [(one.name, one.queue) for one in found],
        command="schedules",
        told=lambda json: [(one["name"], one["queue"]) for one in json["schedules"]],
    ),
    "DeclareSchedules": Story(
        lambda queues, _: queues.schedules.declare([Schedule("weekly", QUEUE, every=604_800.0)]),
        (("weekly",), ("nightly",)),
        shown=lambda changes: (changes.added, changes.removed),
        found=lambda queues: [one.name for one in queues.schedules.list()],
        left=["weekly"],
    ),
    "AddTicks": Story(
        lambda queues, _: queues.schedules.add_ticks(),
        ((), ["nightly"]),
        shown=lambda report: (report.added, [one.schedule for one in report.coming]),
    ),
    "RunSchedule": Story(
        lambda queues, _: queues.schedules.run("nightly"),
        ("nightly", QUEUE, True),
        shown=lambda tick: (tick.schedule, tick.queue, tick.is_new),
        found=lambda queues: len(tasks(queues)),
        left=5,
        command="schedules run nightly",
        told=lambda json: (json["schedule"], json["queue"], json["is_new"]),
    ),
    "PauseSchedule": Story(
        lambda queues, _: queues.schedules.pause("nightly"),
        ("nightly", True),
        shown=lambda status: (status.name, status.paused_at is not None),
        found=pauses,
        left=[True],
        command="schedules pause nightly",
        told=lambda json: (json["name"], json["paused_at"] is not None),
    ),
    "ResumeSchedule": Story(
        lambda queues, _: queues.schedules.resume("nightly"),
        ("nightly", False),
        shown=lambda status: (status.name, status.paused_at is not None),
        found=pauses,
        left=[False],
        command="schedules resume nightly",
        told=lambda json: (json["name"], json["paused_at"] is not None),
        before=lambda queues: queues.schedules.pause("nightly"),
    ),
    "FindTasks": Story(
        lambda queues, _: queues.queue(QUEUE).search(Search(min_leases=1)),
        ["dead", "held"],
        shown=lambda page: [task.shown_name for task in page.tasks],
        command=f"search {QUEUE} --leases 1",
        told=lambda json: [task["name"] for task in json["tasks"]],
    ),
    "ChangeMatching redrive": _matching("redrive", "--redrive", TaskState.DEAD, changed(dead="ready")),
    "ChangeMatching release": _matching("release", "--release", TaskState.LEASED, changed(held="ready")),
    "ChangeMatching postpone": _matching(
        "postpone", "--postpone 0", TaskState.DELAYED, changed(late="ready"), eta=after(SystemClock().now(), -1.0)
    ),
    "ChangeMatching delete": _matching("delete", "--delete", TaskState.READY, changed("ready")),
    "ChangeMatching retag": Story(
        lambda queues, _: queues.queue(QUEUE).change_matching(
            "retag", Search(TagFilter.of("r")), dry_run=False, tag="new"
        ),
        (1, 1),
        shown=lambda batch: (batch.matched, batch.changed),
        found=_ready_tag,
        left=["new"],
        command=f"search {QUEUE} --tag r --retag new --yes",
        told=lambda json: (json["matched"], json["changed"]),
    ),
}
COMMANDS: Final = [name for name, story in STORIES.items() if story.command]


def _local(stage: Stage, story: Story) -> object:
    return story.shown(story.call(stage.local, stage.token))


def _http(stage: Stage, story: Story) -> object:
    queues = stage.server.queues()
    try:
        return story.shown(story.call(queues, stage.token))
    finally:
        queues.close()


def _async_local(stage: Stage, story: Story) -> object:
    async def run() -> object:
        return story.shown(await story.call(async_queues_of(stage.local), stage.token))

    return asyncio.run(run())


def _async_http(stage: Stage, story: Story) -> object:
    async def run() -> object:
        async with await open_queues_async(stage.server.url, retries=IMPATIENT) as queues:
            return story.shown(await story.call(queues, stage.token))

    return asyncio.run(run())


DOORS: Final = {"local": _local, "http": _http, "async local": _async_local, "async http": _async_http}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("verb", STORIES)
def test_a_verb_comes_to_the_same_by_each_client(stage: Stage, verb: str, door: str) -> None:
    story = STORIES[verb]
    story.before(stage.local)
    assert DOORS[door](stage, story) == story.answer
    assert story.found(stage.local) == story.left


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_verb_comes_to_the_same_as_a_command(
    stage: Stage, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    story = STORIES[verb]
    story.before(stage.local)
    words = story.command.replace("TOKEN", stage.token).split()
    told = Commands(tmp_path, capsys)(*words, "--json", "--url", stage.server.url)
    assert (told.code, told.err) == (0, "")
    assert story.told(told.lines if len(told.lines) > 1 else told.lines[0]) == story.answer
    assert story.found(stage.local) == story.left


def test_each_verb_that_is_a_value_has_a_story() -> None:
    values = {kind.__name__ for kind in VERBS} | {f"ChangeMatching {action}" for action in CHANGES}
    assert values == {name for name in STORIES if name[0].isupper()}


class _Recorder:
    """A client that notes which methods are called."""

    def __init__(self, called: set[str]) -> None:
        self.called = called
        self.schedules = self if called is not None else None

    def queue(self, _name: str) -> "_Recorder":
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_given: self.called.add(name)


def test_each_method_of_a_client_has_a_story() -> None:
    called: set[str] = set()
    for story in STORIES.values():
        story.call(_Recorder(called), "1.1")
    public = {
        name
        for facade in (Queue, Queues, Schedules)
        for name, _ in inspect.getmembers(facade, inspect.isfunction)
        if not name.startswith("_")
    }
    assert called == public - {"queue", "close"}
