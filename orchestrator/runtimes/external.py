"""Workers that an external system starts: KEDA, systemd, a person. Neither spawns nor ends any (ADR 10).

A spawn is an expectation until a worker meets it (see `orchestrator.fleet.external`).
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.external import expected_ref, is_external
from orchestrator.runtime import Exit, SpawnRequest, Usage, WorkerHandle
from orchestrator.runtimes.elsewhere import WorkersElsewhere


class ExternalRuntime(WorkersElsewhere):
    """A `Runtime` without workers of its own."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def spawn(self, request: SpawnRequest, *, now: Monotonic) -> WorkerHandle:
        """See `Runtime.spawn`: the worker is expected from now on."""
        pool = request.pool
        return WorkerHandle(request.worker, pool.name, expected_ref(request.worker), pool.digest(), now)

    def drain(self, worker: str) -> None:
        """See `Runtime.drain`: the external system ends it."""

    def insist(self, worker: str, signal: str) -> None:
        """See `Runtime.insist`: the external system ends it."""

    def kill(self, worker: str) -> None:
        """See `Runtime.kill`: the external system ends it."""

    def examine(self, worker: str, *, before: Literal["mark", "end"]) -> str:  # noqa: ARG002  as the protocol has it
        """See `Runtime.examine`: nothing is known."""
        return ""

    def reap(self, *, now: Monotonic) -> Sequence[Exit]:  # noqa: ARG002 - the protocol's
        """See `Runtime.reap`: exits are not visible here."""
        return ()

    def adopt_own(
        self,
        *,
        remembered: Sequence[WorkerHandle] = (),
        now: Monotonic,  # noqa: ARG002 - the protocol's
    ) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt_own`: remembered workers count until the queue has been observed."""
        return [handle for handle in remembered if is_external(handle.ref)]

    def adopt(self, *, remembered: Sequence[WorkerHandle] = (), now: Monotonic) -> Sequence[WorkerHandle]:  # noqa: ARG002
        """See `Runtime.adopt`: the queue says which workers there are."""
        return ()

    def usage(self) -> Mapping[str, Usage]:
        """See `Runtime.usage`: unknown."""
        return {}

    def wait_for_exit(self, *, timeout_seconds: float) -> bool:
        """See `Runtime.wait_for_exit`."""
        self._woken.wait(timeout_seconds)
        self._woken.clear()
        return False

    def wake(self) -> None:
        """See `Runtime.wake`."""
        self._woken.set()

    def close(self) -> None:
        """See `Runtime.close`."""
