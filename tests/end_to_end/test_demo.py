"""The demo, whole and short; and the small pieces it counts with."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

import run
from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.demo import left_by_earlier_demos
from orchestrator.demo.fleet_process import workers_seen
from orchestrator.demo.library import Module, find_modules, read_module
from orchestrator.demo.pages import highlight, index_page, module_page
from orchestrator.demo.record import DemoRecord, quantile, twice
from orchestrator.demo.run_state import DemoRun
from orchestrator.demo.runner import Demo
from orchestrator.demo.script import (
    MIN_SECONDS,
    TRIAL,
    Script,
    due_seconds,
    recorded_shape,
    script_of,
    settings_text,
    slo_for,
)
from orchestrator.settings_file import parse
from queue_core.clock import Instant
from tests.support.commands import ROOT, Commands, program_environment

SOURCE = '''\
"""Does <things>.

At length.
"""
import os.path
from . import near
from ..far import away

class Thing(Base):
    """A thing & more."""
    def act(self): return "<b>" if self else 1
    def _hidden(self): ...

async def run(): ...
'''


class Links(HTMLParser):
    """Collects where a page leads to, and what it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links |= {value for name, value in attrs if name == "href" and value}


def a_module(folder: Path, name: str = "pack.mod") -> Module:
    path = folder / "mod.py"
    path.write_text(SOURCE)
    return read_module(name, path)


def test_a_module_is_read_for_what_it_imports_and_defines(tmp_path: Path) -> None:
    module = a_module(tmp_path, "far.pack.mod")
    assert module.imports == ("far.far", "far.pack", "os.path")
    assert [(item.kind, item.name, item.summary) for item in module.definitions] == [
        ("class", "Thing", "A thing & more."),
        ("method", "Thing.act", ""),
        ("function", "run", ""),
    ]
    assert Module.from_json(module.to_json()) == module


def test_a_page_escapes_what_a_source_says_and_links_what_is_known(tmp_path: Path) -> None:
    module = a_module(tmp_path)
    page = module_page(module, SOURCE, known=frozenset({"os.path"}))
    links = Links()
    links.feed(page)
    assert links.links == {"index.html#library", "os.path.html", "style.css"}
    assert "Does &lt;things&gt;." in page
    assert '<span class="s">&quot;&lt;b&gt;&quot;</span>' in page
    assert "pack.mod" in index_page([module], python="3.11")


@pytest.mark.parametrize("source", ["x = (1,\n", "'''open", "a\n\x0cb = 1\n", "\tif\n", ""])
def test_a_source_that_is_cut_anywhere_is_shown_whole(source: str) -> None:
    import html
    import re

    assert html.unescape(re.sub(r"</?span[^>]*>", "", highlight(source))) == source


def test_the_standard_library_is_found_here() -> None:
    names = [name for name, _ in find_modules()]
    assert {"json", "json.decoder", "asyncio.base_events"} <= set(names)
    assert len(names) > 300
    assert not any(name.startswith(("test.", "site-packages")) for name in names)


def test_arrivals_keep_their_shape_whatever_the_length() -> None:
    times = due_seconds([1, 0, 3], tasks=8, feed_seconds=30.0)
    assert [sum(1 for at in times if low <= at < low + 10) for low in (0, 10, 20)] == [2, 0, 6]
    assert times == sorted(times)
    assert len(due_seconds(recorded_shape(), tasks=638, feed_seconds=48.0)) == 638
    with pytest.raises(ValueError, match="at least one arrival"):
        due_seconds([0, 0], tasks=1, feed_seconds=1.0)


def test_a_short_demo_takes_a_share_of_the_modules() -> None:
    modules = [(f"m{number}", Path("m.py")) for number in range(100)]
    assert len(script_of(modules, [1], seconds=60.0).modules) == 100
    script = script_of(modules, [1], seconds=MIN_SECONDS)
    assert (len(script.modules), script.tasks) == (50, 101)


def test_the_settings_of_the_demo_are_right(tmp_path: Path) -> None:
    text = settings_text(tmp_path, listen="unix:/tmp/q.sock", rest_seconds=0.1)
    project = parse(text, name="towline.yaml", directory=tmp_path)
    assert list(project.pools) == ["parse", "render"]
    assert not project.notes


def a_record(*events: tuple[str, str, str, int]) -> DemoRecord:
    record = DemoRecord()
    for name, task, worker, at in events:
        record.take({"event": name, "task": task, "worker": worker, "at": at, "tag": "t", "waited_seconds": 0.5})
    return record


def test_a_task_that_was_acknowledged_and_never_finished_is_lost() -> None:
    record = a_record(("task.added", "a", "", 1), ("task.deleted", "a", "w", 2), ("task.died", "b", "w", 3))
    assert record.lost({"a", "b", "c"}) == {"c"}


def test_a_restart_is_measured_from_the_death_to_the_next_lease() -> None:
    record = a_record(("task.leased", "a", "w1", 1_000_000), ("lease.released", "a", "w1", 2_100_000))
    assert record.restarted_seconds("w1", Instant(2_000_000)) is None
    record.take({"event": "task.leased", "task": "a", "worker": "w2", "at": 2_300_000})
    assert record.restarted_seconds("w1", Instant(2_000_000)) == 0.3
    assert record.restarted_seconds("w9", Instant(2_000_000)) is None
    assert record.busy() == ["w2"]
    assert record.busy(besides=["w2"]) == []


