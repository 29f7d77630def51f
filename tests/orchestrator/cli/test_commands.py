"""The command line as a whole: help, guesses, settings, and what the fleet's commands show."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import click
import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli import command
from orchestrator.cli.project_file import load_project
from orchestrator.config.diff import changes_between
from orchestrator.launch import Launch
from orchestrator.runtimes.procfs import worker_processes
from orchestrator.state.directory import StateDir
from orchestrator.state.private_files import identity_of_folder
from queue_core.cli.exits import MEANINGS
from queue_core.cli.group import Command
from tests.support.commands import ROOT, Commands, run_program
from tests.support.eventually import eventually

THE_COMMANDS = (
    *(
        "up",
        "serve",
        "console",
        "supervise",
        "work",
        "run-appengine",
        "demo",
        "init",
        "check",
        "plan",
        "why",
        "why-died",
        "doctor",
        "add",
        "lease",
        "renew",
    ),
    *("simulate", "backtest", "reload", "drain", "undrain", "kill", "replace"),
    *(
        "release",
        "delete",
        "peek",
        "search",
        "purge",
        "redrive",
        "pause",
        "resume",
        "queues",
        "pools",
        "workers",
        "events",
    ),
    *(
        "scale",
        "stats",
        "top",
        "backup",
        "vacuum",
        "export",
        "import",
        "migrate",
        "bridge",
        "bench",
        "schema",
        "config",
        "health",
        "logs",
        "schedules",
        "completion",
    ),
    "run-appengine",
)
SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 5}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 30s, workers: {max: 4}}
"""
TASKS = """\
from queue_core.worker.app import App
app = App()
@app.task(queue="thumbs", tag="resize")
def resize(task): ...
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    (towline.folder / "tasks.py").write_text(TASKS)
    return towline


@pytest.fixture
def shown(towline: Commands) -> Commands:
    """A fleet that a supervisor showed before it went away."""
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    now = SystemMonotonicClock().wall_seconds()
    decision = {"pool": "resize", "current": 1, "target": 3, "rule": "deadline", "why": "9 ready", "limits": ["max 3"]}
    decision |= {"limited_by": ["max"], "would_be_without_guards": 5, "ready": 9, "service_seconds": 0.5, "at": now}
    worker = {"worker": "resize-abc", "pool": "resize", "state": "busy", "pid": 1, "ref": "pid:1@2", "since": now}
    worker |= {"spawned_at": now, "holding": 1, "finished": 7, "memory_bytes": 64 << 20, "spec_digest": "x"}
    pool = {"current": 1, "target": 3, "settings": {"slo_seconds": 30.0}, "decision": decision}
    pool |= {"sample": {"ready": 9, "in_flight": 1, "oldest_seconds": 4.0}}
    files.write_snapshot(
        {"phase": "leading", "url": "http://x", "shown_at": now, "pools": {"resize": pool}, "workers": [worker]}
    )
    files.decisions.append(decision)
    files.deaths.append({"worker": "resize-old", "cause": "signalled", "detail": "ended by SIGKILL"})
    return towline


@pytest.mark.parametrize("name", THE_COMMANDS)
def test_every_command_has_examples_a_summary_and_json(name: str) -> None:
    group = command()
    made = group.get_command(click.Context(group), name)
    assert isinstance(made, Command)
    assert all(name in example or example.startswith("#") for example in made.examples[:1])
    assert made.help
    assert any("--json" in parameter.opts for parameter in made.params)


def test_there_is_no_command_beyond_those_and_help_lists_them_in_sections(towline: Commands) -> None:
    told = towline("--help")
    assert told.code == 0
    assert set(command().list_commands(click.Context(command()))) == set(THE_COMMANDS)
    for section in ("Run:", "Tasks:", "Move:", "Inspect:", "Set up:", "Exit codes:"):
        assert section in told.out
    for code, _ in MEANINGS:
        assert f"  {code} " in told.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["quues"], "did you mean `queues`", id="a misspelt command"),
        pytest.param(["xyzzy"], "no command `xyzzy`", id="nothing like it"),
        pytest.param(["stats", "thumbs", "--jsn"], "--json", id="a misspelt option"),
        pytest.param(["add"], "QUEUE", id="an argument that is missing"),
        pytest.param(["lease", "thumbs", "--count", "many"], "many", id="a number that is none"),
        pytest.param(["lease", "thumbs", "--for", "30x"], "write a duration", id="a duration that is none"),
    ],
)
def test_a_command_line_that_cant_be_understood_is_exit_code_2(
    towline: Commands, arguments: list[str], told: str
) -> None:
    answer = towline(*arguments)
    assert answer.code == 2
    assert told in answer.err
    assert "--help` shows" in answer.err


def test_work_starts_without_what_only_people_need() -> None:
    program = (
        "import sys; from orchestrator.cli import main; code = main(['work', '--help']);"
        "heavy = {'rich', 'yaml', 'uvicorn', 'starlette', 'psutil', 'docker', 'kombu', 'pydantic'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_example_in_deploy_is_right(towline: Commands) -> None:
    told = towline("check", "-f", str(ROOT / "deploy" / "towline.yaml"), "--import")
    assert (told.code, told.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("", "towline.yaml:1:1: nothing is set here", id="empty"),
        pytest.param("# store: sqlite:///a.db\n\n", "towline.yaml:1:1: nothing is set here", id="comments alone"),
        pytest.param("---\n", "towline.yaml:1:1: nothing is set here", id="a document of nothing"),
        pytest.param("queues: {thumbs: {}}\npools:\n", "towline.yaml:2:1: pools: no pool is named", id="cut off"),
    ],
)
def test_a_file_that_sets_nothing_is_a_mistake_wherever_it_is_read(towline: Commands, text: str, place: str) -> None:
    (towline.folder / "towline.yaml").write_text(text)
    told = towline("check")
    assert (told.code, told.out) == (78, "")
    assert place in told.err
    if "pools" not in text:  # the queue's half is all that these read
        assert place in towline("queues").err


STORE_ALONE = "store: {}\nqueues: {{thumbs: {{}}}}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(STORE_ALONE.format("redis://h/x"), "1:1: store: .*a database is a number from 0: 'x'", id="redis"),
        pytest.param(STORE_ALONE.format("redis://h:port/0"), "1:1: store: .*a port is a number", id="a port"),
        pytest.param(
            STORE_ALONE.format("{url: redis://h/x, password_env: SECRET}"),
            "1:9: store.url: .*a database is a number from 0: 'x'",
            id="redis with a password elsewhere",
        ),
        pytest.param(
            STORE_ALONE.format("postgresql://me@db/work?mode=ro"),
            "1:1: store: .*it has an unknown option mode",
            id="postgresql",
        ),
        pytest.param(STORE_ALONE.format("'sqlite:///:memory:'"), "1:1: store: .*is written memory:", id="in memory"),
        pytest.param(STORE_ALONE.format("sqlite:///a.db?mode=ro"), "1:1: store: .*it has no options", id="an option"),
        pytest.param(STORE_ALONE.format("sqlite:///~/a.db"), "1:1: store: .*~ is a folder for a shell", id="home"),
        pytest.param(STORE_ALONE.format("sqlite:////~/a.db"), "1:1: store: .*~ is a folder for a shell", id="home /~"),
        pytest.param("log: ~/events.jsonl", "1:1: log: ~/events.jsonl: ~ is a folder for a shell", id="log"),
        pytest.param("server: {listen: unix:~/q.sock}", "server.listen: unix:~/q.sock: ~ is a folder", id="a socket"),
        pytest.param(
            "server: {tokens: [{role: admin, token_file: ~/token}]}",
            r"server\.tokens\[0\]\.token_file: ~/token: ~ is a folder",
            id="a token",
        ),
        pytest.param("supervisor: {state_dir: ~/state}", "supervisor.state_dir: ~/state: ~ is a folder", id="state"),
        pytest.param(SETTINGS.replace("tasks:app", "tasks.py:app"), "write tasks:app", id="a file's name"),
        pytest.param(SETTINGS.replace("tasks:app", "./my/tasks.py"), "write my.tasks:app", id="a path"),
    ],
)
def test_what_a_start_would_stumble_over_is_told_by_check_where_it_stands(
    towline: Commands, text: str, told: str
) -> None:
    (towline.folder / "towline.yaml").write_text(text)
    answer = towline("check")
    assert answer.code == 78
    assert re.search(f"towline.yaml:.*{told}", answer.err), answer.err
    assert len([line for line in answer.err.splitlines() if "towline.yaml:" in line and "note:" not in line]) == 1


def test_a_tilde_in_what_others_read_is_theirs(towline: Commands) -> None:
    text = SETTINGS.replace('app: "tasks:app"', 'command: [sh, -c, "~/work"], env: {HOME_OF: ~/x}')
    assert text != SETTINGS
    (towline.folder / "towline.yaml").write_text(text)
    assert towline("check").code == 0


def test_a_file_that_says_so_sets_nothing(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text("{}")
    assert towline("check").code == 0


def test_check_imports_an_app_unless_asked_not_to(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("tasks:app", "absent:app"))
    assert towline("check", "--no-import").code == 0
    told = towline("check")
    assert told.code == 78
    assert "pools.resize.app: can't import absent" in told.err


def test_handlers_lie_beside_a_link_to_the_settings_or_beside_the_file_itself(towline: Commands) -> None:
    link, real = towline.folder / "etc" / "towline.yaml", towline.folder / "towline.yaml"
    link.parent.mkdir()
    link.symlink_to(real)
    assert towline("check", "-f", str(link), "--import").code == 0
    pool = load_project(link).pools["resize"]
    assert (pool.cwd, pool.app_folder) == (str(link.parent), str(real.parent))
    assert Launch("memory:", "", "", 1.0).environment("w", pool)["TOWLINE_APP_FOLDER"] == str(real.parent)
    assert load_project(real).pools["resize"].app_folder is None
    (towline.folder / "tasks.py").unlink()
    refused = towline("check", "-f", str(link), "--import")
    assert refused.code == 78
    assert f"looked for in {link.parent}, then in {real.parent} and on PYTHONPATH" in refused.err


def test_workers_are_replaced_when_a_link_to_the_settings_leads_elsewhere(towline: Commands) -> None:
    link = towline.folder / "current.yaml"
    pools = []
    for release in ("one", "two"):
        (towline.folder / release).mkdir()
        (towline.folder / release / "towline.yaml").write_text(SETTINGS)
        link.unlink(missing_ok=True)
        link.symlink_to(towline.folder / release / "towline.yaml")
        pools.append(load_project(link).pools)
    (change,) = changes_between(*pools)
    assert (change.replaces, [setting.split(":")[0] for setting in change.settings]) == (True, ["app_folder"])


def test_check_says_what_is_allowed_but_may_not_be_meant(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("pools:", "  spare: {}\npools:"))
    notes = cast("dict[str, list[str]]", towline("check", "--json").json)["notes"]
    assert any("spare: no pool works on this queue" in note for note in notes)
    assert any("max_leases" in note for note in notes)


def test_config_tells_where_each_value_comes_from(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWLINE_DURABILITY", "relaxed")
    monkeypatch.setenv("TOWLINE_STORE", "sqlite:///other.db")
    told = towline("config", "--origin", "--json", "--store", "memory:")
    found = {str(row["setting"]): row for row in cast("list[dict[str, object]]", told.json)}
    assert (found["store"]["value"], found["store"]["origin"]) == ("memory:", "--store")
    assert (found["durability"]["value"], found["durability"]["origin"]) == ("relaxed", "TOWLINE_DURABILITY")
    assert (found["pools.resize.slo"]["value"], found["pools.resize.slo"]["origin"]) == ("30s", "towline.yaml:6:61")
    assert found["lifecycle"]["origin"] == "default"


def test_config_and_check_show_no_secret(towline: Commands) -> None:
    file = towline.folder / "towline.yaml"
    file.write_text(SETTINGS.replace("slo: 30s", "slo: 30s, env: {CDN: hunter2, LEVEL: hunter2}"))
    shown = towline("config", "--json")
    assert "hunter2" not in shown.out + towline("config").out
    found = {str(row["setting"]): row["value"] for row in cast("list[dict[str, object]]", shown.json)}
    assert found["pools.resize.env.CDN"] == "***"
    file.write_text(
        SETTINGS.replace("sqlite:///queue.db", "redis://:hunter2@").replace("30s", "30s, env: {PIN: 4711081}")
    )
    refused = towline("check")
    assert (refused.code, "pools.resize.env.PIN" in refused.err) == (78, True)
    assert "hunter2" not in refused.err
    assert "4711081" not in refused.err


def test_a_mistake_in_a_variable_names_the_variable(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWLINE_DURABILITY", "sometimes")
    told = towline("check")
    assert told.code == 78
    assert "TOWLINE_DURABILITY: must be" in told.err


def test_the_schema_takes_what_the_program_takes(towline: Commands) -> None:
    import yaml
    from jsonschema_rs import validator_for

    schema = json.loads(towline("schema").out)
    takes = validator_for(schema)
    assert takes.is_valid(yaml.safe_load(SETTINGS))
    assert takes.is_valid(yaml.safe_load((ROOT / "deploy" / "towline.yaml").read_text()))
    assert not takes.is_valid({"pools": {"a": {"queue": "q", "slow": "3s"}}})
    assert not takes.is_valid({"queues": {"q": {"lease": "3 s"}}})


def test_plan_says_what_a_supervisor_would_do_and_does_nothing(towline: Commands) -> None:
    towline("add", "thumbs", "a", "--tag", "resize")
    (plan,) = cast("list[dict[str, object]]", towline("plan", "--json").json)
    assert (plan["pool"], plan["current"], plan["target"], plan["spawn"]) == ("resize", 0, 1, 1)
    assert not (towline.folder / ".towline").exists()


def test_plan_starts_one_worker_for_a_task_that_two_pools_take(towline: Commands) -> None:
    another = '  another: {queue: thumbs, app: "tasks:app", slo: 30s, priority: 1}\n'
    (towline.folder / "towline.yaml").write_text(SETTINGS + another)
    towline("add", "thumbs", "a", "--tag", "resize")
    plans = cast("list[dict[str, object]]", towline("plan", "--json").json)
    assert [(plan["pool"], plan["spawn"]) for plan in plans] == [("resize", 0), ("another", 1)]
    assert plans[0]["notes"] == ["counts 1 place of pool another, which takes its tasks"]


def test_commands_over_the_fleet_say_when_there_is_none(towline: Commands) -> None:
    for name in (["pools"], ["workers"], ["why", "resize"], ["top", "--once"]):
        told = towline(*name)
        assert told.code == 69
        assert "towline up" in told.err


def test_pools_and_workers_are_shown_with_what_decided_them(shown: Commands) -> None:
    pools = shown("pools")
    assert pools.out.splitlines()[1].split()[:6] == ["resize", "1", "3", "1", "9", "1"]
    assert "no supervisor is running" in pools.err
    workers = shown("workers")
    assert "resize-abc" in workers.out
    assert "64 MiB" in workers.out
    assert "ended by SIGKILL" in workers.out
    top = shown("top", "--once")
    assert "resize-abc" in top.out
    assert "no supervisor is running" in top.out


@pytest.mark.parametrize(("count", "told"), [(0, ""), (1, "1 suspect waits"), (2, "2 suspects wait")])
def test_suspects_that_wait_are_told_where_there_are_some(
    shown: Commands, monkeypatch: pytest.MonkeyPatch, count: int, told: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    files = StateDir(shown.folder / ".towline")
    snapshot = cast("dict[str, dict[str, dict[str, object]]]", files.read_snapshot())
    snapshot["pools"]["resize"]["suspects"] = count
    files.write_snapshot(snapshot)
    for words in (["pools"], ["top", "--once"]):
        out = " ".join(shown(*words).out.split())
        assert told in out
        assert (" suspect" in out) == bool(told)
    found = cast("dict[str, dict[str, dict[str, object]]]", shown("pools", "--json").json)
    assert found["pools"]["resize"]["suspects"] == count


def test_why_tells_the_decision_its_limits_and_its_numbers(shown: Commands) -> None:
    told = shown("why", "resize")
    assert "1 -> 3" in told.out
    assert "limited by max: max 3" in told.out
    assert "without that it would have 5 workers" in told.out
    assert "a task takes 0.50 s" in told.out
    unknown = shown("why", "resise")
    assert unknown.code == 66
    assert "did you mean 'resize'" in unknown.err


def test_doctor_finds_nothing_bad_here_and_says_what_is_missing(towline: Commands) -> None:
    told = towline("doctor", "--json")
    found = {one["check"]: one for one in cast("list[dict[str, str]]", told.json)}
    assert told.code == 0, told.out
    assert found["settings"]["level"] == "ok"
    assert found["sync"]["level"] in ("ok", "warn")
    assert (found["server"]["level"], found["supervisor"]["level"]) == ("warn", "warn")


def shown_with(shown: Commands, **pools: dict[str, object] | None) -> StateDir:
    """The supervisor's folder, in which it has shown what is wrong with its pools."""
    files = StateDir(shown.folder / ".towline")
    snapshot = cast("dict[str, dict[str, dict[str, object]]]", files.read_snapshot())
    for name, concern in pools.items():
        snapshot["pools"][name] = {**snapshot["pools"]["resize"], "concern": concern}
    files.write_snapshot(snapshot)
    return files


