"""`towline export`, `import` and `migrate`, as they are typed: what they tell, and their exit codes."""

import gzip
import io
import json
import os
import subprocess
import sys
from typing import cast

import pytest

from queue_core.cli.output import LINE_SECONDS, ProgressLines, progress
from tests.support.commands import Commands, program_environment, run_program
from tests.support.stores.transfers import QUEUE, fill, opened_file

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 30s}
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    with opened_file(towline.folder / "queue.db") as store:
        fill(store, longest=9000)
    return towline


def url(towline: Commands, name: str) -> str:
    return f"sqlite:///{towline.folder / name}"


def counts(towline: Commands, store: str) -> dict[str, object]:
    (queue,) = cast("list[dict[str, object]]", towline("queues", "--store", store, "--json").json)
    stats = cast("dict[str, object]", queue["stats"])
    return {name: stats[name] for name in ("ready", "delayed", "in_flight", "dead")}


# -- export and import ------------------------------------------------------------------------------------------------


def test_an_export_is_told_in_one_line_and_imported_elsewhere(towline: Commands) -> None:
    told = towline("export", "x.jsonl.gz")
    assert (told.code, told.out) == (0, "")
    assert told.err == "49 tasks and 3 held names of thumbs\n"
    done = towline("import", "x.jsonl.gz", "--store", url(towline, "new.db"))
    assert (done.code, done.err) == (0, "49 tasks and 3 held names imported\n")
    assert counts(towline, url(towline, "new.db")) == counts(towline, url(towline, "queue.db"))


def test_json_tells_the_same_for_programs(towline: Commands) -> None:
    told = towline("export", "x.jsonl", "--queue", "thumbs", "--json")
    export = cast("dict[str, object]", told.json)
    assert told.err == ""
    assert {name: export[name] for name in ("file", "queues", "tasks", "names", "was_whole")} == {
        "file": "x.jsonl",
        "queues": ["thumbs"],
        "tasks": 49,
        "names": 3,
        "was_whole": False,
    }
    done = cast("dict[str, object]", towline("import", "x.jsonl", "--store", url(towline, "new.db"), "--json").json)
    assert (done["id"], done["tasks"], done["refused"], done["created"]) == (export["id"], 49, 0, ["thumbs"])


def test_importing_a_file_again_is_exit_code_1(towline: Commands) -> None:
    towline("export", "x.jsonl")
    towline("import", "x.jsonl", "--store", url(towline, "new.db"))
    again = towline("import", "x.jsonl", "--store", url(towline, "new.db"))
    assert again.code == 1
    assert "imported already" in again.err


def test_tasks_that_are_left_out_are_told(towline: Commands) -> None:
    towline("export", "x.jsonl")
    told = towline("import", "x.jsonl")
    assert told.code == 0
    assert "23 tasks left out: the name is taken there" in told.err


def test_a_dry_run_counts_and_opens_no_store(towline: Commands) -> None:
    towline("export", "x.jsonl")
    told = towline("import", "x.jsonl", "--dry-run", "--store", url(towline, "new.db"))
    assert (told.code, told.err) == (0, "49 tasks and 3 held names of thumbs: no errors\n")
    assert not (towline.folder / "new.db").exists()
    assert cast("dict[str, object]", towline("import", "x.jsonl", "--dry-run", "--json").json)["dry_run"] is True


def test_a_line_that_is_wrong_is_told_by_file_line_and_field_and_is_exit_code_65(towline: Commands) -> None:
    towline("export", "x.jsonl")
    path = towline.folder / "x.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"state":"dead"', b'"state":"deaf"', 1))
    for flags in (["--dry-run"], ["--store", url(towline, "new.db")]):
        told = towline("import", "x.jsonl", *flags)
        assert told.code == 65
        assert "x.jsonl:" in told.err
        assert ": state: must be one of ready, delayed, in_flight, dead, held: 'deaf'" in told.err


def test_a_file_that_ends_early_is_exit_code_65_and_says_what_to_do(towline: Commands) -> None:
    towline("export", "x.jsonl")
    path = towline.folder / "x.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    told = towline("import", "x.jsonl", "--store", url(towline, "new.db"))
    assert told.code == 65
    assert "--resume" in told.err
    assert towline("export", "x.jsonl").code == 73
    assert towline("export", "x.jsonl", "--resume").code == 0
    assert towline("import", "x.jsonl", "--store", url(towline, "new.db")).code == 0


def test_an_export_that_is_whole_says_so(towline: Commands) -> None:
    towline("export", "x.jsonl")
    assert "it was complete already" in towline("export", "x.jsonl", "--resume").err


def test_a_file_that_is_missing_is_exit_code_66(towline: Commands) -> None:
    assert towline("import", "none.jsonl").code == 66
    assert towline("import", "none.jsonl", "--dry-run").code == 66


def test_a_file_that_cannot_be_made_is_exit_code_66(towline: Commands) -> None:
    assert towline("export", "no/such/folder/x.jsonl").code == 66


def test_an_export_goes_through_a_pipe_into_an_import(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = run_program("export", "-", folder=towline.folder)
    assert sent.code == 0
    assert json.loads(sent.out.splitlines()[0])["kind"] == "header"
    got = run_program("import", "-", "--store", url(towline, "new.db"), folder=towline.folder, stdin=sent.out.encode())
    assert (got.code, got.out) == (0, "")
    assert counts(towline, url(towline, "new.db")) == counts(towline, url(towline, "queue.db"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sent.out.encode()[:-50])))
    told = towline("import", "-", "--store", url(towline, "other.db"))
    assert told.code == 65
    assert "not imported again" in told.err


def test_stdout_takes_nothing_but_the_export(towline: Commands) -> None:
    assert towline("export", "-", "--json").code == 2
    assert towline("export", "-", "--resume").code == 2


