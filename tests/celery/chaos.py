"""`python3 -m tests.celery.chaos --for 10m --rate 4 --seed 1`: Celery under kills and stops; 1 when a call is wrong.

A program calls a task at a steady rate, a worker with two processes runs it, and servers and workers are killed,
stopped and started again. In the end each call that returned has run, and no call has made two messages.
`--mode two` is two servers over PostgreSQL, `--mode one` a single one over SQLite.
"""

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil
from celery import Celery

from tests.celery.environments import environment_of
from tests.celery.sites import ServerProcess, Site
from tests.support.commands import ROOT
from tests.support.eventually import eventually
from tests.support.stores.engines import free_port
from tests.support.stores.shared_engines import engines_of_process

Mode = Literal["one", "two"]
What = Literal["kill server", "stop server", "kill worker", "kill child"]

LEASE_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 300.0
FAULTS: Final[tuple[What, ...]] = ("kill server", "stop server", "kill worker", "kill child")
LONGEST_SECONDS: Final[dict[What, float]] = {"kill server": 8.0, "stop server": 30.0, "kill worker": 3.0}
"""How long each fault lasts at most; at least a second, but for kills."""
PAUSES: Final = (2.0, 10.0)
"""Seconds between two faults, from and to."""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class ChaosFault:
    """A fault: `after` seconds after the end of the one before, for `seconds`, of the server with this index."""

    after: float
    what: What
    seconds: float
    server: int


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    """What became of the calls.

    Args:
        lost: calls that returned, and have not run.
        twice: calls that made two messages, each of which was delivered for the first time.
        messages: the messages that the store has taken.
        ran: calls that have run.
        dead: messages that are dead.
    """

    returned: int
    raised: int
    lost: tuple[str, ...]
    twice: tuple[str, ...]
    messages: int
    ran: int
    runs: int
    dead: int

    @property
    def is_right(self) -> bool:
        """Return whether none is lost, and none is there twice: there are as many messages as calls that ran."""
        return not self.lost and not self.twice and self.messages == self.ran and not self.dead


def faults(rng: random.Random, *, servers: int, kinds: Sequence[What] = FAULTS) -> Iterator[ChaosFault]:
    """Yield faults without end, the same for the same seed."""
    while True:
        what = rng.choice(kinds)
        shortest = 1.0 if what == "stop server" else 0.0
        seconds = rng.uniform(shortest, LONGEST_SECONDS.get(what, 0.0))
        yield ChaosFault(rng.uniform(*PAUSES), what, seconds, rng.randrange(servers))


@contextmanager
def a_chaos_site(mode: Mode, folder: Path) -> Iterator[tuple[Site, list[ServerProcess]]]:
    """Run one server over SQLite or two over PostgreSQL, and a worker of Celery with two processes."""
    import queue_core.kombu  # noqa: F401 - registers the transport

    store = f"sqlite:///{folder}/{free_port()}.db"
    if mode == "two":
        store = engines_of_process().new_store_url("postgresql")
    servers = [ServerProcess(store, folder) for _ in range(2 if mode == "two" else 1)]
    broker = "towline+" + ",".join(one.url for one in servers)
    options = {"LAB_LEASE_SECONDS": str(LEASE_SECONDS)}
    site = Site(folder, broker, Celery("looker", broker=broker), server=servers[0], options=options)
    try:
        for one in servers:
            one.start()
        site.start("one", "-c", "2")
        yield site, servers
    finally:
        site.close()
        for one in servers:
            one.kill()


def have_chaos(
    site: Site,
    servers: Sequence[ServerProcess],
    schedule: Iterator[ChaosFault],
    *,
    rate: float,
    seconds: float,
    say: bool = False,
) -> ChaosOutcome:
    """Have faults while calls are made, wait until nothing is left, and return what became of the calls."""
    calls = site.folder / "calls"
    calls.touch()
    command = [sys.executable, "-m", "tests.celery.producing", site.broker, str(calls), str(rate), str(seconds)]
    with (site.folder / "producer.log").open("ab") as log:
        producer = subprocess.Popen(command, cwd=ROOT, env=environment_of(""), stdout=log, stderr=log)
    try:
        while producer.poll() is None:
            fault = next(schedule)
            with suppress(subprocess.TimeoutExpired):
                producer.wait(fault.after)
                break
            if say:
                print(f"{time.strftime('%H:%M:%S')} {fault.what} {fault.server} for {fault.seconds:.1f} s", flush=True)
            have_fault(site, servers, fault)
        assert producer.wait() == 0, (site.folder / "producer.log").read_text()
    finally:
        producer.kill()
    ensure_worker(site)
    site.wait_quiet(seconds=DRAIN_SECONDS)
    return outcome(site, calls.read_text().splitlines())


def have_fault(site: Site, servers: Sequence[ServerProcess], fault: ChaosFault) -> None:
    """Have one fault, to its end: afterwards all run again."""
    server = servers[fault.server]
    if fault.what == "kill server":
        server.kill()
        time.sleep(fault.seconds)
        server.start()
    elif fault.what == "stop server":
        server.send(signal.SIGSTOP)
        time.sleep(fault.seconds)
        server.send(signal.SIGCONT)
    elif fault.what == "kill worker":
        site.kill("one")
        time.sleep(fault.seconds)
    else:
        with suppress(psutil.NoSuchProcess, IndexError):
            psutil.Process(site.workers["one"].pid).children()[0].kill()
    ensure_worker(site)


def ensure_worker(site: Site) -> None:
    """Start the worker where none runs: it was killed, or has ended by itself."""
    if "one" in site.workers and site.workers["one"].poll() is not None:
        site.workers.pop("one")
    if "one" not in site.workers:
        site.start("one", "-c", "2", wait=False)


def outcome(site: Site, calls: Sequence[str]) -> ChaosOutcome:
    """Return what became of the calls, of which `calls` has a line each."""
    returned = [line.split()[1] for line in calls if line.startswith("returned ")]
    record = site.folder / "record"
    lines = [line.split() for line in record.read_text().splitlines()] if record.exists() else []
    begun = [(name, int(count)) for name, word, _pid, _at, _again, count in lines if word == "begin"]
    ended = {line[0] for line in lines if line[1] == "end"}
    firsts = Counter(name for name, count in begun if count == 1)
    eventually(lambda: site.stats() is not None)
    stats = site.stats()
    assert stats is not None
    return ChaosOutcome(
        len(returned),
        len(calls) - len(returned),
        tuple(name for name in returned if name not in ended),
        tuple(name for name, count in firsts.items() if count > 1),
        stats.added_total,
        len(ended),
        len(begun),
        stats.dead,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Have chaos; return 0 when no call was lost or published twice, 1 when one was."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.celery.chaos", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=_seconds, default=600.0, help="how long calls are made: 10m")
    parser.add_argument("--rate", type=float, default=4.0, help="calls a second")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--mode", choices=("one", "two"), default="two", help="servers")
    parser.add_argument("--folder", type=Path, help="for files that are kept; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="towline-chaos-") as path:
        folder = options.folder or Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        with a_chaos_site(options.mode, folder) as (site, servers):
            schedule = faults(random.Random(options.seed), servers=len(servers))
            found = have_chaos(site, servers, schedule, rate=options.rate, seconds=options.seconds, say=True)
    print(f"{'right' if found.is_right else 'WRONG'}: seed {options.seed}: {found}", flush=True)
    return 0 if found.is_right else 1


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"no time: {text!r}; write 90s, 10m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]


if __name__ == "__main__":
    sys.exit(main())
