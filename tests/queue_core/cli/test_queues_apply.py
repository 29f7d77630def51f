"""`towline queues apply`: what it shows, what it does to a store and to a server, and its exit codes."""

import json
import os
import pty
import subprocess
import sys
from typing import cast

import pytest

from tests.support.commands import Commands, program_environment
from tests.support.servers import a_server

SETTINGS = 'store: sqlite:///queue.db\nserver: {listen: "unix:none.sock"}\nqueues: {thumbs: {lease: 30s}, old: {}}\n'
FILE = """\
queue:
- name: thumbs
  mode: pull
  retry_parameters: {task_retry_limit: 7}
- name: new
  mode: pull
  acl: [{user_email: worker@example.com, writer_email: web@example.com}]
- name: mail
  rate: 5/s
"""
XML = """\
<queue-entries>
  <queue><name>thumbs</name><mode>pull</mode></queue>
</queue-entries>
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    (towline.folder / "queue.yaml").write_text(FILE)
    (towline.folder / "queue.xml").write_text(XML)
    return towline


def queues(towline: Commands, *where: str) -> dict[str, dict[str, object]]:
    found = cast("list[dict[str, object]]", towline("queues", "--json", *where).json)
    return {str(queue["name"]): queue for queue in found}


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[1:]]


def test_a_dry_run_shows_every_change_and_makes_none(towline: Commands) -> None:
    told = towline("queues", "apply", "queue.yaml", "--dry-run")
    assert told.code == 0
    assert rows(told.out) == [
        ["thumbs", "update", "max_leases", "-", "7"],
        ["thumbs", "update", "on_exhausted", "dead", "delete"],
        ["new", "create", "on_exhausted", "-", "delete"],
        ["new", "create", "user_emails", "-", "worker@example.com"],
        ["new", "create", "writer_emails", "-", "web@example.com"],
        ["mail", "create", "mode", "-", "push"],
        ["old", "pause", "paused", "no", "yes"],
    ]
    assert "1 push queue, as Towline calls no handlers: mail" in told.err
    assert set(queues(towline)) == {"thumbs", "old"}


def test_the_file_is_definitive_and_a_second_run_finds_nothing_to_do(towline: Commands) -> None:
    towline("add", "old", "kept")
    assert towline("queues", "apply", "queue.yaml", "--yes").code == 0
    found = queues(towline)
    thumbs, new, old = found["thumbs"], found["new"], found["old"]
    assert (thumbs["max_leases"], thumbs["on_exhausted"], thumbs["lease_seconds"]) == (7, "delete", 30.0)
    assert (new["user_emails"], new["writer_emails"]) == (["worker@example.com"], ["web@example.com"])
    assert (old["paused"], thumbs["paused"]) == (True, False)
    assert cast("dict[str, object]", old["stats"])["ready"] == 1
    assert towline("add", "old", "still").code == 0
    assert towline("lease", "old").code == 1
    again = towline("queues", "apply", "queue.yaml", "--yes")
    assert (again.code, again.out) == (0, "")
    assert "nothing to do" in again.err
    assert queues(towline)["new"]["user_emails"] == new["user_emails"]


def test_a_queue_xml_is_applied_too_and_pauses_what_it_leaves_out(towline: Commands) -> None:
    towline("pause", "thumbs")
    assert towline("queues", "apply", "queue.xml", "--yes").code == 0
    assert {name: queue["paused"] for name, queue in queues(towline).items()} == {"thumbs": False, "old": True}


def test_a_file_without_a_telling_name_is_known_by_what_is_in_it(towline: Commands) -> None:
    (towline.folder / "queues").write_text(XML, encoding="utf-16")
    assert towline("queues", "apply", "queues", "--dry-run").code == 0
    (towline.folder / "queues").write_text(FILE)
    assert towline("queues", "apply", "queues", "--dry-run").code == 0


def test_json_tells_the_changes_for_programs(towline: Commands) -> None:
    told = towline("queues", "apply", "queue.yaml", "--yes", "--json")
    record = cast("dict[str, object]", told.json)
    assert (record["applied"], record["push_queues"], record["total_storage_limit_bytes"]) == (True, ["mail"], None)
    assert cast("list[object]", record["changes"])[3] == {
        "queue": "old",
        "change": "pause",
        "settings": {"paused": {"from": False, "to": True}},
    }
    again = cast("dict[str, object]", towline("queues", "apply", "queue.yaml", "--yes", "--json").json)
    assert (again["applied"], again["changes"]) == (False, [])


def test_a_server_is_asked_as_a_store_is(towline: Commands) -> None:
    with a_server() as server:
        url = server.url
        assert towline("queues", "apply", "queue.yaml", "--yes", "--url", url).code == 0
        assert queues(towline, "--url", url)["new"]["user_emails"] == ["worker@example.com"]
        assert towline("queues", "apply", "queue.xml", "--yes", "--url", url).code == 0
        found = queues(towline, "--url", url)
        assert (found["thumbs"]["max_leases"], found["new"]["paused"]) == (None, True)
        assert "nothing to do" in towline("queues", "apply", "queue.xml", "--url", url).err


def test_without_yes_and_without_a_terminal_nothing_is_changed(towline: Commands) -> None:
    program = [sys.executable, "-m", "orchestrator", "queues", "apply", "queue.yaml"]
    ended = subprocess.run(
        program,
        cwd=towline.folder,
        env=program_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert b"give --yes" in ended.stderr
    assert set(queues(towline)) == {"thumbs", "old"}


@pytest.mark.parametrize(("answer", "code", "there"), [(b"y\n", 0, True), (b"n\n", 130, False), (b"\n", 130, False)])
def test_on_a_terminal_it_asks(towline: Commands, answer: bytes, code: int, there: bool) -> None:
    mine, theirs = pty.openpty()
    program = [sys.executable, "-m", "orchestrator", "queues", "apply", "queue.yaml"]
    try:
        os.write(mine, answer)
        ended = subprocess.run(
            program,
            cwd=towline.folder,
            env=program_environment(),
            stdin=theirs,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(mine)
        os.close(theirs)
    assert (ended.returncode, "new" in queues(towline)) == (code, there)
    assert b"Change 4 queues of sqlite:" in ended.stderr


def test_a_file_with_mistakes_changes_nothing_and_lists_them_all(towline: Commands) -> None:
    (towline.folder / "queue.yaml").write_text(FILE.replace("mode: pull", "mode: PULL").replace("5/s", "5"))
    told = towline("queues", "apply", "queue.yaml", "--yes")
    assert told.code == 78
    assert [line.split(": ")[0] for line in told.err.replace("error:", "").splitlines()[:3]] == [
        " queue.yaml:3:9",
        "       queue.yaml:6:9",
        "       queue.yaml:9:9",
    ]
    assert "fix all 3" in told.err
    assert not (towline.folder / "queue.db").exists()


@pytest.mark.parametrize(
    ("name", "data", "code", "told"),
    [
        ("absent.yaml", None, 66, "no such file"),
        ("queue.yaml", b"queue: \xff\n", 78, "queue.yaml:1:1: byte 0xff is not UTF-8"),
        ("queue.yaml", b"#" * (1 << 20), 78, "at most 262144 bytes"),
        ("queue.xml", b"<!DOCTYPE a><queue-entries/>", 78, "<!DOCTYPE"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(
    towline: Commands, name: str, data: bytes | None, code: int, told: str
) -> None:
    if data is not None:
        (towline.folder / name).write_bytes(data)
    answer = towline("queues", "apply", name, "--yes")
    assert answer.code == code
    assert told in answer.err


def test_mistakes_are_told_to_programs_as_json(towline: Commands) -> None:
    (towline.folder / "queue.yaml").write_text("queue: 5\n")
    answer = towline("queues", "apply", "queue.yaml", "--yes", "--json")
    assert json.loads(answer.err)["error"].startswith("queue.yaml:1:8: queue: must be a list")


def test_help_tells_the_subcommand_and_a_misspelt_one_what_was_meant(towline: Commands) -> None:
    assert "apply" in towline("queues", "--help").out
    assert "towline queues apply queue.yaml" in towline("queues", "apply", "--help").out
    answer = towline("queues", "aply")
    assert (answer.code, "did you mean `apply`" in answer.err) == (2, True)
