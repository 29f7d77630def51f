"""Celery's commands, django-celery-beat and Flower on Towline: `python3 -m tests.celery.commands`, C13.

Each step is a command, typed as its page says, and a pattern of what it answers. Flower and django-celery-beat are
fetched into `.celery/commands`, as nothing else of the project needs them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually
from tests.support.servers import a_server
from tests.support.stores import engines

if TYPE_CHECKING:
    from tests.celery.claims import Claim, Conditions, Figure

PROGRAM: Final = "tests.queue_core.celery.shop"
NODE: Final = "one@host"
SECONDS: Final = 60.0
PACKAGES: Final = ROOT / ".celery" / "commands"
WANTED: Final = (
    "flower==2.2.0",
    "tornado==6.6.1",
    "humanize==4.17.0",
    "pytz==2026.6",
    "django-celery-beat==2.9.0",
    "django-timezone-field==7.2.2",
    "python-crontab==3.4.0",
    "cron-descriptor==2.2.1",
)


@dataclass(frozen=True, slots=True)
class CommandStep:
    """A command of Celery's, and what it answers."""

    arguments: str
    pattern: str


STEPS: Final = (
    CommandStep("status", r"1 node online"),
    CommandStep("inspect ping", r"pong"),
    CommandStep("inspect active", r"- empty -"),
    CommandStep("inspect registered", r"shop\.add"),
    CommandStep("inspect stats", r'"pid": \d+'),
    CommandStep("inspect scheduled", r"1 node online"),
    CommandStep("inspect reserved", r"1 node online"),
    CommandStep("inspect active_queues", r"'name': 'celery'"),
    CommandStep("inspect conf", r"task_acks_late"),
    CommandStep("control pool_grow 1", r"pool will grow"),
    CommandStep("control pool_shrink 1", r"pool will shrink"),
    CommandStep("control rate_limit tests.queue_core.celery.shop.total 10/s", r"new rate limit set"),
    CommandStep("control time_limit tests.queue_core.celery.shop.total 10 20", r"time limits set"),
    CommandStep("control add_consumer extra_q", r"add consumer extra_q"),
    CommandStep("control cancel_consumer extra_q", r"no longer consuming from extra_q"),
    CommandStep("control enable_events", r"events already enabled"),
    CommandStep("list bindings", r"celery +celery +celery"),
    CommandStep("call tests.queue_core.celery.shop.add -a [1,2] --queue=idle.q", r"[0-9a-f-]{36}"),
    CommandStep("amqp queue.declare idle.q", r"messages:1"),
    CommandStep("purge -f -Q idle.q", r"Purged 1 message"),
)
"""Commands that a worker with `-E` and two processes answers, in this order."""

RunCelery = Callable[[Sequence[str]], str]


def failed_steps(run: RunCelery, steps: Sequence[CommandStep] = STEPS) -> list[str]:
    """Type each command; return those that answered otherwise, with what they said."""
    failed: list[str] = []
    for step in steps:
        answer = run(step.arguments.split())
        if not re.search(step.pattern, answer):
            failed.append(f"celery {step.arguments}: {answer.strip()[-200:]}")
    return failed


