"""C1: the classes of kombu's own integration tests, on Towline and, to compare, on Redis."""

import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.celery.claims import Claim, Conditions, Figure
from tests.celery.environments import environment_of, sources_of
from tests.celery.sites import a_plain_redis, a_served_store
from tests.support.stores.engines import free_port

FILE = Path(__file__).resolve().parent / "upstream" / "conformance.py"

WITHOUT_PORTS = ("-k", "not (switches_to_alternate or alias_alternate)")
"""Two tests of a list of brokers look at the connection's port, which a file does not have."""


@dataclass(frozen=True, slots=True)
class ClassesRun:
    """The tests of kombu's classes on one broker."""

    name: str
    passed: int
    ended: int
    short: tuple[str, ...]


def claims() -> list[Claim]:
    """Return this section's claims."""
    return [Claim("C1", "kombu's integration classes", measure)]


def measure(conditions: Conditions) -> Figure:
    """Run the classes on a server over each store, and over memory, on a file without a server, and on Redis."""
    with ExitStack() as stack:
        brokers = {}
        for store in ("memory", *conditions.stores):
            server = stack.enter_context(a_served_store(store, conditions.folder))
            brokers[store] = server.url.replace("http://", "towline://")
        brokers["sqlite without a server"] = f"towline+sqlite:///{conditions.folder}/alone.db"
        brokers["plain redis"] = stack.enter_context(a_plain_redis(conditions.folder)).tcp_url
        running = {
            name: start_classes(broker, conditions.folder, () if "+" not in broker else WITHOUT_PORTS)
            for name, broker in brokers.items()
        }
        runs = [ended_run(name, process) for name, process in running.items()]
    ours = runs[:-1]
    least = min(ours, key=lambda run: run.passed)
    notes = tuple(f"{run.name}: {run.passed} of {run.ended}; short: {', '.join(run.short) or 'none'}" for run in runs)
    is_met = all(run.passed == run.ended >= 40 for run in ours)
    return Figure(f"{least.passed} of {least.ended}; plain redis {runs[-1].passed}", "all, at least 40", is_met, notes)


def start_classes(broker: str, folder: Path, options: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start the tests on one broker; they wait more than they work, so several may run beside each other."""
    scheme = "redis" if broker.startswith("redis") else "towline"
    environment = environment_of("5.7", sources_of("kombu"))
    environment |= {"BROKER": broker, "NOBODY": f"{scheme}://127.0.0.1:{free_port()}"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-c", "/dev/null", "--rootdir", str(FILE.parent)]
    command += ["--noconftest", "-p", "no:cacheprovider", str(FILE), *options]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended_run(name: str, process: "subprocess.Popen[str]") -> ClassesRun:
    """Wait for the end, and return what passed."""
    text, _ = process.communicate()
    passed = re.findall(r"^PASSED \S+?::(\S+)", text, re.MULTILINE)
    short = re.findall(r"^(?:FAILED|ERROR) \S+?::(\S+)", text, re.MULTILINE)
    if not passed:
        raise AssertionError(text[-2000:])
    return ClassesRun(name, len(passed), len(passed) + len(short), tuple(short))
