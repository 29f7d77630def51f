"""The one rule of who may do what in which queue: a token's scope, then the queue's acl. Every door asks it here.

A queue outside of a token's scope is refused by its name alone, so that a refusal does not tell whether there is one.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from queue_core.clock import MICROSECONDS, Instant
from queue_core.config.celery_names import namespace_prefix
from queue_core.errors import PermissionDeniedError, UnknownQueueError
from queue_core.server.callers.auth import Principal, check_role
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.every_verb import VERBS
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs.matching import CHANGES, permission_of
from queue_core.verbs.roles import Access

VERB_OF_ACCESS: Mapping[Access, str] = MappingProxyType(
    {
        "look": "stats",
        "list": "peek",
        "get": "peek",
        "lease": "lease",
        "delete": "delete",
        "update": "renew",
        "insert": "add",
    }
)
"""The verb of `REQUIRED_ROLES` whose roles allow an access."""

ACCESS_OF_VERB: Mapping[str, Access] = MappingProxyType(
    {
        "add": "insert",
        "lease": "lease",
        "exchange": "lease",
        "renew": "update",
        "release": "update",
        "delete": "delete",
        "wait": "look",
        "events": "list",
        "operate": "update",
        "kill": "update",
        **{permission_of(name): action.access for name, action in CHANGES.items()},
        **{verb.permission: verb.access for verb in VERBS if verb.access is not None},
    }
)
"""The access that a verb of a queue needs."""

CACHE_SECONDS: Final = 1.0
"""Seconds for which the acl of a queue is cached; changes by this server count at once."""
CACHE_MICROSECONDS: Final = int(CACHE_SECONDS * MICROSECONDS)


def is_in_scope(caller: Principal, queue: str) -> bool:
    """Return whether a caller's token is for this queue."""
    return caller.queues is None or any(fnmatchcase(queue, pattern) for pattern in caller.queues)


def check_scope(caller: Principal, queue: str) -> None:
    """Raise `PermissionDeniedError` for a queue that the caller's token is not for."""
    if caller.queues is not None and not is_in_scope(caller, queue):
        raise PermissionDeniedError(
            f"this token is for the queues {', '.join(caller.queues)}; {queue[:100]} is not one of them"
        )


def sees_facts(caller: Principal, facts: Mapping[str, str]) -> bool:
    """Return whether a caller sees a registration: one of its own queues, where its token is not for all queues."""
    if caller.queues is None:
        return True
    try:
        queues = json.loads(facts["queues"]) if "queues" in facts else [facts["queue"]]
    except (KeyError, ValueError):
        return False
    return isinstance(queues, list) and bool(queues) and all(is_in_scope(caller, str(one)) for one in queues)


def check_whole_store(caller: Principal, what: str) -> None:
    """Raise `PermissionDeniedError` for a token that is for some queues only."""
    if caller.queues is not None:
        raise PermissionDeniedError(f"{what} needs a token for all queues; this one is for {', '.join(caller.queues)}")


def is_listed(caller: Principal, spec: QueueSpec, access: Access) -> bool:
    """Return whether the queue's acl, if it has one, allows the caller this access."""
    if caller.is_admin or not (spec.user_emails or spec.writer_emails):
        return True
    if caller.email is None:
        return False
    listed: tuple[str, ...] = ()
    if access != "insert":
        listed += spec.user_emails
    if access in ("insert", "look"):
        listed += spec.writer_emails
    return caller.email.casefold() in {email.casefold() for email in listed}


def is_allowed(caller: Principal, spec: QueueSpec, access: Access) -> bool:
    """Return whether scope and acl allow the caller this access, whatever its role."""
    return is_in_scope(caller, spec.name) and is_listed(caller, spec, access)


def check_queue(caller: Principal, spec: QueueSpec, access: Access) -> None:
    """Raise `PermissionDeniedError` unless scope and acl allow the access."""
    check_scope(caller, spec.name)
    if not is_listed(caller, spec, access):
        whose = "a token without an email" if caller.email is None else caller.email
        needed = {"insert": "writer_email", "look": "user_email or writer_email"}.get(access, "user_email")
        raise PermissionDeniedError(f"queue {spec.name} has an acl: {access} needs a {needed}, and {whose} is none")


