"""One template: what it reports, what it forks, and how it ends."""

import os
import resource
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from orchestrator.runtimes import procfs, template_process
from orchestrator.runtimes.template_process import ForkFailedError, TemplateProcess
from tests.support.eventually import eventually
from tests.support.fleet.template_bench import TemplateBench, open_descriptors, reported_to_end, template_bench

APP: Final = "from queue_core.worker.app import App\napp = App()\n"
AFTER_FORK: Final = """
import os, sys
from queue_core.worker.app import App
def __getattr__(name):
    if name != "app":
        raise AttributeError(name)
    if "SCRIPT" in os.environ:
        print({say}, flush=True)
        os._exit(7)
    return App()
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TemplateBench]:
    with template_bench(tmp_path) as bench:
        yield bench


def told_by(bench: TemplateBench, say: str, **more: str) -> str:
    """Return what a forked worker says of itself; it exits with 7."""
    bench.write(AFTER_FORK.format(say=say))
    template = bench.ready("tasks:app")
    worker = bench.fork(template, **more)
    before = bench.log.read_text()
    worker.send_go()
    assert reported_to_end(worker) == 7
    return bench.log.read_text().removeprefix(before).strip()


def has_begun(pid: int) -> bool:
    """Return whether a worker has become what its script says."""
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


# -- what it reports --------------------------------------------------------------------------------------------------


def test_a_template_that_has_imported_its_application_is_ready_and_says_how_long_it_took(bench: TemplateBench) -> None:
    bench.write(APP)
    template = bench.ready("tasks:app")
    assert (list(template.hazards), template.failure) == ([], "")
    assert template.import_seconds > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("import no_such_module\n", "no_such_module", id="a module that is not installed"),
        pytest.param("1 / 0\n", "tasks.py:1: ZeroDivisionError", id="an error in it"),
        pytest.param("application = 1\n", "it has no 'app'", id="no such attribute"),
        pytest.param("app = 1\n", "app is of type int, not an App", id="another thing"),
        pytest.param("raise SystemExit(3)\n", "SystemExit", id="it exits"),
        pytest.param("raise KeyboardInterrupt\n", "KeyboardInterrupt", id="it is interrupted"),
        pytest.param("raise RuntimeError('x' * 1_000_000)\n", "xxxx", id="an error longer than a message"),
    ],
)
def test_an_application_that_can_not_be_imported_is_told_with_its_reason(
    bench: TemplateBench, text: str, sentence: str
) -> None:
    bench.write(text)
    template = bench.ready("tasks:app", state="failed")
    assert sentence in template.failure
    eventually(template.collect)
    bench.nothing_is_left()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import os; os._exit(0)", id="exits"),
        pytest.param("import os; os.kill(os.getpid(), 11)", id="crashes"),
        pytest.param(
            "import os, socket, time\n"
            "paths = {n: f'/proc/self/fd/{n}' for n in range(3, 200)}\n"
            "links = {n: os.readlink(path) for n, path in paths.items() if os.path.islink(path)}\n"
            "socket.socket(fileno=next(n for n in links if 'socket' in links[n])).send(b'nonsense')\n"
            "time.sleep(600)",
            id="writes to the control socket",
        ),
    ],
)
def test_a_template_that_does_not_report_has_ended(bench: TemplateBench, text: str) -> None:
    bench.write(text)
    template = bench.ready("tasks:app", state="ended")
    template.end()
    bench.nothing_is_left()


def test_a_process_that_an_import_started_ends_with_its_template(bench: TemplateBench) -> None:
    """Also when it holds the control socket, so that the stream does not end."""
    bench.write("import os, time\nif os.fork() == 0: time.sleep(600)\n" + APP)
    template = bench.start("tasks:app")
    eventually(lambda: len(bench.processes()) > 1 and template.poll() != "importing", seconds=60)
    os.kill(template.pid, signal.SIGKILL)
    eventually(lambda: template.poll() == "ended")
    bench.nothing_is_left()


def test_a_template_ends_with_its_supervisors_end_of_the_socket(bench: TemplateBench) -> None:
    template = bench.ready()
    template._control.close()
    eventually(template.collect)
    bench.nothing_is_left()


def test_an_applications_own_end_is_for_workers_and_does_not_run_in_a_template(bench: TemplateBench) -> None:
    ended = bench.folder / "ended"
    bench.write(
        f"import atexit, pathlib, threading\natexit.register(pathlib.Path({str(ended)!r}).touch)\n{APP}"
        "threading.Thread(target=threading.Event().wait).start()\n"
    )
    template = bench.start("tasks:app")
    eventually(lambda: template.poll() in ("ready", "unsafe"), seconds=60)
    template._control.close()
    eventually(template.collect)
    assert not ended.exists()


def test_a_changed_file_is_noticed_at_the_next_fork(bench: TemplateBench) -> None:
    bench.write(APP)
    template = bench.ready("tasks:app")
    bench.write(f"{APP}# changed\n")
    with pytest.raises(ForkFailedError, match=r"tasks\.py has changed"):
        bench.fork(template)
    assert template.state == "outdated"
    bench.nothing_is_left()


# -- the worker that it forks -----------------------------------------------------------------------------------------


def test_a_forked_worker_is_our_child_leads_a_session_and_shows_its_variables(bench: TemplateBench) -> None:
    template = bench.ready()
    worker = bench.fork(template, COLOUR="blue", TOWLINE_SPEC="abc")
    stat = procfs.read_stat(worker.pid)
    assert stat is not None
    assert (stat.parent, stat.session, stat.start_ticks) == (os.getpid(), worker.pid, worker.start_ticks)
    shown = procfs.environment_of(worker.pid)
    assert shown is not None
    assert (shown["TOWLINE_WORKER"], shown["TOWLINE_SPEC"], shown["TOWLINE_URL"]) == ("w1", "abc", "memory:")
    assert b"COLOUR=blue" in Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    assert "TOWLINE_WORKER" not in (procfs.environment_of(template.pid) or {})
    worker.send_go()
    eventually(lambda: has_begun(worker.pid))
    os.kill(worker.pid, signal.SIGKILL)
    assert reported_to_end(worker) == -signal.SIGKILL
    bench.nothing_is_left()


@pytest.mark.parametrize(
    ("say", "told"),
    [
        pytest.param("sorted(map(int, os.listdir('/proc/self/fd')))[:-1]", "[0, 1, 2]", id="descriptors"),
        pytest.param("os.readlink('/proc/self/fd/0')", "/dev/null", id="standard input"),
        pytest.param("__import__('signal').pthread_sigmask(0, ())", "set()", id="no signal is blocked"),
        pytest.param(
            "sorted(name for name in os.environ if 'TEMPLATE_' in name)", "['TEMPLATE_BENCH']", id="variables"
        ),
        pytest.param("open('/proc/self/comm').read().strip()", "python3", id="name"),
        pytest.param("os.getpgid(0) == os.getsid(0) == os.getpid()", "True", id="group and session"),
        pytest.param(
            "open('/proc/self/cmdline').read().rstrip(chr(0)).split(chr(0))[1:]", "['-m', 'queue_core.worker']", id="ps"
        ),
        pytest.param("os.getcwd()", "{folder}", id="working directory"),
    ],
)
def test_a_forked_worker_is_like_an_executed_one(bench: TemplateBench, say: str, told: str) -> None:
    assert told_by(bench, say) == told.format(folder=bench.folder)


def test_variables_that_the_import_has_set_are_the_workers_too(bench: TemplateBench) -> None:
    after_fork = AFTER_FORK.format(say="os.environ['SHOP_SETTINGS_MODULE']")
    bench.write(f"import os\nos.environ.setdefault('SHOP_SETTINGS_MODULE', 'site.settings')\n{after_fork}")
    worker = bench.fork(bench.ready("tasks:app"))
    worker.send_go()
    assert reported_to_end(worker) == 7
    assert bench.log.read_text().endswith("site.settings\n")


def test_a_log_that_the_import_has_opened_is_written_by_the_workers_too(bench: TemplateBench) -> None:
    """Its number must not become another file's."""
    path = bench.folder / "application.log"
    after_fork = AFTER_FORK.format(say="file.write('from a worker\\n')")
    bench.write(f"file = open({str(path)!r}, 'a', buffering=1)\n{after_fork}")
    worker = bench.fork(bench.ready("tasks:app"))
    worker.send_go()
    assert reported_to_end(worker) == 7
    assert path.read_text() == "from a worker\n"


