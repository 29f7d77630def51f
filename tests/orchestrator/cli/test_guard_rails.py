"""What strangers type: too much, too little, misspelt, from elsewhere; each is told in a sentence."""

import ast
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from orchestrator.cli import command
from orchestrator.cli.commands.init import PROGRAM
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import QueueSpec
from tests.support.commands import ROOT, CommandResult, Commands

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues:
  thumbs: {lease: 1m, max_leases: 5}
pools:
  resize: {queue: thumbs, tags: [resize], app: "tasks:app", slo: 30s, workers: {max: 8}}
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


@pytest.fixture
def url() -> Iterator[str]:
    """A server with a queue in which nothing has happened."""
    server = ServerThread(MemoryStore(), ServeOptions(port=0))
    url = server.start()
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs", max_leases=5))
    queues.close()
    yield url
    server.stop()


def scaled_to(towline: Commands) -> int | None:
    override = StateDir(towline.folder / ".towline").read_overrides().get("resize")
    return None if override is None or override.scale is None else override.scale.workers


@pytest.mark.parametrize(
    "arguments", [["resize", "99"], ["resize", "9", "--for", "5m"], ["--for", "5m", "resize", "9"]]
)
def test_a_size_beyond_max_is_refused_and_names_the_way(towline: Commands, arguments: list[str]) -> None:
    told = towline("scale", *arguments)
    assert told.code == 65
    assert "more than max 8 of pool resize" in told.err
    assert "pools.resize.workers.max" in told.err and "--force" in told.err
    assert not (towline.folder / ".towline").exists()
    assert towline("scale", *arguments, "--force").code == 0
    assert scaled_to(towline) in (9, 99)


def test_the_max_is_that_of_the_pools_largest_hour(towline: Commands) -> None:
    schedule = "schedule: [{cron: '0 9 * * *', for: 8h, workers: {max: 20}}]"
    text = SETTINGS.replace("workers: {max: 8}", f"workers: {{max: 8}}, {schedule}")
    (towline.folder / "towline.yaml").write_text(text)
    assert towline("scale", "resize", "20").code == 0
    assert "more than max 20" in towline("scale", "resize", "21").err


@pytest.mark.parametrize("size", ["-1", "abc", "4.5", "-0.5"])
def test_what_is_no_size_is_told_with_the_value_the_limit_and_the_fix(towline: Commands, size: str) -> None:
    told = towline("scale", "resize", size)
    assert told.code == 2
    first, fix = told.err.splitlines()
    assert first == f"error: '{size}' is no number of workers: it must be a whole number from 0 to 8, the max of resize"
    assert fix == "next:  for example `towline scale resize 8`"


def test_no_force_gives_more_workers_than_any_pool_may_have(towline: Commands) -> None:
    assert "at most 10,000" in towline("scale", "resize", "10001", "--force").err


def test_towline_alone_is_its_help(towline: Commands) -> None:
    told = towline()
    assert (told.code, told.err) == (0, "")
    assert told.out == towline("--help").out == towline("help").out
    assert towline("help", "scale").out == towline("scale", "--help").out


def words(told: CommandResult) -> str:
    assert told.err.startswith("error: ")
    assert "Traceback" not in told.err
    return " ".join(told.err.split())