def check_access(caller: Principal, spec: QueueSpec, access: Access) -> None:
    """Raise `PermissionDeniedError` unless role, scope and acl all allow the access."""
    check_role(caller, VERB_OF_ACCESS[access])
    check_queue(caller, spec, access)


def is_namespace_in_scope(caller: Principal, namespace: str) -> bool:
    """Return whether a caller's token is for every queue of a namespace of Celery's; "": of the whole store."""
    if caller.queues is None:
        return True
    prefix = namespace_prefix(namespace)
    return any(pattern.endswith("*") and fnmatchcase(prefix, pattern) for pattern in caller.queues)


Check = Callable[[UnitOfWork], None]
"""Raises `PermissionDeniedError` within the transaction of a call that is not allowed."""


def no_check(_unit: UnitOfWork) -> None:
    """Allow everything: for administrators of all queues."""


class QueueAccess:
    """The rule for calls that name their queue, with settings at most a second old.

    Used in the server's loop and in transactions, of which several may run at a time.
    """

    def __init__(self) -> None:
        self._cached: dict[str, tuple[Instant, QueueSpec]] = {}

    def check(self, unit: UnitOfWork, caller: Principal, queue: str, access: Access) -> None:
        """Raise `PermissionDeniedError` unless scope and acl allow it, `UnknownQueueError` for no queue."""
        check_scope(caller, queue)
        if not caller.is_admin:
            check_queue(caller, self._spec(unit, queue), access)

    def checker(self, caller: Principal, queue: str, access: Access, *, adds: Sequence[NewTask] = ()) -> Check:
        """Return the check of a call, and of the tasks that it adds to this queue or others."""
        if caller.is_admin and caller.queues is None:
            return no_check
        wanted = {(queue, access)}
        for task in adds:
            if task.queue or access != "insert":
                wanted.add((task.queue or queue, "insert"))
        if caller.queues is not None:
            for name, _ in wanted:
                check_scope(caller, name)
        if caller.is_admin:
            return no_check

        cached = self._cached

        def check(unit: UnitOfWork) -> None:
            now = unit.now
            for name, needed in wanted:
                known = cached.get(name)  # as in `cached`: a queue without an acl takes no further call
                is_known = known is not None and 0 <= now - known[0] < CACHE_MICROSECONDS
                if known is None or not is_known or known[1].user_emails or known[1].writer_emails:
                    self.check_each(unit, caller, [name], needed)

        return check

    def may(self, unit: UnitOfWork, caller: Principal, queue: str, access: Access) -> bool:
        """Return whether scope and acl allow it; of a queue that does not exist, whether its name is in scope."""
        try:
            self.check_each(unit, caller, [queue], access)
        except PermissionDeniedError:
            return False
        return True

    def check_each(self, unit: UnitOfWork, caller: Principal, queues: Iterable[str], access: Access) -> None:
        """Raise `PermissionDeniedError` unless the access is allowed to each of these; a missing queue is no matter."""
        for queue in queues:
            with suppress(UnknownQueueError):
                self.check(unit, caller, queue, access)

    def visible(self, caller: Principal, specs: Iterable[QueueSpec], access: Access = "look") -> list[QueueSpec]:
        """Return those of the queues that the caller may see."""
        return [spec for spec in specs if is_allowed(caller, spec, access)]

    def sees_all(self, caller: Principal) -> bool:
        """Return whether no scope and no acl bounds the caller."""
        return caller.queues is None and caller.is_admin

    def forget(self, queue: str) -> None:
        """Read the settings of a queue again with the next call: they were changed."""
        self._cached.pop(queue, None)

    def cached(self, queue: str, *, now: Instant) -> QueueSpec | None:
        """Return the settings of a queue that are at most a second old; None: they have to be read."""
        known = self._cached.get(queue)
        return known[1] if known is not None and 0 <= now - known[0] < CACHE_MICROSECONDS else None

    def _spec(self, unit: UnitOfWork, queue: str) -> QueueSpec:
        known = self.cached(queue, now=unit.now)
        if known is not None:
            return known
        try:
            spec = unit.transaction.queue(queue)
        except UnknownQueueError:
            self._cached.pop(queue, None)
            raise
        self._cached[queue] = (unit.now, spec)
        return spec
