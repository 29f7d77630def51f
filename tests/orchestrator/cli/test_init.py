"""`towline init` beside what is there: writes what is missing, overwrites nothing, and is right as it stands."""

import re
import shutil
from pathlib import Path
from typing import cast

import pytest

from orchestrator.cli.commands.init import PROGRAM, SETTINGS, plan_of, works_on_example
from orchestrator.cli.project_file import load_project
from queue_core.cli.serving import lifecycle_log
from queue_core.client.connect import open_queues
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from tests.support.commands import ROOT, Commands

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/towline.yaml"))
OWN = "import os\n\nprint('mine')\n"


def levels(towline: Commands, file: str) -> dict[str, str]:
    """The worst level of each of the doctor's checks."""
    found = cast("list[dict[str, str]]", towline("doctor", "-f", file, "--json").json)
    return {
        one["check"]: one["level"] for one in sorted(found, key=lambda one: ["ok", "warn", "bad"].index(one["level"]))
    }


@pytest.mark.parametrize("options", [[], ["--no-example"]], ids=["with an example", "without"])
def test_what_init_makes_passes_check_and_doctor(towline: Commands, options: list[str]) -> None:
    assert towline("init", *options).code == 0
    assert towline("check", "--import").code == 0
    assert "bad" not in levels(towline, "towline.yaml").values()
    assert load_project(None).notes == ()


def test_init_turns_the_lifecycle_log_on(towline: Commands) -> None:
    towline("init")
    settings = load_project(None).queue_file
    assert (settings.lifecycle, settings.log) == ("task", "events.jsonl")


@pytest.mark.parametrize(
    ("gone", "written"),
    [
        pytest.param("tasks.py", ["tasks.py"], id="the program"),
        pytest.param("towline.yaml", ["towline.yaml"], id="the settings"),
        pytest.param(None, [], id="nothing"),
    ],
)
def test_init_writes_what_is_missing_beside_what_is_there(
    towline: Commands, gone: str | None, written: list[str]
) -> None:
    towline("init")
    kept = {"towline.yaml", "tasks.py"} - {gone}
    for name in kept:
        path = towline.folder / name
        path.write_text(path.read_text() + "# mine\n")
    if gone:
        (towline.folder / gone).unlink()
    told = towline("init")
    assert told.code == 0
    assert [line for line in told.out.splitlines() if line.startswith("wrote")] == [f"wrote {name}" for name in written]
    for name in kept:
        assert f"left {name} as it is\n" in told.out
        assert (towline.folder / name).read_text().endswith("# mine\n")
    assert ("nothing was written" in told.err) == (not written)
    assert towline("check", "--import").code == 0


def test_beside_a_program_of_ones_own_the_example_has_another_name(towline: Commands) -> None:
    (towline.folder / "tasks.py").write_text(OWN)
    told = towline("init")
    assert told.out.splitlines() == [
        "wrote towline.yaml",
        "wrote towline_tasks.py",
        "left tasks.py as it is: a program of your own",
    ]
    assert "python3 towline_tasks.py cat.jpg" in told.err
    assert (towline.folder / "tasks.py").read_text() == OWN
    assert load_project(None).pools["resize"].app == "towline_tasks:app"
    assert towline("check", "--import").code == 0
    columns = {line.index("# ") for line in Path("towline.yaml").read_text().splitlines() if "    # " in line}
    assert len(columns) == 1


@pytest.mark.parametrize("settings", ["queues: {mail: {}}\n", "queues: [\n"], ids=["other queues", "mistakes"])
def test_beside_settings_of_another_program_no_example_is_written(towline: Commands, settings: str) -> None:
    (towline.folder / "towline.yaml").write_text(settings)
    told = towline("init")
    assert told.code == 0
    assert "tasks.py: not written, as no pool of towline.yaml names it" in told.out
    assert sorted(path.name for path in towline.folder.iterdir()) == ["towline.yaml"]


def test_init_tells_a_program_what_it_wrote_and_left(towline: Commands) -> None:
    (towline.folder / "tasks.py").write_text(PROGRAM)
    told = cast("dict[str, object]", towline("init", "--json").json)
    assert told == {"written": ["towline.yaml"], "left": [{"file": "tasks.py", "why": "exists already"}]}


