"""Templates of pools: which pool has one, when it is renewed, and when it is given up."""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.runtime import ApplicationReport, SpawnRequest
from orchestrator.runtimes import template_process
from orchestrator.runtimes.template_process import LIVING, ForkedWorker, TemplateState
from orchestrator.runtimes.templates import (
    IMPORT_SECONDS,
    KEPT_SECONDS,
    LOOK_AGAIN_SECONDS,
    MAX_FAILED_FORKS,
    MAX_IDLE,
    MAX_IMPORTING,
    RETRY_SECONDS,
    Templates,
)
from orchestrator.state.private_files import identity_of_folder
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.template_bench import REPOSITORY, open_descriptors

APP: Final = "from queue_core.worker.app import App\napp = App()\n"
CHANGES: Final = 10
UNSAFE: Final = f"import socket\nheld = socket.socketpair()\n{APP}"


@dataclass
class TemplatesStage:
    """The templates of one supervisor at a time that the test sets."""

    folder: Path
    templates: Templates
    now: float = 1000.0
    forked: list[ForkedWorker] = field(default_factory=list)

    def write(self, text: str = APP) -> None:
        (self.folder / "tasks.py").write_text(text)

    def request(self, pool: str = "resize", worker: str = "w1", **settings: object) -> SpawnRequest:
        spec: PoolSpec = a_pool(name=pool, app="tasks:app", cwd=str(self.folder), **settings)
        marks = {"TOWLINE_WORKER": worker, "TOWLINE_POOL": pool, "TOWLINE_SPEC": spec.digest()}
        return SpawnRequest(worker, spec, marks)

    def environment(self, request: SpawnRequest, **more: str) -> Mapping[str, str]:
        own = {"PYTHONPATH": str(REPOSITORY), "TOWLINE_URL": "memory:", "TOWLINE_APP": "tasks:app"}
        return {"PATH": os.environ["PATH"], **own, **request.variables, **request.environment, **more}

    def fork(self, request: SpawnRequest, **more: str) -> bool:
        """Ask for a worker; return whether it was forked."""
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            forked = self.templates.fork(
                request, self.environment(request, **more), log_descriptor=log, now=Monotonic(self.now)
            )
        finally:
            os.close(log)
        if forked is not None:
            self.forked.append(forked)
            forked.abandon()
            os.waitpid(forked.pid, 0)
        return forked is not None

    def state(self, request: SpawnRequest, **more: str) -> TemplateState | None:
        return self.templates.prepare(request, self.environment(request, **more), now=Monotonic(self.now))

    def settled(self, request: SpawnRequest, **more: str) -> TemplateState | None:
        """Wait until the pool's template has imported."""
        eventually(lambda: self.state(request, **more) not in ("importing", None), seconds=60)
        return self.state(request, **more)

    def pid(self) -> int:
        """Return the process of the only template."""

        def only() -> set[int]:
            return found if len(found := self.collected()) == 1 else set()

        (pid,) = eventually(only)
        return pid

    def collected(self) -> set[int]:
        """Collect templates that have ended, and return the processes of the others."""
        self.templates.collect()
        return self.templates.pids()

    def maintain(self, *busy: str) -> None:
        self.templates.maintain(busy=busy, now=Monotonic(self.now))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[TemplatesStage]:
    (tmp_path / "state").mkdir()

    def open_log(name: str) -> int:
        return os.open(tmp_path / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    templates = Templates(tmp_path / "state", open_log=open_log)
    stage = TemplatesStage(tmp_path, templates)
    stage.write()
    yield stage
    templates.close()
    assert templates.pids() == set()


def test_a_start_never_waits_for_its_template(stage: TemplatesStage) -> None:
    request = stage.request()
    assert not stage.fork(request)
    assert stage.settled(request) == "ready"
    assert stage.fork(request)


@pytest.mark.parametrize(
    ("text", "start", "is_forked"),
    [
        pytest.param(APP, "auto", True, id="safe"),
        pytest.param(APP, "exec", False, id="asked to execute"),
        pytest.param(UNSAFE, "auto", False, id="unsafe"),
        pytest.param(UNSAFE, "fork", True, id="unsafe, and asked to fork"),
        pytest.param("1 / 0", "fork", False, id="it can't be imported"),
    ],
)
def test_workers_are_forked_where_that_is_safe_or_asked_for(
    stage: TemplatesStage, text: str, start: str, *, is_forked: bool
) -> None:
    stage.write(text)
    request = stage.request(start=start)
    stage.settled(request)
    assert stage.fork(request) == is_forked


def test_a_command_has_no_template(stage: TemplatesStage) -> None:
    pool = a_pool(app=None, command=["sleep", "1"])
    assert not stage.fork(SpawnRequest("w1", pool, {"TOWLINE_WORKER": "w1"}))
    assert stage.templates.pids() == set()


@pytest.mark.parametrize("start", ["auto", "fork"])
def test_a_variable_with_the_workers_name_is_not_the_templates(stage: TemplatesStage, start: str) -> None:
    """An import that reads it would read another worker's: it is executed, unless the pool insists."""
    stage.write(f"import os\nassert 'OUT' not in os.environ\n{APP}")
    requests = [stage.request(worker=name, start=start, env={"OUT": "to {worker}.csv"}) for name in ("w1", "w2")]
    if start == "auto":
        with capture_logs() as logs:
            assert [stage.fork(request) for request in requests] == [False, False]
        (told,) = [entry for entry in logs if entry["event"] == events.TEMPLATE_UNSAFE]
        assert "env.OUT" in told["reason"]
        assert stage.templates.pids() == set()
        return
    assert stage.settled(requests[0]) == "ready"
    pid = stage.pid()
    assert [stage.fork(request) for request in requests] == [True, True]
    assert stage.pid() == pid


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        pytest.param({"env": {"COLOUR": "blue"}}, {}, id="a variable of the pool"),
        pytest.param({}, {"PROXY": "http://proxy"}, id="a variable of the supervisor"),
        pytest.param({}, {"TOWLINE_TOKEN": "other"}, id="the token"),
    ],
)
def test_a_template_is_renewed_when_what_its_workers_share_has_changed(
    stage: TemplatesStage, settings: dict[str, object], more: dict[str, str]
) -> None:
    first = stage.request()
    assert stage.settled(first) == "ready"
    pid = stage.pid()
    changed = stage.request(**settings)
    assert not stage.fork(changed, **more)
    assert stage.settled(changed, **more) == "ready"
    assert stage.pid() != pid
    assert stage.fork(changed, **more)