LATE: dict[str, object] = {"kinds": ["late", "at_max"], "why": "a task has waited for 45 s, the slo is 30 s"}
BROKEN: dict[str, object] = {
    "kinds": ["no_starts"],
    "why": "the last start failed; last failure, 9 s ago: w1 crashed: code 3",
}


def findings_about(towline: Commands, check: str) -> tuple[int, list[tuple[str, str]]]:
    told = towline("doctor", "--json")
    found = cast("list[dict[str, str]]", told.json)
    return told.code, [(each["level"], each["found"]) for each in found if each["check"] == check]


def test_doctor_names_pools_that_are_late_or_start_nobody_with_the_cause(shown: Commands) -> None:
    assert findings_about(shown, "pools") == (0, []), "no supervisor is alive: what it showed is history"
    with shown_with(shown, resize=None).locked():
        assert findings_about(shown, "pools") == (0, [("ok", "none is late, at its max, or without starts")])
        shown_with(shown, resize=LATE)
        code, found = findings_about(shown, "pools")
        late = "resize: late, at its max: a task has waited for 45 s, the slo is 30 s"
        assert (code, found) == (0, [("warn", late)])
        shown_with(shown, other=BROKEN)
        code, found = findings_about(shown, "pools")
        assert (code, found[1][0]) == (1, "bad")
        assert (
            found[1][1] == "other: starts no worker: the last start failed; last failure, 9 s ago: w1 crashed: code 3"
        )


