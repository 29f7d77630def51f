"""What a runtime does for the supervisor: processes and containers alike. No verb waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """One live worker as its runtime knows it.

    `ref` is the runtime's own name for it ("pid:4711@88123/5f2c9a1b" or a container id) and never names another;
    `spec_digest` is the digest of the pool's settings it was spawned with, so that a reload can tell old from new;
    `spawned_at` may lie before the supervisor's own start when the worker was adopted.
    """

    worker: str
    pool: str
    ref: str
    spec_digest: str
    spawned_at: Monotonic


@dataclass(frozen=True, slots=True)
class Exit:
    """A worker that ended. Exactly one of `code` and `signal` is known; neither for an adopted process.

    `memory_limit_bytes` is what it was allowed and `memory_peak_bytes` the most it had, each where the runtime knows;
    `reason` is what else the runtime knows of its end, in words ("removed from outside").
    `is_stopped`: somebody else asked it to end, as `docker stop` does, or an engine that goes down.
    `last_lines` are the last lines it wrote, without payloads, at most 20 lines of 500 characters. `stack` is where its
    threads were before it was ended, innermost call first.
    """

    worker: str
    pool: str
    ref: str
    at: Monotonic
    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    reason: str = ""
    is_stopped: bool = False
    last_lines: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What one worker costs the host now.

    `waited_seconds` is how long its threads together were ready to run and no core was free, where the runtime knows.
    """

    memory_bytes: int
    cpu_seconds: float
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """Everything a runtime needs to start one worker, chosen by the caller: a fresh identity each start."""

    worker: str
    pool: PoolSpec
    environment: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    """Starts, asks, ends and collects workers. Verbs return at once; draining spans turns, with a deadline."""

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """Start a worker. Raises `SpawnError` when it cannot even begin (no such command, no memory).

        The handle's worker is the one asked for, or another fresh identity where the runtime names its workers itself.
        """

    def drain(self, worker: str) -> None:
        """Ask a worker to finish what it holds and exit (SIGTERM, or the pool's stop signal); unknown: no effect."""

    def kill(self, worker: str) -> None:
        """End a worker and everything it started, now; unknown: no effect."""

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        """Describe the condition of a worker that hangs, in words ("stopped (SIGSTOP)"); "" when nothing is.

        Before it is marked that has no effect on it. Before it is ended it is asked to write its stack, where that can
        be had, to be told with its exit; the signal for that may cut a call of its handler short.
        """

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """Collect every exit since the last call; each worker is told once."""

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """Find the workers an earlier supervisor of the same state left running; they are known from now on.

        `remembered` are those that it knew last. What is not returned of them has verifiably ended: its leases will be
        given to others.
        """

    def usage(self) -> Mapping[str, Usage]:
        """What each live worker uses; a worker that just ended is left out."""

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """Sleep until some worker exits, `wake` is called, or the time is up; True when an exit is to be reaped."""

    def wake(self) -> None:
        """End a `wait_for_exit` in another thread early."""

    def close(self) -> None:
        """Let go of what was opened; workers are left as they are."""