def test_variables_beyond_the_room_in_proc_are_the_workers_all_the_same(bench: TemplateBench) -> None:
    assert told_by(bench, "len(os.environ['LONG'])", LONG="x" * 100_000) == "100000"


def test_variables_beyond_a_message_are_refused_and_the_template_is_well(bench: TemplateBench) -> None:
    template = bench.ready()
    with pytest.raises(ForkFailedError, match="Message too long"):
        bench.fork(template, **{f"LONG_{number}": "x" * 100_000 for number in range(10)})
    assert template.poll() == "ready"
    bench.abandon(bench.fork(template))
    bench.nothing_is_left()


def test_a_working_directory_that_is_gone_is_said_and_the_template_is_well(bench: TemplateBench) -> None:
    template = bench.ready()
    with bench.log.open("ab") as log, pytest.raises(ForkFailedError, match="No such file or directory"):
        template.fork({"TOWLINE_WORKER": "w1"}, cwd=str(bench.folder / "gone"), log=log.fileno())
    assert template.poll() == "ready"
    bench.nothing_is_left()


def test_more_workers_than_select_knows_descriptors(bench: TemplateBench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this host allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    template = bench.ready()
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        worker = bench.fork(template)
        worker.send_go()
        os.kill(worker.pid, signal.SIGKILL)
        reported_to_end(worker)
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_without_room_for_descriptors_no_worker_is_started_and_the_template_is_well(
    bench: TemplateBench, spare: int
) -> None:
    template = bench.ready()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with bench.log.open("ab") as log:
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 40  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for _ in range(spare):
                os.close(held.pop())
            with pytest.raises(ForkFailedError):
                template.fork({"TOWLINE_WORKER": "w1"}, cwd=None, log=log.fileno())
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert template.poll() == "ready"
    bench.abandon(bench.fork(template))
    bench.nothing_is_left()


def test_a_template_without_room_for_descriptors_starts_no_worker(bench: TemplateBench) -> None:
    bench.write(f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))\n{APP}")
    template = bench.start("tasks:app")
    eventually(lambda: template.poll() != "importing", seconds=60)
    with pytest.raises(ForkFailedError):
        bench.fork(template)
    template.end()
    bench.nothing_is_left()