@pytest.mark.parametrize(
    ("line", "code", "nearest"),
    [
        pytest.param("add thumbs a --tags resize", 2, "--tag", id="an option"),
        pytest.param("ad thumbs a", 2, "did you mean `add`", id="a command"),
        pytest.param("add thumb a", 66, "there is no queue 'thumb', did you mean 'thumbs'?", id="a queue"),
        pytest.param("stats thumbss", 66, "did you mean 'thumbs'?", id="a queue that is looked at"),
        pytest.param("scale resise 3", 66, "there is no pool 'resise', did you mean 'resize'?", id="a pool"),
        pytest.param("pause --pool resise", 66, "did you mean 'resize'?", id="a pool to pause"),
        pytest.param("queues --url localhost:7878", 78, "did you mean http://localhost:7878?", id="a url"),
        pytest.param("queues --url localhost", 78, "did you mean http://localhost:7878?", id="a host"),
        pytest.param("queues --url htp://q:1", 78, "did you mean http://q:1?", id="a scheme of a server"),
        pytest.param("queues --store sqlit:///a.db", 78, "did you mean sqlite:///a.db?", id="a scheme of a store"),
        pytest.param("queues --store /srv/a.db", 78, "did you mean sqlite:////srv/a.db?", id="a path for a store"),
        pytest.param("export a.jsonl --store a.db", 78, "did you mean sqlite:///a.db?", id="a path to export"),
        pytest.param("queues --store sqlite:////nowhere/a.db", 78, "the folder /nowhere does not exist", id="a folder"),
        pytest.param("queues -f .", 66, "is a folder: . next: did you mean towline.yaml?", id="settings' folder"),
        pytest.param("up empty", 66, "name the file in it, such as empty/towline.yaml", id="another folder"),
        pytest.param("simulate x.csv -f .", 66, "did you mean towline.yaml?", id="settings' folder, simulated"),
        pytest.param("lease thumbs --wait '5 s'", 2, "did you mean 5s?", id="a duration with a space"),
        pytest.param("lease thumbs --wait '2 min 5 sec'", 2, "did you mean 2m5s?", id="a duration in words"),
        pytest.param("scale resize 2 --for 1x", 2, "1x: write a duration such as 500ms, 30s", id="no unit"),
    ],
)
def test_a_typing_mistake_is_told_with_the_nearest_right_word(
    towline: Commands, line: str, code: int, nearest: str
) -> None:
    (towline.folder / "empty").mkdir()
    told = towline(*shlex.split(line))
    assert (told.code, told.out) == (code, "")
    assert nearest in words(told)


@pytest.mark.parametrize("slo", ["5 s", "30 seconds"])
def test_a_duration_in_the_settings_is_told_so_too(towline: Commands, slo: str) -> None:
    (towline.folder / "towline.yaml").write_text(SETTINGS.replace("slo: 30s", f"slo: {slo}"))
    assert f"did you mean {slo.partition(' ')[0]}s?" in towline("check").err


LISTINGS = (
    ("events", "no events of task cat-9 in queue thumbs are known", ["--queue", "thumbs", "--task", "cat-9"]),
    ("events", "no events of task cat-9 are known", ["--task", "cat-9"]),
    ("peek", "no tasks in thumbs", ["thumbs"]),
    ("peek", "no dead tasks in thumbs with the tag a or b", ["thumbs", "--state", "dead", "--tag", "a", "--tag", "b"]),
    ("peek", "no tasks in thumbs named cat-9", ["thumbs", "--named", "cat-9"]),
    ("stats", "no tags in thumbs: it has had no tasks", ["thumbs", "--tags"]),
)


@pytest.mark.parametrize(("name", "said", "arguments"), LISTINGS, ids=lambda value: " ".join(value)[:30])
def test_an_empty_answer_says_so(towline: Commands, url: str, name: str, said: str, arguments: list[str]) -> None:
    told = towline(name, *arguments, "--url", url)
    assert (told.code, told.out) == (0, "")
    assert told.err == f"{said}\n"