def test_another_worker_of_the_pool_has_the_same_template(stage: TemplatesStage) -> None:
    assert stage.settled(stage.request()) == "ready"
    pid = stage.pid()
    assert stage.fork(stage.request(worker="w2"))
    assert stage.pid() == pid


def test_a_changed_application_is_imported_anew_at_once(stage: TemplatesStage) -> None:
    request = stage.request()
    stage.settled(request)
    stage.write(f"{APP}# changed")
    with capture_logs() as logs:
        assert not stage.fork(request)
    assert [entry["event"] for entry in logs if entry["event"] != events.TEMPLATE_READY] == [events.TEMPLATE_OUTDATED]
    assert stage.settled(request) == "ready"
    assert stage.fork(request)


def test_a_template_that_has_failed_is_tried_again_after_a_pause(stage: TemplatesStage) -> None:
    stage.write("1 / 0")
    request = stage.request()
    assert stage.settled(request) == "failed"
    stage.write()
    stage.now += RETRY_SECONDS - 0.001
    assert stage.state(request) == "failed"
    stage.now += 0.001
    assert stage.settled(request) == "ready"


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.write(2, b'no licence\\n'); os._exit(3)", "code 3; its last line: no licence"),
        ("os._exit(0)", "code 0"),
        ("os.execvp('sh', ['sh', '-c', 'echo become a shell; exit 7'])", "code 7; its last line: become a shell"),
    ],
)
def test_a_template_that_ends_by_itself_says_how_and_with_which_last_words(
    stage: TemplatesStage, end: str, told: str
) -> None:
    (stage.folder / "resize.template.log").write_text("what an earlier one wrote\n")
    stage.write(f"import os\n{end}")
    request = stage.request()
    with capture_logs() as logs:
        assert stage.settled(request) == "ended"
        eventually(lambda: stage.maintain("resize") or logs)
    assert [(entry["event"], entry["reason"]) for entry in logs] == [(events.TEMPLATE_LOST, f"it exited with {told}")]