@dataclass
class CommandSite:
    """A server, and programs that have it as their broker."""

    folder: Path
    broker: str
    packages: Path | None = None
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(path) for path in (self.packages, ROOT, self.folder) if path is not None]
        own = {"SHOP_BROKER": self.broker, "SHOP_FOLDER": str(self.folder), "FLOWER_UNAUTHENTICATED_API": "true"}
        environment = {**program_environment(), **own, "PYTHONPATH": ":".join(paths)}
        return {name: value for name, value in environment.items() if name != "NO_COLOR"}  # `celery amqp` fails by it

    def run(self, arguments: Sequence[str], *, app: str = PROGRAM, **environment: str) -> str:
        """Run a command of Celery's to its end, and return all it printed."""
        return self.printed([sys.executable, "-m", "celery", "-A", app, *arguments], **environment)

    def printed(self, command: Sequence[str], **environment: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return done.stdout.decode() + done.stderr.decode()

    def start(self, *arguments: str, app: str = PROGRAM, **environment: str) -> Path:
        """Start a command that goes on; return its log."""
        log = self.folder / f"{len(self.running)}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "celery", "-A", app, *arguments]
            self.running.append(
                subprocess.Popen(
                    command, cwd=self.folder, env={**self.environment, **environment}, stdout=output, stderr=output
                )
            )
        return log

    def start_worker(self) -> Path:
        log = self.start("worker", "-c", "2", "-E", "-n", NODE, "-l", "INFO")
        eventually(lambda: " ready." in log.read_text())
        return log

    def end(self) -> None:
        """End the command that was started last."""
        process = self.running.pop()
        process.terminate()
        process.wait(SECONDS)

    def close(self) -> None:
        while self.running:
            self.end()


@contextmanager
def a_command_site(folder: Path, *, packages: Path | None = None) -> Iterator[CommandSite]:
    """Run a server for Celery's programs."""
    with a_server() as server:
        site = CommandSite(folder, f"towline+{server.url}", packages)
        try:
            yield site
        finally:
            site.close()


def events_are_dumped(site: CommandSite) -> None:
    """`celery events --dump` tells what becomes of a task."""
    log = site.start("events", "--dump")
    eventually(lambda: "heartbeat" in log.read_text())
    site.run(["call", f"{PROGRAM}.add", "-a", "[3,4]"])
    eventually(lambda: "task succeeded" in log.read_text())
    site.end()


def beat_ticks(site: CommandSite) -> None:
    """`celery beat` adds the tasks of its schedule, from the app's settings."""
    program = f"from {PROGRAM} import app\n"
    program += f"app.conf.beat_schedule = {{'t': {{'task': '{PROGRAM}.add', 'schedule': 0.5, 'args': (7, 8)}}}}\n"
    (site.folder / "ticking.py").write_text(program)
    log = site.start("beat", "-l", "INFO", "--schedule", "beat.db", app="ticking")
    eventually(lambda: log.read_text().count("Sending due task") > 1)
    site.end()
    _ran(site, "15")


def django_beat_ticks(site: CommandSite) -> None:
    """`django-celery-beat` adds the tasks of its schedule, from Django's database."""
    settings = "SECRET_KEY = 'x'\nUSE_TZ = True\nINSTALLED_APPS = ['django_celery_beat']\n"
    settings += "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'site.db'}}\n"
    (site.folder / "site_settings.py").write_text(settings)
    make = "import django; django.setup()\n"
    make += "from django_celery_beat.models import IntervalSchedule, PeriodicTask\n"
    make += "every = IntervalSchedule.objects.create(every=1, period='seconds')\n"
    make += f"PeriodicTask.objects.create(interval=every, name='t', task='{PROGRAM}.add', args='[20, 1]')\n"
    django = {"DJANGO_SETTINGS_MODULE": "site_settings"}
    site.printed([sys.executable, "-m", "django", "migrate"], **django)
    site.printed([sys.executable, "-c", make], **django)
    scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    log = site.start("beat", "-l", "INFO", "--scheduler", scheduler, **django)
    eventually(lambda: log.read_text().count("Sending due task") > 1)
    site.end()
    _ran(site, "21")


def multi_starts_and_stops(site: CommandSite) -> None:
    """`celery multi` starts nodes in the background, and stops them."""
    files = [f"--pidfile={site.folder}/%n.pid", f"--logfile={site.folder}/%n.log"]
    multi = [sys.executable, "-m", "celery", "multi"]
    nodes = ["m1", "m2", "-A", PROGRAM]
    site.printed([*multi, "start", *nodes, "-P", "solo", "-l", "INFO", *files])
    eventually(lambda: "3 nodes online" in site.run(["status"]))
    site.printed([*multi, "stopwait", *nodes, *files])
    eventually(lambda: "1 node online" in site.run(["status"]))


def messages_are_migrated(site: CommandSite) -> None:
    """`celery migrate` copies the messages of a Redis."""
    with engines.redis(site.folder) as redis:
        for number in range(3):
            site.run(["call", f"{PROGRAM}.add", "-a", f"[{number},30]"], SHOP_BROKER=redis.tcp_url)
        said = site.run(["migrate", "-t", "2", redis.tcp_url, site.broker])
        assert "Migrating task 3/3" in said, said
    _ran(site, "32")


def flower_shows_workers_and_tasks(site: CommandSite) -> None:
    """Flower's pages and API show workers and tasks, and add tasks; its page of brokers does not know ours."""
    port = engines.free_port()
    site.start("flower", "--address=127.0.0.1", f"--port={port}")
    eventually(lambda: NODE in json.loads(_fetched(port, "/api/workers") or "{}"))
    added = json.loads(_fetched(port, f"/api/task/async-apply/{PROGRAM}.add", data=b'{"args": [40, 2]}'))
    eventually(lambda: _task(port, added["task-id"]).get("result") == "42")
    assert NODE in _fetched(port, "/workers")
    assert PROGRAM in _fetched(port, f"/task/{added['task-id']}")
    site.end()


def shutdown_ends_the_worker(site: CommandSite) -> None:
    """`celery control shutdown` ends workers warmly."""
    site.run(["control", "shutdown"])
    assert site.running[0].wait(SECONDS) == 0


STORIES: Final = (
    events_are_dumped,
    beat_ticks,
    multi_starts_and_stops,
    messages_are_migrated,
    django_beat_ticks,
    flower_shows_workers_and_tasks,
    shutdown_ends_the_worker,
)


def _ran(site: CommandSite, result: str) -> None:
    log = site.folder / "0.log"
    eventually(lambda: re.search(rf"succeeded in [^ ]+: {result}$", log.read_text(), re.MULTILINE))


def _task(port: int, task: str) -> dict[str, object]:
    answer = _fetched(port, f"/api/task/info/{task}")
    found: dict[str, object] = json.loads(answer) if answer.startswith("{") else {}
    return found


def _fetched(port: int, path: str, data: bytes | None = None) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def fetched_packages() -> Path:
    """Return the folder with Flower and django-celery-beat, made if it is missing."""
    stamp = PACKAGES / ".installed"
    if not stamp.is_file() or stamp.read_text() != "\n".join(WANTED):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        subprocess.run([*command, "--target", str(PACKAGES), *WANTED], check=True)
        stamp.write_text("\n".join(WANTED))
    return PACKAGES


def measured(folder: Path) -> tuple[int, list[str]]:
    """Return how many commands and stories there are, and those that went wrong."""
    failed: list[str] = []
    with ExitStack() as stack:
        site = stack.enter_context(a_command_site(folder, packages=fetched_packages()))
        site.start_worker()
        failed += failed_steps(site.run)
        for story in STORIES:
            try:
                story(site)
            except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
                failed.append(f"{story.__name__}: {error}")
                while len(site.running) > 1:
                    site.end()
    return len(STEPS) + len(STORIES), failed


def claims() -> "list[Claim]":
    """Return this section's claims."""
    from tests.celery.claims import Claim

    return [Claim("C13", "Celery's commands, beat, django-celery-beat, Flower", _figure)]


def _figure(conditions: "Conditions") -> "Figure":
    from tests.celery.claims import Figure

    tried, failed = measured(conditions.folder)
    return Figure(f"{tried - len(failed)} of {tried}", f"{tried} of {tried}", not failed, tuple(failed))


def main() -> int:
    """Try them all; return 1 where one went wrong."""
    os.environ.pop("TOWLINE_URL", None)
    with tempfile.TemporaryDirectory(prefix="towline-celery-") as folder:
        tried, failed = measured(Path(folder))
    sys.stdout.write("\n     ".join([f"C13  {tried - len(failed)} of {tried}", *failed]) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
