"""A runtime's answers about workers that are no processes of this host: nothing is forked or imported."""

from collections.abc import Collection, Mapping, Sequence

from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.placement import Placement
from orchestrator.runtime import NOTHING_KNOWN, ApplicationReport, SpawnRequest, WorkerHandle


class WorkersElsewhere:
    """The part of a `Runtime` that is the same for containers and for workers that others start."""

    def forks(self, pool: PoolSpec) -> bool:  # noqa: ARG002  as the protocol has it, here and below
        """See `Runtime.forks`: they are executed."""
        return False

    def application(
        self,
        request: SpawnRequest,  # noqa: ARG002
        *,
        since: Monotonic,  # noqa: ARG002
        now: Monotonic,  # noqa: ARG002
    ) -> ApplicationReport:
        """See `Runtime.application`: it is not on this host."""
        return NOTHING_KNOWN

    def adopt_own(
        self,
        *,
        remembered: Sequence[WorkerHandle] = (),  # noqa: ARG002
        now: Monotonic,  # noqa: ARG002
    ) -> Sequence[WorkerHandle]:
        """See `Runtime.adopt_own`: none is a state directory's; whoever leads adopts them."""
        return ()

    def let_go(self, workers: Collection[str]) -> None:
        """See `Runtime.let_go`: nothing is known of them beside what the fleet knows."""

    def placements(self) -> Mapping[str, Placement]:
        """See `Runtime.placements`: nothing."""
        return {}