def test_the_last_words_of_a_template_show_no_secret(stage: TemplatesStage) -> None:
    stage.write("import os\nos.write(2, b'can not reach postgresql://app:hunter22@db/shop'); os._exit(1)")
    request = stage.request()
    with capture_logs() as logs:
        assert stage.settled(request) == "ended"
        eventually(lambda: stage.maintain("resize") or logs)
    assert "can not reach" in logs[0]["reason"] and "hunter22" not in logs[0]["reason"]


def test_a_template_that_is_killed_young_is_tried_again_after_a_pause(stage: TemplatesStage) -> None:
    request = stage.request()
    stage.settled(request)
    os.kill(stage.pid(), signal.SIGKILL)
    with capture_logs() as logs:
        eventually(lambda: stage.state(request) == "ended")
        assert not stage.fork(request)
    assert [entry["event"] for entry in logs] == [events.TEMPLATE_LOST]
    stage.now += RETRY_SECONDS
    assert stage.settled(request) == "ready"


def test_a_template_that_is_killed_old_is_replaced_at_once(stage: TemplatesStage) -> None:
    request = stage.request()
    stage.settled(request)
    stage.now += RETRY_SECONDS
    os.kill(stage.pid(), signal.SIGKILL)
    eventually(lambda: stage.state(request) in LIVING)
    assert stage.settled(request) == "ready"


def test_a_template_whose_forks_fail_is_given_up(stage: TemplatesStage) -> None:
    stage.write(f"import os\nos.register_at_fork(after_in_child=lambda: os._exit(1))\n{APP}")
    request = stage.request(start="fork")
    stage.settled(request)
    for _ in range(MAX_FAILED_FORKS):
        assert stage.state(request) in ("ready", "unsafe")
        assert not stage.fork(request)
    assert stage.state(request) == "ended"
    assert stage.templates.take_orphans() == set()


def test_a_template_that_stands_still_is_given_up(stage: TemplatesStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "FORK_SECONDS", 0.2)
    request = stage.request()
    stage.settled(request)
    os.kill(stage.pid(), signal.SIGSTOP)
    assert not stage.fork(request)
    assert stage.state(request) == "ended"
    eventually(lambda: stage.templates.pids() == set())


def test_a_template_is_kept_while_its_pool_has_workers_and_for_a_while_after(stage: TemplatesStage) -> None:
    request = stage.request()
    stage.settled(request)
    stage.now += 2 * KEPT_SECONDS
    stage.maintain("resize")
    stage.now += KEPT_SECONDS
    stage.maintain()
    assert len(stage.templates.pids()) == 1
    stage.now += 0.001
    stage.maintain()
    eventually(lambda: stage.collected() == set())


def test_an_import_that_does_not_end_is_given_up(stage: TemplatesStage) -> None:
    stage.write(f"import time\ntime.sleep(600)\n{APP}")
    request = stage.request()
    assert stage.state(request) == "importing"
    stage.now += IMPORT_SECONDS
    stage.maintain("resize")
    assert stage.state(request) == "importing"
    stage.now += 0.001
    stage.maintain("resize")
    eventually(lambda: stage.collected() == set())


def test_few_templates_import_at_the_same_time_and_the_others_follow(stage: TemplatesStage) -> None:
    requests = [stage.request(f"pool{number}") for number in range(2 * MAX_IMPORTING)]
    for request in requests:
        assert not stage.fork(request)
    assert len(stage.templates.pids()) == MAX_IMPORTING
    names = [request.pool.name for request in requests]

    def all_have_begun() -> bool:
        stage.maintain(*names)
        return len(stage.templates.pids()) == len(requests)

    eventually(all_have_begun, seconds=60)
    for request in requests:
        assert stage.settled(request) == "ready"


def test_the_states_are_written_for_other_commands(stage: TemplatesStage) -> None:
    stage.write(UNSAFE)
    request = stage.request()
    stage.settled(request)
    stage.maintain("resize")
    assert "unsafe" in (stage.folder / "state" / "templates.json").read_text()


def test_an_application_that_is_not_safe_to_fork_has_no_template_until_it_is_looked_at_again(
    stage: TemplatesStage,
) -> None:
    stage.write(UNSAFE)
    request = stage.request()
    with capture_logs() as logs:
        stage.settled(request)
        assert not stage.fork(request)
        eventually(lambda: stage.templates.collect() or stage.templates.pids() == set())
        stage.write(APP)
        stage.now += LOOK_AGAIN_SECONDS - 1
        stage.maintain("resize")
        assert not stage.fork(request)
        assert stage.templates.pids() == set(), "it was looked at just now"
        stage.now += 1
        assert not stage.fork(request)
        assert stage.settled(request) == "ready"
        assert stage.fork(request)
    assert [entry["event"] for entry in logs] == [events.TEMPLATE_UNSAFE, events.TEMPLATE_READY]


