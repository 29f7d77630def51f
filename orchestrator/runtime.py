"""The protocol of a runtime, which starts and ends workers: processes and containers alike. No verb waits."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import ServedTags
from orchestrator.config.celery import arguments_of, foreign_arguments_of
from orchestrator.config.placeholders import filled
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Fate
from orchestrator.fleet.placement import Placement

PAUSED: Final = "paused (docker pause)"
SHARED_KINDS: Final = frozenset({"docker", "swarm", "kubernetes"})
"""The kinds of runtimes whose workers another supervisor of the store may lead; a process belongs to its host's."""
STANDSTILLS: Final = frozenset({PAUSED, "stopped (SIGSTOP)", "its control group is frozen"})
"""Conditions of workers of which nothing runs: they can't finish anything, and no signal but SIGKILL reaches them."""


def is_shared(ref: str) -> bool:
    """Return whether another supervisor may lead the worker with this `ref`: then only the leader acts on it."""
    return ref.partition(":")[0] in SHARED_KINDS


def is_led_from_anywhere(ref: str) -> bool:
    """Return whether the place of the worker with this `ref` is the same to each supervisor of the store.

    A local engine's containers are shared only with other supervisors of its host.
    """
    kind, _, rest = ref.partition(":")
    return kind in SHARED_KINDS and (kind != "docker" or "#" in rest)


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """One live worker as its runtime knows it.

    `ref` is the runtime's own name for it ("pid:4711@88123/5f2c9a1b" or a container id) and is never reused;
    `spec_digest` is the digest of the pool's settings it was spawned with, by which a reload finds outdated workers;
    `spawned_at` lies before the supervisor's own start when the worker was adopted. `is_forked`: it was forked from a
    template that had imported its application, and shares memory with it.
    """

    worker: str
    pool: str
    ref: str
    spec_digest: str
    spawned_at: Monotonic
    is_forked: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of a worker. Exactly one of `code` and `signal` is known; neither for an adopted process.

    `memory_limit_bytes` and `memory_peak_bytes` are its limit and its highest use, each where the runtime knows it;
    `memory_own_bytes` is the highest use without what it shared with a template, of a forked worker (`is_forked`);
    `reason` is the runtime's further explanation ("removed from outside").
    `is_stopped`: it was asked to end from outside, by `docker stop` or by an engine that goes down. `is_removed`: its
    container was removed from outside (`docker rm -f`), which ends it.
    `fate`: what its cluster did to it, where it runs in one.
    `last_lines` is the end of its output, without payloads: at most 20 lines of 500 characters. `stack` has the stacks
    of its threads before it was killed, innermost call first.
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
    memory_own_bytes: int | None = None
    is_forked: bool = False
    reason: str = ""
    is_stopped: bool = False
    is_removed: bool = False
    fate: Fate = ""
    last_lines: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that one worker has used.

    `memory_bytes` of a forked worker is what it shares with no other process: that ends with it.
    `waited_seconds` is the time its threads in sum were ready to run while no core was free, where the runtime knows.
    """

    memory_bytes: int
    cpu_seconds: float
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """The data a runtime needs to start one worker. The caller chooses a new identity for each start."""

    worker: str
    pool: PoolSpec
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> Sequence[str]:
        """The pool's command with this worker's name in it; empty for an `app` and for Celery's workers."""
        return [self._filled(argument) for argument in self.pool.command or ()]

    def program(self, python: str, *, app: Sequence[str]) -> Sequence[str]:
        """Return the command that is executed: the pool's, Celery's, or `app`, that of workers with an `app`.

        `python` is the interpreter of Celery's workers, unless their settings name one.
        """
        celery = self.pool.celery
        if celery is None:
            return self.command or app
        if self.pool.has_foreign_broker:
            # All workers of a swarm service have one command: the host's name tells them apart.
            node = self.pool.name if self.pool.runtime_kind == "swarm" else self.worker
            return foreign_arguments_of(celery, python=python, node=node)
        return arguments_of(celery, python=python, soft_seconds=self.pool.soft_seconds)

    @property
    def variables(self) -> Mapping[str, str]:
        """The pool's variables with this worker's name in them."""
        return {name: self._filled(text) for name, text in self.pool.env.items()}

    def _filled(self, text: str) -> str:
        return filled(text, worker=self.worker, pool=self.pool.name)


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """The result of an import of a pool's application.

    `failure` says why workers can't use it, in a sentence or with a traceback; "" when they can, or when nothing is
    known. `changed_at` is when the newest of its files, `changed_file`, got its content, in seconds since the epoch;
    0.0 where unknown. `schedules` are those of its functions, as JSON, `served` the tags that workers lease with it;
    None where nothing is known.
    """

    failure: str = ""
    changed_at: float = 0.0
    changed_file: str = ""
    schedules: Sequence[Mapping[str, object]] | None = None
    served: ServedTags | None = None


NOTHING_KNOWN: Final = ApplicationReport()


class Runtime(Protocol):
    """Spawn, drain, kill and reap workers. Verbs return at once: draining spans turns and has a deadline."""

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """Start a worker. Raises `SpawnError` when it can't even begin (no such command, no memory).

        The handle has the requested identity, or another new one where the runtime names its workers itself.
        """

    def forks(self, pool: PoolSpec) -> bool:
        """Return whether the pool's next worker would be forked, which takes milliseconds."""

    def application(self, request: SpawnRequest, *, since: Monotonic, now: Monotonic) -> ApplicationReport | None:
        """Import the application of this worker's pool; return the result, or None while that takes its time.

        An import from before `since` counts if it succeeded and no file has changed. Call it again after a failure, and
        it imports again once a file has changed.
        """

    def drain(self, worker: str) -> None:
        """Ask a worker to finish its tasks and exit (SIGTERM or the pool's stop signal); no effect if unknown."""

    def insist(self, worker: str, signal: str) -> None:
        """Send a signal of this name to a worker's first process, and to no other; no effect if unknown."""

    def kill(self, worker: str) -> None:
        """End a worker and every process it started, resuming none that stands still; no effect if unknown."""

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:
        """Describe the condition of a worker that hangs ("stopped (SIGSTOP)"); "" when nothing special is found.

        With `before="mark"` the worker is not touched. With `before="end"` it is also asked to write its stack, which
        its exit then contains; the signal for that may interrupt a system call of its handler.
        """

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:
        """Return every exit since the last call; each exit is returned once."""

    def adopt_own(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """Find and take over the workers that an earlier supervisor of the same state directory left running.

        `remembered` are the workers it knew last. Those that are not returned have verifiably ended: their leases will
        be released.
        """

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:
        """Find and take over the fleet's workers, whichever supervisor started them: ours begins to lead (ADR 141).

        `remembered`: as in `adopt_own`. Returned are those that were not ours before.
        """

    def let_go(self, workers: Collection[str]) -> None:
        """Forget workers without touching them: another supervisor leads and has adopted them."""

    def usage(self) -> Mapping[str, Usage]:
        """Return the usage of each live worker; a worker that just ended is left out."""

    def placements(self) -> Mapping[str, Placement]:
        """Return where live workers are and what they wait for, by name; of those that run on a host, nothing."""

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """Sleep until a worker exits, `wake` is called or the time is up; return whether an exit can be reaped."""

    def wake(self) -> None:
        """End a `wait_for_exit` in another thread early."""

    def close(self) -> None:
        """Close connections and files; workers keep running."""