def test_figures_are_counted_as_they_are_named() -> None:
    assert twice(["a", "b", "a", "a"]) == 1
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([], 0.5) == 0.0
    assert quantile([7.0], 0.95) == 7.0


@pytest.mark.parametrize(("start", "slo"), [(0.4, 5), (1, 8), (2.6, 21), (30, 60)])
def test_what_is_promised_follows_what_a_start_takes(start: float, slo: float) -> None:
    assert slo_for(start) == slo


def test_what_a_start_is_measured_by_can_be_loaded_from_any_folder(tmp_path: Path) -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", TRIAL], cwd=tmp_path, env=program_environment(), capture_output=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr.decode()


def test_the_demo_grows_survives_a_kill_finishes_and_shrinks_to_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "demo", "--for", "20s", "--json", "--dir", str(folder)],
        cwd=tmp_path,
        env=program_environment(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    outcome = json.loads(done.stdout.decode().splitlines()[-1])
    modules = json.loads((folder / "modules.json").read_text())
    assert outcome["added"] == outcome["done"] == 2 * len(modules) + 1
    assert (outcome["lost"], outcome["dead"], outcome["final_workers"]) == (0, 0, 0)
    assert outcome["killed"] >= 1
    assert outcome["duplicated"] <= outcome["killed"]
    assert outcome["restarted_seconds"] is not None
    assert outcome["peak_workers"] >= 2
    assert 0 <= outcome["wait_p50"] <= outcome["wait_p95"]
    assert outcome["decisions"] > 0
    links = Links()
    links.feed(Path(outcome["report"]).read_text())
    assert {f"{name}.html" for name in modules} <= links.links
    assert all((folder / "report" / link).is_file() for link in links.links)
    assert "killed " in done.stderr.decode()
    assert "\x1b" not in done.stderr.decode()
    assert "of 20 s: " in done.stderr.decode()


class LateEyes:
    """A view, and a fleet that is seen by nobody until the view was told that all tasks are finished."""

    sees = False

    def update(self, run: DemoRun) -> None:
        self.sees = run.is_done

    def workers(self, fleet: int) -> dict[str, int]:
        return workers_seen(fleet) if self.sees else {}


def test_it_waits_for_the_last_worker_though_none_was_there_when_it_last_looked(tmp_path: Path) -> None:
    eyes = LateEyes()
    script = Script(1.0, (("json", Path(json.__file__)),), (0.0,), rest_seconds=0.01, kill_at_seconds=3600.0)
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        listen = f"unix:{folder}/queue.sock"
        outcome = Demo(
            script, tmp_path, listen=listen, clock=SystemMonotonicClock(), view=eyes, seen=eyes.workers
        ).run()
    assert outcome.is_good
    assert (outcome.done, outcome.final_workers) == (script.tasks, 0)
    assert outcome.peak_workers >= 1


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    told = Commands(tmp_path, capsys)("demo", "--dir", str(tmp_path))
    assert told.code == 73
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert Commands(tmp_path, capsys)("demo", "--for", "1s").code == 2


def test_folders_of_earlier_demos_are_named_with_what_removes_them(tmp_path: Path) -> None:
    mine, other = tmp_path / "towline-demo-new", tmp_path / "elsewhere"
    mine.mkdir()
    other.mkdir()
    assert left_by_earlier_demos(tmp_path, besides=mine) == ""
    for name in ("towline-demo-a", "towline-demo-b"):
        (tmp_path / name / "report").mkdir(parents=True)
        (tmp_path / name / "report" / "page.html").write_text("x" * 600_000)
    (tmp_path / "towline-demo-file").write_text("no folder")
    named = left_by_earlier_demos(tmp_path, besides=mine)
    assert named.startswith(f"2 earlier demos left 1.1 MiB in {tmp_path}: `rm -r {tmp_path}/towline-demo-*`")
    assert named.endswith("removes them, and this report")
    assert left_by_earlier_demos(tmp_path, besides=other).endswith(" removes them")


@pytest.mark.parametrize("kind", list(run.KINDS))
def test_run_py_says_how_much_it_installs(kind: str) -> None:
    assert re.fullmatch("[0-9]+ packages", run.packages_of(kind))


class EndingStream(io.StringIO):
    """A stderr that closes a pipe once something was written."""

    def __init__(self, writer: int) -> None:
        super().__init__()
        self._writer = writer

    def write(self, text: str) -> int:
        if not self.getvalue():
            os.close(self._writer)
        return super().write(text)


def test_run_py_says_what_it_waits_for() -> None:
    reader, writer = os.pipe()
    stream = EndingStream(writer)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=reader) as process:
        os.close(reader)
        with contextlib.redirect_stderr(stream):
            assert run.wait(process, "pip to unpack", every_seconds=0.02) == 0
    assert stream.getvalue().startswith("run.py: waiting for pip to unpack, 0 s so far\n")


def test_run_py_says_what_it_does_without_doing_it() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / "run.py"), "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    assert "demo" in done.stdout
    assert "test" in done.stdout


@pytest.mark.parametrize(
    ("hook", "tried_again"),
    [
        pytest.param("", True, id="a test failed"),
        pytest.param("def pytest_runtest_logreport(report): raise OSError(28, 'full')", False, id="the run broke down"),
    ],
)
def test_run_py_tries_failed_tests_again_and_no_run_that_broke_down(
    tmp_path: Path, hook: str, tried_again: bool
) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): assert False")
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import pytest_sessionfinish\n{hook}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert run.is_of_failed_tests(tmp_path / ".pytest_cache" / "v" / "towline" / "exit-status") is tried_again