def test_hazards_that_are_found_again_are_logged_once_and_other_settings_are_looked_at_at_once(
    stage: TemplatesStage,
) -> None:
    stage.write(UNSAFE)
    request = stage.request()
    with capture_logs() as logs:
        for _ in range(2):
            stage.settled(request)
            assert not stage.fork(request)
            stage.now += LOOK_AGAIN_SECONDS
        assert [entry["event"] for entry in logs] == [events.TEMPLATE_UNSAFE]
    stage.settled(request, COLOUR="red")
    assert not stage.fork(request, COLOUR="red")
    forced = stage.request(start="fork")
    stage.settled(forced, COLOUR="red")
    assert stage.fork(forced, COLOUR="red")


def test_no_descriptor_or_process_is_left_by_40_renewals(stage: TemplatesStage) -> None:
    stage.state(stage.request())
    before, descriptors = stage.pid(), open_descriptors()
    for number in range(40):
        assert stage.state(stage.request(), COLOUR=str(number)) == "importing"
        stage.templates.collect()
    assert stage.pid() != before
    assert open_descriptors() == descriptors


def reported(stage: TemplatesStage, request: SpawnRequest, *, since: float = 0.0, **more: str) -> ApplicationReport:
    """Wait for the report on the application of the request's pool."""

    def report() -> ApplicationReport | None:
        environment = stage.environment(request, **more)
        return stage.templates.application(request, environment, since=Monotonic(since), now=Monotonic(stage.now))

    return eventually(report, seconds=60)


@pytest.mark.parametrize(("start", "is_kept"), [("auto", True), ("exec", False)])
def test_the_report_on_an_application_names_the_newest_file(
    stage: TemplatesStage, start: str, *, is_kept: bool
) -> None:
    (stage.folder / "prices.py").touch()
    stage.write(f"import prices\n{APP}")
    request = stage.request(start=start)
    written = (stage.folder / "tasks.py").stat().st_ctime
    found = reported(stage, request)
    assert (found.failure, found.changed_file) == ("", str(stage.folder / "tasks.py"))
    assert found.changed_at == pytest.approx(written)
    eventually(lambda: len(stage.collected()) == is_kept)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        pytest.param("import nothing_of_this_name\n", "No module named 'nothing_of_this_name'", id="missing import"),
        pytest.param("def work(:\n", "tasks.py:1: invalid syntax", id="syntax"),
        pytest.param("1 / 0\n", "tasks.py:1: ZeroDivisionError", id="it raises"),
        pytest.param("application = 1\n", "it has no 'app'", id="no such attribute"),
        pytest.param(APP, "no handler for 'resize' in queue 'thumbs'", id="no handler"),
        pytest.param(
            f"{APP}@app.task(queue='thumbs', tag='other')\ndef work(task): ...\n",
            "no handler for 'resize'",
            id="no handler for a tag",
        ),
    ],
)
def test_the_report_says_why_workers_cannot_use_an_application_until_it_is_mended(
    stage: TemplatesStage, text: str, failure: str
) -> None:
    stage.write(text)
    request = stage.request(start="exec")
    variables = {"TOWLINE_QUEUE": "thumbs", "TOWLINE_TAGS": '["resize"]'}
    found = reported(stage, request, **variables)
    assert failure in found.failure
    assert reported(stage, request, **variables) == found
    eventually(lambda: not stage.collected())
    stage.write(f"{APP}@app.task(queue='thumbs', tag='resize')\ndef work(task): ...\n")
    assert reported(stage, request, **variables).failure == ""


def test_the_report_has_the_schedules_of_the_applications_functions(stage: TemplatesStage) -> None:
    lines = "@app.periodic(every='1h', name='hourly')\n@app.task(queue='thumbs', tag='t')\ndef work(task): ...\n"
    stage.write(f"{APP}{lines}")
    found = reported(stage, stage.request(start="exec"))
    assert found.schedules is not None
    assert [(one["name"], one["queue"], one["tag"], one["every"]) for one in found.schedules] == [
        ("hourly", "thumbs", "t", 3600.0)
    ]


