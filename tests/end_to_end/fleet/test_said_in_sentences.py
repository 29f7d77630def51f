"""What keeps work from being done is said by every command that shows it, in a sentence with its place and its cure.

A real `towline up` and real workers; each test waits until the supervisor knows, then reads what a person reads.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import Commands, program_environment
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {max_leases: 5}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: SLO, workers: {min: 0, max: 2}}
"""
TASKS = """\
import pathlib
import time
from queue_core import App

app = App("towline.yaml")


@app.task(queue="thumbs")
def resize(task):
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
"""
SHOWING = (("pools",), ("workers",), ("why", "resize"), ("top", "--once"), ("health",), ("doctor",), ("plan",))
"""The commands that show a pool."""


@contextmanager
def up(towline: Commands, *, slo: str = "60s") -> Iterator[Path]:
    """Run `towline up` in a folder; yield the file of its log."""
    folder = towline.folder
    (folder / "towline.yaml").write_text(SETTINGS.replace("SLO", slo))
    (folder / "tasks.py").write_text(TASKS)
    log = folder / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=folder,
            env=program_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        eventually(lambda: towline("health").code == 0)
        yield log
    finally:
        (folder / "go").touch()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def told(towline: Commands, *arguments: str) -> str:
    """Everything that a command says, on both streams."""
    done = towline(*arguments)
    assert done.code in (0, 1), done
    return done.out + done.err


def said_by_all(towline: Commands, sentence: str) -> None:
    """Every command that shows the pool says the sentence, as soon as the supervisor knows."""
    for command in SHOWING:
        assert eventually(lambda command=command: sentence in told(towline, *command)), command  # type: ignore[misc]


def sentences(log: Path, event: str) -> list[str]:
    entries = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [entry["sentence"] for entry in entries if entry["event"] == event]


def test_tags_that_no_pool_works_on_are_named_by_every_command_and_once_by_the_log(towline: Commands) -> None:
    typed = "1 task has the tag `rezise`, and no pool works on that tag: did you mean `resize`?"
    bare = "1 task has no tag, and no pool works on tasks without one: pool resize works on `resize`"
    with up(towline) as log:
        assert typed in told(towline, "add", "thumbs", "cat.jpg", "--tag", "rezise")
        assert bare in told(towline, "add", "thumbs", "cat.jpg")
        eventually(lambda: len(sentences(log, "tasks.unserved")) == 2)
        assert sorted(sentences(log, "tasks.unserved")) == sorted([typed, bare])
        for sentence in (typed, bare):
            said_by_all(towline, f"thumbs: {sentence}")
            assert sentence in told(towline, "why", "thumbs")
        told(towline, "purge", "thumbs", "--tag", "rezise", "--yes")
        eventually(
            lambda: sentences(log, "tasks.served") == ["no task with the tag `rezise` waits for a pool any more"]
        )
        assert typed not in told(towline, "pools")
        assert len(sentences(log, "tasks.unserved")) == 2


def test_a_late_task_and_the_bound_that_keeps_it_are_said_by_every_command(towline: Commands) -> None:
    with up(towline, slo="5s") as log:
        told(towline, "add", "thumbs", "a", "b", "c", "--tag", "resize")
        cause = "past its SLO of 5 s: all 2 workers are busy and max is 2"
        said_by_all(towline, cause)
        pools = json.loads(towline("pools", "--json").out)["pools"]["resize"]
        assert (pools["decision"]["rule"], pools["decision"]["limited_by"]) == ("at_max", ["max"])
        assert cause in sentences(log, "pool.troubled")[-1]
        before = len(sentences(log, "pool.troubled"))
        (towline.folder / "go").touch()
        eventually(lambda: len(sentences(log, "pool.relieved")) == 1, seconds=60)
        assert "no task waits longer than its SLO of 5 s" in sentences(log, "pool.relieved")[0]
        assert len(sentences(log, "pool.troubled")) == before
        assert "past its SLO" not in told(towline, "pools")


@pytest.mark.parametrize(
    ("order", "sentence", "way_back"),
    [
        pytest.param(
            ("pause", "thumbs"),
            "the queue thumbs is paused, so no task of it is leased: `towline resume thumbs`",
            ("resume", "thumbs"),
            id="the queue is paused",
        ),
        pytest.param(
            ("pause", "--pool", "resize"),
            "changes of size are paused",
            ("resume", "--pool", "resize"),
            id="the pool is paused",
        ),
        pytest.param(
            ("scale", "resize", "1", "--for", "1h"),
            "scaled to 1 by hand, for ",
            ("scale", "resize", "--reset"),
            id="the pool's size is set by hand",
        ),
        pytest.param(
            ("drain",),
            "this host is drained: no worker is started until `towline undrain`",
            ("undrain",),
            id="the host is drained",
        ),
    ],
)
def test_a_state_that_somebody_ordered_is_said_by_every_command(
    towline: Commands, order: tuple[str, ...], sentence: str, way_back: tuple[str, ...]
) -> None:
    with up(towline):
        told(towline, *order)
        said_by_all(towline, sentence)
        told(towline, *way_back)
        for command in SHOWING:
            eventually(lambda command=command: sentence not in told(towline, *command))  # type: ignore[misc]
