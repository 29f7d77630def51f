"""Whatever strangers put into tags, workers' names and reasons: a terminal that is shown it obeys none of it."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.process.terminal import clean, clean_json, clean_lines
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import CommandResult, Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 5}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
"""
EVIL = "a\x1b]0;owned\x07\x1b[2J\nerror: spoofed\r\x9b31m\x7f\u202egnp.exe\u2066\u2028z"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
IN_THE_STORE = (
    ("peek", "thumbs"),
    ("peek", "thumbs", "--state", "dead"),
    ("stats", "thumbs", "--tags"),
    ("stats", "thumbs", "--tag", EVIL),
    ("lease", "thumbs", "--worker", EVIL),
    ("add", "thumbs", "text", "--tag", EVIL),
    ("add", "thumbs", "text", "--name", EVIL),
    ("queues",),
)
OF_THE_FLEET = (
    ("pools",),
    ("workers",),
    ("why", "resize"),
    ("why", EVIL),
    ("why-died",),
    ("why-died", "resize"),
    ("why-died", EVIL),
    ("top", "--once"),
    (EVIL,),
)


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    (towline.folder / ".towline").mkdir()
    return towline


def fill(url: str) -> None:
    """Tasks whose every text is evil: ready, leased and dead."""
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs", max_leases=5))
    queue = queues.queue("thumbs")
    queue.add([NewTask(EVIL.encode(), tag=EVIL) for _ in range(3)])
    first, _ = queue.lease(2, worker=EVIL)
    queue.release([first.token], dead_reason=EVIL)
    queues.close()


def check(told: CommandResult) -> None:
    assert OBEYED.findall(told.out + told.err) == []
    assert not [line for line in (told.out + told.err).splitlines() if line.startswith("error: spoofed")]


@pytest.mark.parametrize("arguments", IN_THE_STORE, ids=lambda arguments: " ".join(arguments)[:20])
def test_a_command_shows_it_written_out(towline: Commands, arguments: tuple[str, ...]) -> None:
    fill(f"sqlite:///{towline.folder}/queue.db")
    check(towline(*arguments))
    told = towline(*arguments, "--json")
    check(told)
    if told.code == 0 and arguments[0] == "peek":
        tasks = told.json["tasks"]  # type: ignore[call-overload,index]
        assert {task["tag"] for task in tasks} == {EVIL}  # a program reads what was sent
        assert {task["payload"] for task in tasks} == {EVIL}


@pytest.mark.parametrize("arguments", OF_THE_FLEET, ids=lambda arguments: " ".join(arguments)[:20])
def test_a_command_about_the_fleet_shows_it_written_out(towline: Commands, arguments: tuple[str, ...]) -> None:
    files = StateDir(towline.folder / ".towline")
    at = SystemMonotonicClock().wall_seconds()
    decision = {"at": at, "pool": "resize", "current": 1, "target": 2, "rule": EVIL, "why": EVIL}
    decision |= {"limited_by": [EVIL], "limits": [EVIL], "notes": [EVIL], "would_be_without_guards": 3}
    worker = {"worker": EVIL, "pool": "resize", "state": EVIL, "pid": 1, "since": at, "spawned_at": at}
    pool = {"current": 1, "target": 2, "decision": decision, "settings": {"slo": 30}}
    files.write_snapshot({"shown_at": at, "phase": EVIL, "url": EVIL, "pools": {"resize": pool}, "workers": [worker]})
    files.decisions.append(decision)
    death = {"at": at, "worker": "resize-aaa", "pool": EVIL, "cause": EVIL, "detail": EVIL, "lived_seconds": 42.0}
    held = {"queue": "thumbs", "task": "t", "tag": EVIL, "held_seconds": 0.5, "lease_number": 1, "fate": EVIL}
    files.deaths.append(death | {"held": [held], "held_total": 1, "last_lines": [EVIL]})
    check(towline(*arguments))
    check(towline(*arguments, "--json"))


def test_events_are_shown_written_out(towline: Commands) -> None:
    server = ServerThread(MemoryStore(), ServeOptions(port=0))
    url = server.start()
    try:
        fill(url)
        for arguments in (("events",), ("events", "--json"), ("queues", "--json"), ("peek", "thumbs")):
            told = towline(*arguments, "--url", url)
            assert told.code == 0
            check(told)
    finally:
        server.stop()


@given(st.text())
def test_a_text_made_harmless_is_obeyed_by_no_terminal(text: str) -> None:
    assert OBEYED.search(clean(text)) is None
    assert "\n" not in clean(text)
    assert OBEYED.search(clean_lines(text)) is None
    assert clean_lines(text).count("\n") == text.count("\n")
    clean(text).encode()  # no half of a character is left
    written = clean_json(json.dumps(text, ensure_ascii=False))
    assert OBEYED.search(written) is None
    assert json.loads(written) == text


@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))))
def test_a_text_that_is_harmless_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_every_line_of_the_commands_is_printed_in_one_place() -> None:
    """`click.echo` itself is for what is all ours."""
    root = Path(__file__).resolve().parents[3]
    modules = ("events", "look", "health", "why", "why_died", "fleet", "plan", "doctor", "top")
    found = [path for part in ("queue_core", "orchestrator") for path in (root / part / "cli").glob("*.py")]
    assert [path.name for path in found if path.stem in modules and "click.echo" in path.read_text()] == []