# -- crashes at each step ---------------------------------------------------------------------------------------------


def test_a_worker_that_is_not_let_go_ends_with_its_start(bench: TemplateBench) -> None:
    template = bench.ready()
    worker = bench.fork(template)
    worker.start.close()  # as the kernel does when the supervisor is killed
    assert reported_to_end(worker) == 0
    assert bench.log.read_text() == ""
    bench.nothing_is_left()


def test_workers_go_on_when_their_template_is_killed(bench: TemplateBench) -> None:
    template = bench.ready()
    waiting, begun = bench.fork(template), bench.fork(template, "w2")
    begun.send_go()
    os.kill(template.pid, signal.SIGKILL)
    eventually(template.collect)
    waiting.send_go()
    for worker in (waiting, begun):
        eventually(partial(has_begun, worker.pid))
        os.kill(worker.pid, signal.SIGTERM)
        assert reported_to_end(worker) == -signal.SIGTERM
    bench.nothing_is_left()


def test_a_killed_template_is_noticed_and_starts_no_worker(bench: TemplateBench) -> None:
    template = bench.ready()
    os.kill(template.pid, signal.SIGKILL)
    with pytest.raises(ForkFailedError):
        bench.fork(template)
    assert template.poll() == "ended"
    bench.nothing_is_left()


def test_a_worker_that_is_killed_before_it_is_let_go_has_an_exit_like_any_other(bench: TemplateBench) -> None:
    template = bench.ready()
    worker = bench.fork(template)
    os.kill(worker.pid, signal.SIGKILL)
    worker.send_go()
    assert reported_to_end(worker) == -signal.SIGKILL
    bench.nothing_is_left()


@pytest.mark.parametrize("step", ["between", "worker"])
def test_a_process_that_is_killed_while_it_forks_leaves_nothing_and_the_template_is_well(
    bench: TemplateBench, step: str
) -> None:
    template = bench.ready()
    before = open_descriptors()
    bench.fault.write_text(f"{step} kill")
    with pytest.raises(ForkFailedError):
        bench.fork(template)
    bench.fault.unlink()
    assert template.poll() == "ready"
    assert open_descriptors() == before
    bench.nothing_is_left()
    bench.abandon(bench.fork(template))


@pytest.mark.parametrize("step", ["template", "between", "worker"])
def test_a_process_that_stands_still_while_it_forks_is_given_up_and_ends(
    bench: TemplateBench, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process, "FORK_SECONDS", 0.5)
    template = bench.ready()
    before = open_descriptors()
    if step == "template":
        os.kill(template.pid, signal.SIGSTOP)
    else:
        bench.fault.write_text(f"{step} stop")
    with pytest.raises(ForkFailedError, match=r"did not fork within 0\.5 s"):
        bench.fork(template)
    assert template.poll() == "ended"
    bench.nothing_is_left()
    assert open_descriptors() == before - 1  # without its control socket


def test_an_orphan_that_comes_to_us_during_a_fork_is_told_of(bench: TemplateBench) -> None:
    """A daemon, say, whose parent ends in this very moment: without us it would stay a zombie for ever."""
    bench.write(
        "import os, signal\nfrom queue_core.worker.app import App\napp = App()\n"
        "def forked():\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0: os.execvp('sleep', ['sleep', '600'])\n"
        "        os._exit(0)\n"
        "first = []\n"
        "os.register_at_fork(before=lambda: first.append(1) or (len(first) == 1 and forked()))\n"
    )
    template = bench.ready("tasks:app")
    worker = bench.fork(template)
    orphans = eventually(lambda: template.orphans)
    assert worker.pid not in orphans
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    bench.abandon(worker)
    template.end()
    bench.nothing_is_left()


def test_no_descriptor_process_or_zombie_is_left_by_500_workers(bench: TemplateBench) -> None:
    template = bench.ready()
    bench.abandon(bench.fork(template))
    bench.collect()
    before = open_descriptors()
    for number in range(500):
        worker = bench.fork(template, f"w{number}", "exit 3")
        worker.send_go()
        assert reported_to_end(worker) == 3
    assert open_descriptors() == before


def test_a_template_that_was_never_asked_leaves_nothing(bench: TemplateBench) -> None:
    before = open_descriptors()
    with bench.log.open("ab") as log, pytest.raises(FileNotFoundError):
        TemplateProcess({}, cwd=str(bench.folder / "gone"), log=log.fileno())
    assert open_descriptors() == before