def test_a_compressed_export_is_gzip(towline: Commands) -> None:
    towline("export", "x.jsonl.gz")
    lines = gzip.decompress((towline.folder / "x.jsonl.gz").read_bytes()).splitlines()
    assert json.loads(lines[-1])["tasks"] == 49


# -- migrate ----------------------------------------------------------------------------------------------------------


def test_a_move_is_told_queue_by_queue_with_what_to_do_next(towline: Commands) -> None:
    old, new = url(towline, "queue.db"), url(towline, "new.db")
    told = towline("migrate", "--from", old, "--to", new)
    assert (told.code, told.out) == (0, "")
    assert f"thumbs: 49 tasks and 3 held names are at {new}" in told.err
    assert "2 of them were in flight" in told.err
    assert f"to {new}: {old} refuses them now" in told.err
    assert "moved to" in towline("queues", "--store", old).out
    again = towline("migrate", "--from", old, "--to", new)
    assert again.code == 0
    assert "already" in again.err


def test_a_verb_on_a_moved_queue_says_where_it_is_and_is_exit_code_66(towline: Commands) -> None:
    new = url(towline, "new.db")
    towline("migrate", "--from", url(towline, "queue.db"), "--to", new)
    told = towline("add", "thumbs", "x")
    assert told.code == 66
    assert new in told.err


def test_a_move_is_undone_and_can_be_made_again(towline: Commands) -> None:
    between = ("--from", url(towline, "queue.db"), "--to", url(towline, "new.db"), "--json")
    moved = cast("dict[str, object]", towline("migrate", *between).json)
    assert (moved["queue"], moved["tasks"], moved["in_flight"], moved["was_done"]) == ("thumbs", 49, 2, False)
    undone = cast("dict[str, object]", towline("migrate", *between, "--abort").json)
    assert undone == {"queue": "thumbs", "dropped": 49, "at": url(towline, "queue.db")}
    assert towline("add", "thumbs", "x").code == 0
    assert towline("migrate", *between, "--queue", QUEUE).code == 0


def test_what_stands_in_the_way_of_a_move_is_exit_code_1(towline: Commands) -> None:
    old, new = url(towline, "queue.db"), url(towline, "new.db")
    with opened_file(towline.folder / "new.db") as store:
        fill(store, tasks=1, longest=9000)
    told = towline("migrate", "--from", old, "--to", new)
    assert told.code == 1
    assert "tasks of its own" in told.err
    assert towline("add", "thumbs", "x").code == 0
    assert towline("migrate", "--from", old, "--to", new, "--abort").code in (1, 66)
    assert towline("migrate", "--from", old, "--to", old).code == 1


FROM_TO = ("migrate", "--from", "sqlite:///queue.db", "--to")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(
            ("migrate", "--from", "http://x:7878", "--to", "sqlite:///n.db"), 2, "the store itself", id="http"
        ),
        pytest.param((*FROM_TO, "memory:"), 2, "one process", id="memory"),
        pytest.param(("migrate", "--from", "sqlite:///none.db", "--to", "sqlite:///n.db"), 66, "no such", id="missing"),
        pytest.param(
            ("migrate", "--from", "sqlite:///queue.db", "--to", "mysql://u:hush@h/x"), 78, "h/x", id="unknown"
        ),
        pytest.param((*FROM_TO, "sqlite:///n.db", "--abort"), 66, "no such", id="abort"),
        pytest.param((*FROM_TO, "sqlite:///n.db", "--queue", "nope"), 66, "nope", id="queue"),
        pytest.param(("export", "x", "--store", "unix:///run/towline.sock"), 2, "the store itself", id="server"),
        pytest.param(("export", "x", "--store", "sqlite:///none.db"), 66, "no such", id="export missing"),
        pytest.param(("export", "x", "--queue", "nope"), 66, "nope", id="export queue"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_done(
    towline: Commands, arguments: tuple[str, ...], code: int, said: str
) -> None:
    told = towline(*arguments)
    assert told.code == code
    assert said in told.err
    assert "hush" not in told.err
    assert not (towline.folder / "none.db").exists()


def test_without_a_settings_file_a_store_must_be_named(towline: Commands) -> None:
    (towline.folder / "towline.yaml").unlink()
    assert towline("export", "x").code == 2
    assert towline("import", "x").code in (2, 66)


@pytest.mark.parametrize("command", ["export", "import", "migrate"])
def test_help_says_what_it_does_with_examples(towline: Commands, command: str) -> None:
    told = towline(command, "--help")
    assert told.code == 0
    assert f"  towline {command} " in told.out


def test_a_bar_is_drawn_on_a_terminal_only(towline: Commands) -> None:
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "orchestrator", "export", "x.jsonl"]
    environment = program_environment() | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=towline.folder, env=environment, stderr=follower) as running:
        os.close(follower)
        drawn = _all_of(leader)
    assert running.returncode == 0
    assert "thumbs" in drawn
    assert "49 of 49 tasks" in drawn
    assert "49 of 49" not in run_program("export", "y.jsonl", folder=towline.folder).err


def _all_of(leader: int) -> str:
    drawn = b""
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        while True:
            try:
                read = terminal.read(4096)
            except OSError:  # how Linux tells that nobody writes any more
                read = b""
            if not read:
                return drawn.decode()
            drawn += read


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("tasks", quiet=False) as tell:
        assert isinstance(tell, ProgressLines)
        tell(QUEUE, 5, 1000)
        tell.printed_at -= LINE_SECONDS
        tell(QUEUE, 6, 1000)
        tell(QUEUE, 7, 1000)
    assert capsys.readouterr().err == "thumbs: 6 of 1,000 tasks\n"