def test_a_settings_file_that_is_named_goes_before_the_environment(
    towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWLINE_URL", "http://127.0.0.1:1")
    assert towline("queues").code == 69
    assert towline("queues", "-f", "towline.yaml").code == 0
    assert towline("queues", "-f", "towline.yaml", "--url", "http://127.0.0.1:1").code == 69


def test_a_server_without_a_supervisor_explains_no_pool(towline: Commands, url: str) -> None:
    told = towline("why", "resize", "--url", url)
    assert told.code == 66
    assert "there is no queue and no task 'resize'" in told.err
    assert "give the URL of its `towline up`" in " ".join(told.err.split()) and "did you mean" not in told.err


def test_no_events_of_the_whole_server_is_said_too(towline: Commands) -> None:
    server = ServerThread(MemoryStore(), ServeOptions(port=0))
    told = towline("events", "--url", server.start())
    server.stop()
    assert (told.code, told.out) == (0, "")
    assert told.err.startswith("no events")


@pytest.mark.parametrize("arguments", [["--queue", "thumb"], ["--queue", "thumb", "--task", "cat-9"]])
def test_events_of_no_queue_are_a_mistake(towline: Commands, url: str, arguments: list[str]) -> None:
    told = towline("events", *arguments, "--url", url)
    assert told.code == 66
    assert "did you mean 'thumbs'?" in told.err


def test_a_backtest_before_the_first_task_says_what_makes_the_log(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(f"{SETTINGS}log: events.jsonl\n")
    told = towline("backtest")
    assert told.code == 66
    assert "no task is recorded yet" in told.err and "towline up" in told.err


def every_command(made: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with its name as words."""
    if path:
        yield path, made
    if isinstance(made, click.Group):
        context = click.Context(made)
        for name in made.list_commands(context):
            inner = made.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, (*path, name))


EVERY_COMMAND = dict(every_command(command()))
PLACELESS = frozenset(
    (
        *("up", "serve", "supervise", "check", "config"),  # the settings file is their argument
        *("demo", "init", "schema", "completion", "bench", "migrate", "simulate"),  # of no server
        "console",  # serves pages until it is ended, also of a server that does not answer yet
    )
)


def takes(made: click.Command, option: str) -> bool:
    return any(option in parameter.opts for parameter in made.params)


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_every_command_works_from_any_folder_and_prints_json(towline: Commands, path: tuple[str, ...]) -> None:
    made = EVERY_COMMAND[path]
    assert takes(made, "--json")
    if path[0] in PLACELESS:
        return
    assert takes(made, "--file")
    told = towline(*path, "--url", "http://127.0.0.1:1")
    if "takes no --url" in told.err:  # one sentence, and what to do instead
        assert told.code == 2
        assert "next: " in told.err
    else:
        assert any("--url" in parameter.opts and not getattr(parameter, "hidden", False) for parameter in made.params)


FROM_ELSEWHERE = (
    *("queues", "stats thumbs", "peek thumbs", "pause thumbs", "resume thumbs", "plan", "scale resize 2", "check"),
    *("drain", "undrain", "why-died", "pause --pool resize", "resume --pool resize", "config", "export x.jsonl"),
    *("add thumbs x --tag resize", "why _1", "events --task _1", "purge thumbs --yes", "queues storage", "backup b.db"),
)


def test_commands_work_from_any_folder_by_the_settings_file(
    towline: Commands, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(towline.folder / "towline.yaml")
    (towline.folder / "tasks.py").write_text(PROGRAM)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    for line in FROM_ELSEWHERE:
        told = towline(*line.split(), "-f", file)
        assert told.code == 0, (line, told.err)
    assert not (elsewhere / "queue.db").exists() and not (elsewhere / ".towline").exists()


def towline_lines(example: str) -> Iterator[list[str]]:
    """Yield the arguments of each `towline` in a shell's line."""
    text = re.sub(r"'[^']*'", lambda found: re.sub(r"[()|;]", ".", found[0]), example.partition("  #")[0])
    for part in re.split(r"\|\|?|&&|;|\$\(|\)", text):
        given = shlex.split(part.strip().strip('"'), comments=True)
        while given and re.fullmatch(r"[A-Z_]+=.*", given[0]):
            del given[0]
        if "towline" in given:
            rest = given[given.index("towline") + 1 :]
            yield rest[: next((at for at, word in enumerate(rest) if word.startswith((">", "<"))), len(rest))]


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_the_examples_of_a_commands_help_are_command_lines(towline: Commands, path: tuple[str, ...]) -> None:
    for name in ("worker.py", "main.py"):
        (towline.folder / name).touch()
    examples = getattr(EVERY_COMMAND[path], "examples", ())
    found = [line for example in examples if not example.startswith("#") for line in towline_lines(example)]
    assert found
    for line in found:
        try:
            parse(command(), line)
        except click.BadParameter as error:
            assert "does not exist" in error.format_message(), line


def parse(made: click.Command, line: list[str]) -> None:
    context = made.make_context(made.name or "", list(line), resilient_parsing=isinstance(made, click.Group))
    if isinstance(made, click.Group):
        rest = [*context._protected_args, *context.args]
        if rest:
            _, inner, arguments = made.resolve_command(context, rest)
            assert inner is not None
            parse(inner, arguments)


HINT = re.compile(r"(?<![\w/.])((?:docs|examples|deploy|tests)/[\w./-]+|run\.py|[\w/]*doc/[\w./-]+\.md)")


def test_no_text_names_a_path_that_an_installed_package_lacks() -> None:
    missing = []
    for package in ("queue_core", "orchestrator"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            docstrings = {
                id(node.body[0].value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.body
                and isinstance(node.body[0], ast.Expr)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                    if node.value.startswith("towline "):  # an example: the path of a reader's own
                        continue
                    if "a checkout" in node.value:  # which has them
                        continue
                    missing += [
                        f"{path.relative_to(ROOT)}: {named}"
                        for named in HINT.findall(node.value)
                        if not named.startswith(("queue_core/", "orchestrator/")) or not (ROOT / named).is_file()
                    ]
    assert missing == []