def test_arguments_that_do_not_fit_a_schedules_function_are_a_mistake_of_the_application(stage: TemplatesStage) -> None:
    lines = "@app.periodic(every='1h')\n@app.function(queue='thumbs')\ndef report(day: str): ...\n"
    stage.write(f"{APP}{lines}")
    found = reported(stage, stage.request(start="exec"))
    assert "schedule 'report'" in found.failure
    assert found.schedules is None


def test_an_application_that_did_not_change_is_not_imported_again(stage: TemplatesStage) -> None:
    request = stage.request()
    first = reported(stage, request)
    pid = stage.pid()
    stage.now += 60
    assert reported(stage, request, since=stage.now) == first
    (stage.folder / "tasks.py").chmod(0o640)  # no other content
    assert reported(stage, request, since=stage.now) == first
    assert stage.pid() == pid
    stage.write(f"{APP}1 + 1\n")
    assert reported(stage, request, since=stage.now).changed_at > first.changed_at
    assert stage.pid() != pid
    assert stage.fork(request)


def test_a_failure_is_looked_into_again_when_asked(stage: TemplatesStage) -> None:
    stage.write(f"import os\nassert os.path.exists('{stage.folder}/data')\n{APP}")
    request = stage.request()
    assert "AssertionError" in reported(stage, request).failure
    (stage.folder / "data").touch()
    stage.now += 1
    assert "AssertionError" in reported(stage, request).failure
    assert reported(stage, request, since=stage.now).failure == ""


def test_an_import_during_which_its_file_was_written_is_done_again(stage: TemplatesStage) -> None:
    new = f"{APP}NEW = True\n"
    stage.write(f"import pathlib\n{APP}pathlib.Path(__file__).write_text({new!r})\n")
    request = stage.request()
    assert reported(stage, request).failure == ""
    assert stage.settled(request) == "ready"
    assert stage.fork(request)


def test_an_application_that_writes_to_its_files_at_each_import_is_reported_all_the_same(stage: TemplatesStage) -> None:
    stage.write(f"import pathlib\n{APP}path = pathlib.Path(__file__)\npath.write_text(path.read_text() + '#')\n")
    assert reported(stage, stage.request()).failure == ""


def test_few_templates_are_kept_for_pools_without_workers(stage: TemplatesStage) -> None:
    names = [f"pool{number}" for number in range(MAX_IDLE + 2)]
    for name in names:
        stage.now += 1
        reported(stage, stage.request(name))
    stage.maintain("pool0")
    eventually(lambda: len(stage.collected()) == MAX_IDLE + 1)
    assert not stage.fork(stage.request("pool1"))  # unused for the longest time
    assert stage.fork(stage.request("pool0"))


def test_changes_of_an_application_leave_no_process_and_no_descriptor(stage: TemplatesStage) -> None:
    request = stage.request()
    reported(stage, request)
    before = open_descriptors()
    for number in range(CHANGES):
        stage.now += 10
        stage.write(APP + "#" * (number + 1))  # of another size: bytecode counts as current by whole seconds and size
        assert reported(stage, request, since=stage.now).failure == ""
        assert stage.fork(request)
    stage.pid()  # the only one
    assert open_descriptors() == before


def test_a_folder_that_took_the_place_of_ours_gets_no_states_of_our_templates(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    identity = identity_of_folder(folder)
    templates = Templates(folder, open_log=lambda _: os.open(os.devnull, os.O_WRONLY), identity=identity)
    templates.write()
    assert (folder / "templates.json").exists()
    shutil.rmtree(folder)
    identity_of_folder(folder)
    later = Templates(folder, open_log=lambda _: os.open(os.devnull, os.O_WRONLY), identity=identity)
    later.write()
    assert not (folder / "templates.json").exists()


def test_a_template_as_old_as_its_workers_may_become_imports_anew_before_it_forks_further_ones(
    stage: TemplatesStage,
) -> None:
    stage.write()
    request = stage.request(recycle={"age": 600.0})
    assert stage.settled(request) == "ready"
    first = stage.pid()
    stage.now += 599.0
    assert stage.fork(request)
    stage.now += 1.0
    with capture_logs() as logs:
        assert not stage.fork(request)
    (told,) = [entry for entry in logs if entry["event"] == events.TEMPLATE_OUTDATED]
    assert told["reason"] == "it is older than recycle.age (600 s)"
    assert stage.settled(request) == "ready"
    assert stage.pid() != first
    assert stage.fork(request)