@pytest.mark.parametrize(
    ("phase", "level", "found"),
    [
        ("leading", "ok", "alive (leading), "),
        ("standby", "ok", "another supervisor leads its store"),
        ("stopping", "warn", "it has given up its lead, and ends with its workers"),
    ],
)
def test_doctor_names_what_a_supervisor_is_about(shown: Commands, phase: str, level: str, found: str) -> None:
    files = shown_with(shown, resize=None)
    files.write_snapshot({**(files.read_snapshot() or {}), "phase": phase})
    with files.locked():
        code, told = findings_about(shown, "supervisor")
    assert code == 0
    assert [(one, found in words) for one, words in told] == [(level, True)]


def test_doctor_names_workers_of_a_folder_that_was_made_anew(shown: Commands) -> None:
    files = shown_with(shown, resize=None)
    identity = identity_of_folder(files.path)
    marks = {
        "TOWLINE_WORKER": "w1",
        "TOWLINE_POOL": "resize",
        "TOWLINE_SPEC": "1",
        "TOWLINE_STATE_DIR": str(files.path),
    }
    for theirs, is_named in (("an earlier folder", True), (identity, False)):
        environment = {**marks, "TOWLINE_STATE_ID": theirs}
        with subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True) as worker, files.locked():
            try:
                eventually(lambda: worker_processes(str(files.path)))
                _, told = findings_about(shown, "supervisor")
            finally:
                worker.kill()
        named = f"1 worker (pid {worker.pid}) of an earlier folder {files.path} still runs"
        assert (("warn", named) in told) == is_named


