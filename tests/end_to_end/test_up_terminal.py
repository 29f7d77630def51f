"""`towline up`, `supervise` and `work` in a real pseudo-terminal: what a person reads there, and what ends them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.screens.terminal import Size
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually
from tests.support.terminal import LONG_SECONDS, TowlineOnTerminal, on_terminal

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:towline.sock"}
queues:
  thumbs: {max_leases: 3, retry: {min: 10m, max: 10m}}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 30s, workers: {min: 1, max: 2}, grace: 30s}
"""
TASKS = """\
import json, os, pathlib, time
from queue_core import App

app = App("towline.yaml")


@app.task(queue="thumbs", tag="resize")
def resize(task):
    print("resizing", task.text)
    if task.text == "broken":
        json.loads("not JSON")
    if task.text == "deadly" and not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), 9)
    if task.text == "slow":
        while True:
            time.sleep(0.1)
    if task.text == "flood":
        print("\\n".join(f"line {number} of many, which nobody can read" for number in range(20_000)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def add(folder: Path, *payloads: str) -> None:
    assert run_program("add", "thumbs", *payloads, "--tag", "resize", folder=folder).code == 0


def check_width(running: TowlineOnTerminal) -> None:
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*m", "", running.terminal.raw))
    longest = running.terminal.size.columns
    # A word that is longer than a line stays whole: commands and paths are copied.
    assert [line for line in lines if len(line) > longest and " " in line.strip()] == []


def test_what_happens_is_read_in_sentences(folder: Path) -> None:
    with on_terminal("up", folder=folder) as up:
        up.await_text(r"^Workers' output appears here and in \.towline/workers; Ctrl-C lets them")
        assert re.search(r"^Towline \S+   towline\.yaml   sqlite:///queue\.db", up.text, re.MULTILINE)
        assert re.search(r"^resize +thumbs +resize +1 +1 to 2 +30 s$", up.text, re.MULTILINE)
        up.await_text(r"^\d\d:\d\d:\d\d  resize +0 -> 1: at least min 1$")
        add(folder, "cat.jpg")
        up.await_text(r"^\d\d:\d\d:\d\d  resize-\w{6} \| resizing cat\.jpg$")
        add(folder, "broken")
        up.await_text(
            r"^\d\d:\d\d:\d\d  resize-\w{6} x task _2 failed \(lease 1 of 3\): JSONDecodeError: Expecting value: "
            r"line 1 column 1 \(char 0\), tasks\.py:11; again in 10 min Traceback \(most recent call last\): "
            r'File "tasks\.py", line 11, in resize json\.loads\("not JSON"\) \.\.\. 3 frames of libraries '
            r"json\.decoder\.JSONDecodeError: "
        )
        add(folder, "broken", "broken", "cat-2.jpg")
        up.await_text(r"\| resizing cat-2\.jpg$")
        assert up.text.count(" failed (lease") == 1
        add(folder, "deadly")
        died = up.await_text(
            r"^\S+  (resize-\w{6}) x killed by SIGKILL; its task was restarted after [\d.]+ m?s "
            r"+\(towline why-died (.*)\)$"
        )
        assert died[1] == died[2]
        add(folder, "flood")
        up.await_text(
            r"\([\d,]+ lines were left out, as too many came at once; what is kept of them is in \.towline/workers/"
        )
        assert "busy=" not in up.text
        up.terminal.type("\x03")
        assert up.ended() == 0
        assert re.search(
            r"x 2 more failures like this since then \(not shown\): JSONDecodeError, tasks\.py:11$",
            up.text,
            re.MULTILINE,
        )
        assert up.text.strip().split("\n")[-1].endswith("Stopped. 4 done, 0 dead, 3 still wait in sqlite:///queue.db.")
        assert "\x1b" not in up.terminal.raw
        check_width(up)


@pytest.mark.parametrize("size", [Size(80, 24), Size(40, 10)], ids=str)
def test_ctrl_c_says_what_is_finished_and_a_second_one_that_it_was_asked_for(folder: Path, size: Size) -> None:
    with on_terminal("up", folder=folder, size=size, term="xterm-256color") as up:
        up.await_text(r"Workers' output appears here")
        add(folder, "slow")
        up.await_text(r"\| resizing slow$")
        up.terminal.type("\x03")
        up.await_text(
            r"Finishing 1 task \(resize-\w{6}, task _1, [\d.]+ m?s so far\), for at most 30 s\. "
            r"Ctrl-C again ends it at once\."
        )
        up.terminal.type("\x03")
        assert up.ended() == 0
        died = re.search(
            r"(resize-\w{6}) x ended: you asked twice; its task is waiting in the queue", " ".join(up.text.split())
        )
        assert died
        assert "Stopped. 0 done, 0 dead, 1 still waits in sqlite:///queue.db." in " ".join(up.text.split())
        check_width(up)
    told = run_program("why-died", died[1], folder=folder).out
    assert "ended: you asked twice" in told
    assert "within its grace" not in told
    assert "overdue" not in told


def test_closing_its_terminal_ends_up_and_frees_its_socket(folder: Path) -> None:
    with on_terminal("up", folder=folder) as up:
        up.await_text(r"Workers' output appears here")
        up.await_text(r"0 -> 1: at least min 1$")
        up.process.send_signal(signal.SIGHUP)  # somebody's kill: its terminal is still there
        up.await_text(r"Settings reloaded: no changes\.$")
        up.terminal.close()
        assert up.process.wait(LONG_SECONDS) == 0
        assert not (folder / "towline.sock").exists()


def test_under_nohup_it_outlives_its_terminal(folder: Path) -> None:
    with on_terminal("up", folder=folder, ignores_hang_up=True) as up:
        up.await_text(r"0 -> 1: at least min 1$")
        up.terminal.close()
        up.process.send_signal(signal.SIGHUP)
        add(folder, "cat.jpg")
        logs = folder / ".towline" / "workers"
        eventually(lambda: any("resizing cat.jpg" in path.read_text() for path in logs.glob("resize-*.log")))
        assert up.process.poll() is None


def test_a_socket_and_a_state_that_are_taken_name_the_own_up(folder: Path) -> None:
    with on_terminal("up", folder=folder) as up:
        up.await_text(r"Workers' output appears here")
        own = f"your own `towline up` of this folder (pid {up.process.pid})"
        taken = run_program("up", folder=folder)
        assert taken.code == 73
        assert f"towline.sock: it is taken by {own}" in taken.err
        taken = run_program("up", "--listen", "127.0.0.1:0", folder=folder)
        assert taken.code == 75
        assert own in taken.err
        assert f"kill {up.process.pid}" in taken.err
        assert all(json.loads(line) for line in taken.err.splitlines())


def test_a_port_that_is_taken_names_the_process_that_has_it(folder: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with on_terminal("up", "--listen", f"127.0.0.1:{port}", folder=folder) as up:
            assert up.ended() == 73
            assert f"can't listen on 127.0.0.1:{port}: it is taken by pid {os.getpid()}, `" in " ".join(up.text.split())


def test_settings_that_wait_for_a_restart_are_named_until_then(folder: Path) -> None:
    with on_terminal("up", folder=folder) as up:
        up.await_text(r"Workers' output appears here")
        (folder / "towline.yaml").write_text(SETTINGS.replace("towline.sock", "other.sock"))
        sentence = (
            "server.listen is changed in the settings file, and not in force until `towline up` is started again."
        )
        assert sentence in " ".join(run_program("reload", folder=folder).err.split())
        up.await_text(rf"! {re.escape(sentence)}$")
        environment = {"TOWLINE_LISTEN": "unix:towline.sock"}
        eventually(
            lambda: sentence in " ".join(run_program("pools", folder=folder, environment=environment).err.split())
        )


def piped(*arguments: str, folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=folder,
            env=program_environment(),
            stdout=out,
            stderr=err,
        )


@pytest.mark.parametrize("arguments", [["up"], ["up", "--logs"]], ids=" ".join)
def test_in_a_pipe_every_line_is_json(folder: Path, arguments: Sequence[str]) -> None:
    up = piped(*arguments, folder=folder)
    try:
        eventually((folder / "towline.sock").exists, seconds=LONG_SECONDS)
        add(folder, "cat.jpg")
        logs = folder / ".towline" / "workers"
        eventually(
            lambda: any("resizing cat.jpg" in path.read_text() for path in logs.glob("resize-*.log")), seconds=30
        )
        if "--logs" in arguments:
            eventually(lambda: "resizing cat.jpg" in (folder / "out").read_text())
    finally:
        up.terminate()
        assert up.wait(LONG_SECONDS) == 0
    told = [json.loads(line) for line in (folder / "err").read_text().splitlines()]
    assert {"server.started", "pool.decided", "supervisor.stopping", "work.counted"} <= {one["event"] for one in told}
    shown = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    assert ("resizing cat.jpg" in [one["line"] for one in shown]) == ("--logs" in arguments)


def test_quiet_leaves_output_out_and_keeps_failures(folder: Path) -> None:
    with on_terminal("up", "--quiet", folder=folder) as up:
        up.await_text(r"^Output is in \.towline/workers; Ctrl-C")
        add(folder, "cat.jpg", "broken")
        up.await_text(r"x task _2 failed \(lease 1 of 3\): JSONDecodeError")
        assert "resizing" not in up.text


def test_supervise_and_work_say_the_same(folder: Path) -> None:
    serve = piped("serve", folder=folder)
    try:
        eventually((folder / "towline.sock").exists, seconds=LONG_SECONDS)
        add(folder, "broken")
        with on_terminal("supervise", folder=folder) as supervise:
            supervise.await_text(r"x task _1 failed \(lease 1 of 3\): JSONDecodeError")
            supervise.terminal.type("\x03")
            assert supervise.ended() == 0
            assert re.search(r"Stopped\. 0 done, 0 dead, 1 still waits in unix://", supervise.text)
        with on_terminal("work", "tasks:app", folder=folder) as work:
            work.await_text(r"^\S+  Works on thumbs, tags resize, 1 task at a time\. Ctrl-C lets it finish\.$")
            add(folder, "broken")
            work.await_text(
                r"^\S+  x task _2 failed \(lease 1 of 3\): JSONDecodeError: .*tasks\.py:11; again in 10 min"
            )
            add(folder, "slow")
            work.await_text(r"^resizing slow$")
            work.terminal.type("\x03")
            work.await_text(
                r"Finishing 1 task \(task _3, [\d.]+ m?s so far\), for at most 30 s\. Ctrl-C again gives it back"
            )
            work.terminal.type("\x03")
            work.ended()
            assert "Gives back 1 task: you asked twice." in work.text
            assert "Stopped. 1 task handled in" in work.text
    finally:
        serve.terminate()
        serve.wait(LONG_SECONDS)
