"""A call of one method: its fields, and who makes it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from queue_core.errors import PermissionDeniedError
from queue_core.server.auth import Access, Principal, check_access, check_role
from queue_core.server.cloudtasks.fields import MessageReader
from queue_core.server.leases.rates import LeaseRate
from queue_core.task import QueueSpec
from queue_core.unit_of_work import UnitOfWork

IsGone = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class CloudTasksCall:
    """What a method is given.

    Args:
        rate: that of the lease calls of all queues.
        is_gone: whether the caller has hung up, or does not wait any longer.
    """

    fields: MessageReader
    caller: Principal
    rate: LeaseRate
    is_gone: IsGone

    def enter(self, turn: UnitOfWork, queue: str, access: Access) -> QueueSpec:
        """The queue's settings, for a caller whom its acl lets in.

        Raises `UnknownQueueError`, `PermissionDeniedError`.
        """
        spec = turn.transaction.queue(queue)
        check_access(self.caller, spec, access)
        return spec

    def may(self, verb: str) -> bool:
        """Whether the caller's role allows a verb."""
        try:
            check_role(self.caller, verb)
        except PermissionDeniedError:
            return False
        return True
