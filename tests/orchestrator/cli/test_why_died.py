"""`towline why-died`: a certificate in words, what became of the tasks since, and how a worker is named."""

from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.fleet.exits import TRACEBACK_OF
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 5}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
"""
MIB = 1 << 20


def a_held(task: str, **more: object) -> dict[str, object]:
    known = {"queue": "thumbs", "task": task, "tag": None, "held_seconds": 0.5, "lease_number": 1, "fate": "given back"}
    return known | more


def a_death(worker: str, *held: dict[str, object], **more: object) -> dict[str, object]:
    told: dict[str, object] = {"at": SystemMonotonicClock().wall_seconds() - 60, "worker": worker, "pool": "resize"}
    told |= {"cause": "signalled", "detail": "ended by SIGKILL", "lived_seconds": 42.0, "held": list(held)}
    return told | {"held_total": len(held)} | more


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    (towline.folder / ".towline").mkdir()
    return towline


def bury(towline: Commands, *deaths: dict[str, object]) -> None:
    for death in deaths:
        StateDir(towline.folder / ".towline").deaths.append(death)


def test_without_a_worker_the_latest_deaths_are_listed_newest_first(towline: Commands) -> None:
    bury(towline, a_death("resize-aaa"), a_death("other-bbb", a_held("t1"), pool="other", cause="out of memory"))
    told = towline("why-died")
    assert told.code == 0
    first, second = told.out.splitlines()
    assert first.split(" ago ")[1].split()[:2] == ["other-bbb", "out"]
    assert first.endswith("holding 1 task")
    assert second.endswith("resize-aaa  signalled: ended by SIGKILL")
    (only,) = towline("why-died", "--pool", "resize").out.splitlines()
    assert only.split(" ago ")[1] == second.split(" ago ")[1]
    assert len(towline("why-died", "--last", "1", "--json").json["deaths"]) == 1  # type: ignore[call-overload,index]


def test_workers_that_finished_when_asked_are_listed_only_on_request(towline: Commands) -> None:
    asked = a_death("resize-asked", cause="drained", detail="asked to finish: its settings changed")
    recycled = a_death("resize-recycled", cause="finished", detail="finished: 7 tasks done, at most 7")
    bury(
        towline,
        a_death("resize-killed"),
        a_death("resize-amid", a_held("t1"), cause="finished", detail="exit code 0, in the middle of its work"),
        a_death("resize-early", cause="finished", detail="finished", failed_start=True),
        asked,
        recycled,
    )

    def listed(*options: str) -> list[str]:
        return [line.split(" ago ")[1].split()[0] for line in towline("why-died", *options).out.splitlines()]

    assert listed() == ["resize-early", "resize-amid", "resize-killed"]
    assert listed("--last", "1") == ["resize-early"]
    assert listed("--all", "--last", "2") == ["resize-recycled", "resize-asked"]
    assert "no deaths" not in towline("why-died", "--all").err


def test_without_deaths_it_says_so(towline: Commands) -> None:
    told = towline("why-died")
    assert (told.code, told.out) == (0, "")
    assert "no deaths" in told.err


def test_a_certificate_tells_what_happened_what_it_held_what_became_of_it_and_what_to_do(towline: Commands) -> None:
    queues = open_queues(f"sqlite:///{towline.folder}/queue.db")
    queues.put_queue(QueueSpec("thumbs", max_leases=5))
    queue = queues.queue("thumbs")
    queue.add([NewTask(name="poison"), NewTask(name="again"), NewTask(name="waits")])
    poison, _ = queue.lease(2, worker="resize-next")
    queue.release(poison, dead_reason="its worker died 3 times while it ran")
    queues.close()
    bury(
        towline,
        a_death(
            "resize-7f3k2q",
            a_held("poison", fate="held back", deaths=2, lease_number=2),
            a_held("again"),
            a_held("waits"),
            a_held("gone", tag="big"),
            cause="out of memory",
            detail="the kernel ended it: out of memory",
            memory_peak_bytes=500 * MIB,
            memory_limit_bytes=512 * MIB,
            last_lines=["Reading 9 GB", "Killed"],
        ),
    )
    told = towline("why-died", "resize-7f")
    assert told.code == 0
    assert "resize-7f3k2q of pool resize died 60 s ago after 42 s" in told.out
    assert "cause: out of memory: the kernel ended it" in told.out
    assert "memory: 500MiB at its peak, limit 512MiB" in told.out
    assert "held: 4 tasks" in told.out
    lines = {line.split(":")[0].split()[0]: line for line in told.out.splitlines() if line.startswith("    thumbs/")}
    assert (
        "suspect (the 2nd death while it was held), will run alone; dead now: its worker died 3"
        in (lines["thumbs/poison"])
    )
    assert "given back; leased now by resize-next (lease 1)" in lines["thumbs/again"]
    assert "given back; ready now" in lines["thumbs/waits"]
    assert "[big] for 0.50 s, attempt 1: given back; gone since: done, or deleted" in lines["thumbs/gone"]
    assert "    Reading 9 GB\n    Killed" in told.out
    assert "towline redrive thumbs --named poison" in told.out
    shown = cast("dict[str, object]", towline("why-died", "resize-7f3k2q", "--json").json)
    tasks = cast("list[dict[str, object]]", shown["tasks_now"])
    assert {task["name"]: task["state"] for task in tasks} == {"poison": "dead", "again": "in_flight", "waits": "ready"}
    assert shown["not_looked_up"] is None


def test_of_a_forked_worker_it_says_which_memory_was_its_own(towline: Commands) -> None:
    memory = {"memory_peak_bytes": 310 * MIB, "memory_own_bytes": 60 * MIB, "memory_limit_bytes": 512 * MIB}
    bury(towline, a_death("resize-aaa", cause="out of memory", forked=True, **memory))
    told = towline("why-died", "resize-aaa").out
    assert "310MiB at its peak, 60MiB of it its own and the rest shared with its template, limit 512MiB" in told
    assert "next: it was forked: only its own part is free again" in told


def test_without_the_queue_the_certificate_is_shown_all_the_same(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("sqlite:///queue.db", "'memory:'"))
    bury(towline, a_death("resize-aaa", a_held("poison", fate="dead", why="its worker died 5 times")))
    told = towline("why-died", "resize-aaa")
    assert told.code == 0
    assert "dead: its worker died 5 times" in told.out
    assert "what has become of them since is not known" in told.out


@pytest.mark.parametrize(
    ("more", "told"),
    [
        pytest.param({}, "journalctl -k", id="killed"),
        pytest.param({"detail": "ended by SIGSEGV"}, "SIGSEGV comes from native code", id="a fault"),
        pytest.param({"cause": "crashed", "detail": "exit code 1"}, "its last lines", id="crashed"),
        pytest.param({"cause": "crashed", "failed_start": True}, "its start failed", id="crashed at its start"),
        pytest.param({"cause": "misconfigured"}, "towline check", id="misconfigured"),
        pytest.param({"cause": "queue lost"}, "towline health", id="no queue"),
        pytest.param({"cause": "hung", "detail": "exit code 80: resize hung"}, "larger `max_lease`", id="hung"),
        pytest.param({"cause": "unresponsive", "detail": "it was stopped (SIGSTOP)"}, "stopped its proc", id="stopped"),
        pytest.param(
            {"cause": "unresponsive", "detail": "it hung at a.py:1, a call that kept the interpreter lock"},
            "a program of its own",
            id="it kept the lock",
        ),
        pytest.param({"cause": "unresponsive", "detail": "resize hung at a.py:1"}, "`timeout=`", id="in a handler"),
        pytest.param({"cause": "unresponsive", "detail": "nobody knows why"}, "kill -s RTMIN+1", id="silent"),
        pytest.param({"cause": "crashed", "code": 70}, "towline logs resize-aaa", id="an error of ours"),
        pytest.param({"cause": "crashed", "code": 3, "held": [a_held("t")]}, "what ends the process", id="os._exit"),
        pytest.param({"cause": "finished", "held": [a_held("t")]}, "what ends the process", id="os._exit of 0"),
        pytest.param(
            {"cause": "crashed", "code": 1, "detail": f"exit code 1{TRACEBACK_OF}E (a.py:8)", "held": [a_held("t")]},
            "give the lease back",
            id="a program of one's own that an exception ended",
        ),
        pytest.param({"cause": "crashed", "failed_start": True}, "`towline work tasks:app`", id="the start by hand"),
        pytest.param({"cause": "overdue"}, "grace", id="overdue"),
        pytest.param({"cause": "drained"}, "nothing to do", id="drained"),
        pytest.param({"cause": "drained", "held": [a_held("long")]}, "raise grace", id="drained before it was done"),
        pytest.param({"held_unknown": True}, "not known: the queue was unavailable", id="the queue was away"),
        pytest.param(
            {"held": "?", "last_lines": 7, "lived_seconds": "long", "at": None}, "held: nothing", id="nonsense"
        ),
    ],
)
def test_every_cause_has_its_advice(towline: Commands, more: dict[str, object], told: str) -> None:
    bury(towline, a_death("resize-aaa", **more))
    answer = towline("why-died", "resize-aaa")
    assert answer.code == 0
    assert told in answer.out


def test_a_fault_is_shown_with_the_stack_once_and_log_entries_as_people_read_them(towline: Commands) -> None:
    stack = ['  File "/srv/tasks.py", line 14 in resize', '  File "/srv/queue_core/worker/main.py", line 71 in run']
    entry = '{"timestamp":"2026-11-26T01:20:59Z","level":"info","event":"worker.started","worker":"resize-aaa"}'
    death = a_death("resize-aaa", detail="ended by SIGSEGV at tasks.py:14 in resize", stack=stack)
    bury(towline, death | {"last_lines": [entry, "Fatal Python error: Segmentation fault", *stack]})
    told = towline("why-died", "resize-aaa").out
    assert told.count("line 14 in resize") == 1
    assert "... and 1 call of the worker itself" in told
    assert "    01:20:59 [info] worker.started\n" in told
    assert "SIGSEGV comes from the native code that is called there" in told


def test_a_name_that_is_not_on_record_is_exit_code_66(towline: Commands) -> None:
    bury(towline, a_death("resize-aaa"), a_death("resize-aab"))
    unknown = towline("why-died", "resise-aaa")
    assert unknown.code == 66
    assert "did you mean 'resize-aaa'" in unknown.err
    several = towline("why-died", "resize-a")
    assert several.code == 66
    assert "2 dead workers' names begin with 'resize-a': resize-aab, resize-aaa" in several.err


def test_a_worker_that_lives_has_not_died(towline: Commands) -> None:
    files = StateDir(towline.folder / ".towline")
    files.write_snapshot({"shown_at": 0.0, "pools": {}, "workers": [{"worker": "resize-ccc"}]})
    told = towline("why-died", "resize-ccc")
    assert told.code == 66
    assert "has not died" in told.err
