"""C3: Celery's own integration tests, with Towline as the broker, and with Redis to compare; results in a Redis."""

import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.celery.claims import Claim, Conditions, Figure
from tests.celery.environments import UPSTREAM, environment_of, installed, sources_of
from tests.celery.sites import a_plain_redis, a_served_store
from tests.support.stores.engines import Engine

FILES = ("test_tasks", "test_canvas", "test_inspect", "test_worker")
LONGEST_TEST_SECONDS = 300
REGISTERED = Path(__file__).resolve().parent / "upstream" / "registered"


@dataclass
class UpstreamRun:
    """What became of Celery's tests on one broker."""

    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    output: str = ""


def claims() -> list[Claim]:
    """Return this section's claims."""
    return [Claim("C3", "Celery's integration tests", measure)]


def measure(conditions: Conditions) -> Figure:
    """Run them on a server over the first store and on Redis; what fails here alone runs again, alone."""
    with ExitStack() as stack:
        server = stack.enter_context(a_served_store(conditions.stores[0], conditions.folder))
        ours_results, engine = (stack.enter_context(a_plain_redis(conditions.folder)) for _ in range(2))
        sides = {
            "towline": (f"towline+{server.url}", ours_results),
            "redis": (f"{engine.tcp_url.rpartition('/')[0]}/3", engine),
        }
        tests = [f"t/integration/{name}.py" for name in FILES]
        running = [start_tests(*side, tests, conditions.folder) for side in sides.values()]
        with ThreadPoolExecutor() as readers:
            ours, compared = readers.map(ended_tests, running)
        doubtful = sorted(ours.failed - compared.failed)
        again = ended_tests(start_tests(*sides["towline"], doubtful, conditions.folder)) if doubtful else None
    alone = set() if again is None else ours.failed - compared.failed - again.passed
    text = f"{len(ours.passed)} passed, {len(ours.failed)} failed; plain redis {len(compared.passed)}"
    text += f" and {len(compared.failed)}; {len(alone)} fail here alone"
    notes = [f"here alone: {one}" for one in sorted(alone)]
    notes += [f"here, but not when run again: {one}" for one in doubtful if one not in alone]
    notes += [f"on Redis, too: {one}" for one in sorted(ours.failed & compared.failed)]
    return Figure(text, "none alone", bool(ours.passed) and not alone, tuple(notes))


def start_tests(broker: str, results: Engine, tests: Sequence[str], folder: Path) -> "subprocess.Popen[str]":
    """Start some of Celery's tests on a broker. Raises `NoEnvironmentError`.

    Args:
        results: the Redis of the results, for this run alone: tests keep notes in its database 0.
    """
    home = sources_of("celery")
    is_ours = broker.startswith("towline")
    environment = environment_of("5.7", installed(UPSTREAM), home, *([REGISTERED] if is_ours else []))
    environment |= {
        "TEST_BROKER": broker,
        "TEST_BACKEND": f"{results.tcp_url.rpartition('/')[0]}/1",
        "REDIS_HOST": str(results.host),
        "REDIS_PORT": str(results.port),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-c", str(home / "pyproject.toml"), "--rootdir", str(home)]
    command += ["-p", "celery.contrib.pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--timeout", str(LONGEST_TEST_SECONDS), *tests]
    return subprocess.Popen(
        command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended_tests(process: "subprocess.Popen[str]") -> UpstreamRun:
    """Wait for the end, and return what passed and failed."""
    text, _ = process.communicate()
    run = UpstreamRun(output=text)
    for word, name in re.findall(r"^(PASSED|FAILED|ERROR) (t/integration/\S+)", text, re.MULTILINE):
        (run.passed if word == "PASSED" else run.failed).add(name)
    run.passed -= run.failed
    return run