def test_health_names_such_pools_and_stays_well(shown: Commands) -> None:
    with shown_with(shown, resize=LATE, other=BROKEN).locked():
        told = shown("health", "--part", "supervisor")
        assert told.code == 0, told.err
        assert told.out.splitlines() == [
            "supervisor: leading",
            "pool resize: late, at its max: a task has waited for 45 s, the slo is 30 s",
            "pool other: starts no worker: the last start failed; last failure, 9 s ago: w1 crashed: code 3",
        ]
        found = cast("dict[str, dict[str, object]]", shown("health", "--part", "supervisor", "--json").json)
        assert found["supervisor"]["concerns"] == [{"pool": "resize", **LATE}, {"pool": "other", **BROKEN}]
        shown_with(shown, resize=None, other=None)
        assert shown("health", "--part", "supervisor").out == "supervisor: leading\n"


def test_pools_and_top_tell_how_late_the_leases_of_the_last_hour_began(
    shown: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "P99/SLO" in shown("pools").out
    files = StateDir(shown.folder / ".towline")
    snapshot = cast("dict[str, dict[str, dict[str, object]]]", files.read_snapshot())
    waited = {"leases": 812, "p99_over_slo": 3.217, "worst_over_slo": 9.5}
    snapshot["pools"]["resize"]["waited"] = waited
    files.write_snapshot(snapshot)
    for words in (["pools"], ["top", "--once"]):
        assert " 30 s 3.22 deadline" in " ".join(shown(*words).out.split())
    found = cast("dict[str, dict[str, dict[str, object]]]", shown("pools", "--json").json)
    assert found["pools"]["resize"]["waited"] == waited


def finding_about_the_store(towline: Commands) -> tuple[object, str]:
    told = towline("doctor", "--json")
    (found,) = [each for each in told.json if each["check"] == "store"]  # type: ignore[attr-defined]
    return found["level"], found["found"]


def test_doctor_tells_of_files_that_others_may_read_of_a_lost_file_and_of_a_second_name(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text("store: sqlite:///link.db\nqueues: {work: {}}\n")
    (towline.folder / "link.db").symlink_to("data.db")
    data, log = towline.folder / "data.db", towline.folder / "data.db-wal"
    assert towline("add", "work", "x").code == 0
    level, found = finding_about_the_store(towline)
    assert (level, str(data) in found) == ("ok", True)
    data.with_name("data.db-lock").chmod(0o644)
    level, found = finding_about_the_store(towline)
    assert (level, "data.db-lock" in found) == ("warn", True)
    data.with_name("second.db").hardlink_to(data)
    level, found = finding_about_the_store(towline)
    assert (level, "2 names" in found) == ("bad", True)
    data.unlink()
    log.write_bytes(b"changes")
    level, found = finding_about_the_store(towline)
    assert (level, log.name in found) == ("bad", True)


def test_doctor_calls_wrong_settings_bad(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text("queues: [")
    told = towline("doctor")
    assert told.code == 1
    assert "bad" in told.out


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_is_a_script_of_the_shell(towline: Commands, shell: str) -> None:
    told = towline("completion", shell)
    assert told.code == 0
    assert "_TOWLINE_COMPLETE" in told.out


def test_tab_completes_commands(tmp_path: Path) -> None:
    program = {"_TOWLINE_COMPLETE": "bash_complete", "COMP_WORDS": "towline que", "COMP_CWORD": "1"}
    told = run_program(folder=tmp_path, environment=program)
    assert told.out == "plain,queues\n"