@pytest.mark.parametrize(
    ("program", "works"),
    [
        pytest.param(PROGRAM, True, id="the example"),
        pytest.param("@app.task(queue='thumbs', tag='resize')\ndef any(task): ...", True, id="a handler"),
        pytest.param("@app.task(queue='thumbs')\ndef resize(task): ...", False, id="of no tag"),
        pytest.param("@app.function(queue='mail')\ndef resize(path): ...", False, id="of another queue"),
        pytest.param("@app.function(queue='thumbs', tag='crop')\ndef resize(path): ...", False, id="of another tag"),
        pytest.param("@other.function(queue='thumbs')\ndef resize(path): ...", False, id="of another app"),
        pytest.param("def resize(", False, id="no Python"),
    ],
)
def test_a_program_is_the_examples_when_its_text_handles_what_the_settings_send(program: str, works: bool) -> None:
    assert works_on_example(program) == works


def test_two_programs_of_ones_own_leave_only_settings_without_a_pool() -> None:
    plan = plan_of({"tasks": OWN, "towline_tasks": OWN}, settings_app=None, has_settings=False, example=True)
    assert list(plan.write) == ["towline.yaml"]
    assert "# pools:" in plan.write["towline.yaml"] and plan.write["towline.yaml"] != SETTINGS
    assert list(plan.left) == ["tasks.py", "towline_tasks.py"]


def test_the_settings_that_compose_mounts_pass_check_and_doctor_where_their_folders_are(
    towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", "a-token-of-32-characters-or-more")
    towline("init")
    path = towline.folder / "towline.yaml"
    path.write_text(
        path.read_text().replace("  # tokens:\n", "  tokens:\n    - {role: admin, token_env: ADMIN_TOKEN}\n")
    )
    assert towline("export", "--to", "compose", "--out", "out").code == 0
    exported = towline.folder / "out" / "towline.compose.yaml"
    for there in ("/var/lib/towline", "/run/secrets"):
        here = towline.folder / there.rpartition("/")[2]
        here.mkdir()
        exported.write_text(exported.read_text().replace(there, str(here)))
    (towline.folder / "secrets" / "token-1-admin").write_text("a-token-of-32-characters-or-more")
    (towline.folder / "out" / "tasks.py").write_text(PROGRAM)  # as in the image
    assert towline("check", "-f", str(exported), "--import").code == 0
    assert "bad" not in levels(towline, str(exported)).values()


@pytest.mark.parametrize("page", ["README.md", *(f"examples/{name}/towline.yaml" for name in EXAMPLES)])
def test_settings_that_we_show_pass_check_and_doctor(towline: Commands, page: str) -> None:
    text = (ROOT / page).read_text()
    program = ROOT / page.replace("towline.yaml", "tasks.py")
    if page == "README.md":
        text = re.findall(r"^```yaml[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
        tasks = re.findall(r"^```python[^\n]*\n(.*?)^```$", program.read_text(), re.MULTILINE | re.DOTALL)[0]
        (towline.folder / "tasks.py").write_text(tasks)
        (towline.folder / "towline.yaml").write_text(text)
    else:
        shutil.copytree(program.parent, towline.folder, dirs_exist_ok=True)
    told = towline("check", "--import")
    assert told.code == 0, told.err
    assert "bad" not in levels(towline, "towline.yaml").values()


def test_the_log_that_init_turns_on_is_read_by_backtest_and_simulate(towline: Commands) -> None:
    towline("init")
    project = load_project(None)
    with lifecycle_log(project.queue_file, project.directory) as log:
        server = ServerThread(MemoryStore(), ServeOptions(port=0), log=log)
        queues = open_queues(server.start())
        queues.put_queue(QueueSpec("thumbs", max_leases=5))
        queue = queues.queue("thumbs")
        queue.add([NewTask(b"{}", tag="resize") for _ in range(3)])
        queue.delete([lease.token for lease in queue.lease(3)])
        queues.close()
        server.stop()
    for told in (towline("backtest", "--rules", "none"), towline("simulate", "events.jsonl", "--rules", "none")):
        assert told.code == 0, told.err
        assert "3 tasks" in told.out + told.err
