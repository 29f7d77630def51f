"""A supervisor over a source without a queue, for runs that count starts: `python -m tests.soak.empty_source FOLDER`.

Every worker is seen at once and nothing ever waits: only overrides change the pools' sizes.
"""

import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.base.samples import PresentWorker, QueueSample, UnservedTag
from orchestrator.config.pools import PoolSpec, SupervisorSettings, parse_pools
from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict
from orchestrator.runtimes.process import ProcessRuntime
from orchestrator.source import ReleasedTask, SampleQuery
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.supervisor import Supervisor
from queue_core.process import logs

POOLS: Final = ("ebb", "flood", "neap", "spring")
MOST: Final = 60


class EmptySource:
    """A `WorkSource` whose queues are always empty."""

    def __init__(self) -> None:
        self._nothing = threading.Event()

    def sample(
        self, pool: PoolSpec, *, workers: Collection[str], ahead_seconds: float = 0.0, now: Monotonic
    ) -> QueueSample:
        seen = dict.fromkeys(workers, 0.0)
        return QueueSample(at=now, ready=0, delayed=0, in_flight=0, dead=0, first_seen_seconds_ago=seen)

    def samples(
        self, asked: Sequence[SampleQuery], *, now: Monotonic
    ) -> Mapping[str, QueueSample | SourceUnavailableError]:
        return {}

    def publish(self, pools: Sequence[PoolSpec], *, gone: Collection[str] = ()) -> None:
        pass

    def present(self, pool: PoolSpec) -> Sequence[PresentWorker]:
        return ()

    def retire(self, worker: str, *, busy: Literal["keep", "finish"] = "keep") -> bool:
        return True

    def given_back_by(self, worker: str, pool: PoolSpec, *, within_seconds: float) -> Sequence[ReleasedTask]:
        return ()

    def lapsed_by(self, worker: str, pool: PoolSpec, *, named: Collection[str] = ()) -> Sequence[ReleasedTask]:
        return ()

    def held_by(self, worker: str, pool: PoolSpec, *, payload_bytes: int = 0) -> Sequence[SuspectedTask]:
        return ()

    def has_worked(self, worker: str, pool: PoolSpec) -> bool:
        return False

    def apply_verdicts(self, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> Sequence[str]:
        return [""] * len(verdicts)

    def recall(self, suspects: Sequence[IsolatedTask]) -> None:
        pass

    def unserved(self, pools: Sequence[PoolSpec]) -> Sequence[UnservedTag]:
        return ()

    def release_held_by(self, worker: str, notice: DeathNotice) -> Sequence[ReleasedTask]:
        return ()

    def give_back(self, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> Sequence[ReleasedTask]:
        return ()

    def wait_for_arrival(self, pools: Sequence[PoolSpec], *, timeout_seconds: float) -> str | None:
        self._nothing.wait(timeout_seconds)
        return None

    def kept(self) -> str | None:
        return None

    def keep(self, text: str) -> None:
        pass

    def lead(self, supervisor: str, *, seconds: float) -> bool:
        return True


def pools(*, program: Sequence[str]) -> dict[str, PoolSpec]:
    """Return four pools of this program."""
    settings = {
        "queue": "tides",
        "command": list(program),
        "slo": "10s",
        "grace": "20s",
        "spawn_parallelism": MOST,
        "workers": {"max": MOST},
    }
    return parse_pools(dict.fromkeys(POOLS, settings))


def main(folder: Path, program: Sequence[str]) -> int:
    """Supervise until a signal."""
    logs.configure(shape="json", level="warning")
    files = StateDir(folder / "state")
    runtime = ProcessRuntime(files.path, lock=files.lock_path)
    try:
        return Supervisor(
            SupervisorSettings(state_dir=str(files.path)),
            pools(program=program),
            source=EmptySource(),
            runtime=runtime,
            files=files,
            url="memory:",
        ).run()
    finally:
        runtime.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
