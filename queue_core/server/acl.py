"""Who may do what to a queue that names its people, as the `acl` of a queue.yaml does. Pure.

The rule, for the doors that know it (Cloud Tasks, Task Queue REST; App Engine's own API and ours go by roles alone):

- An admin may do everything. A queue without an acl goes by roles alone.
- On a queue with an acl, `user_emails` may list, get, lease, delete and update; `writer_emails` may insert; who does
  both is listed twice. Both may look at the queue itself: its settings and counts. Anybody else, and a token without
  an email, is refused.
- The role stays a ceiling: an acl takes rights from a token and never adds any. Roles of workers cover both lists.

Emails are compared without regard to case.

Source: App Engine's queue.yaml reference, `acl`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from queue_core.errors import PermissionDeniedError
from queue_core.server.auth import Caller, check_role
from queue_core.server.options import Role
from queue_core.task import QueueSpec

Access = Literal["look", "list", "get", "lease", "delete", "update", "insert"]
"""What an acl speaks of. Whatever else a door offers (making queues, purging) is for admins, by `check_role`."""

VERBS: Mapping[Access, str] = MappingProxyType(
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
"""The verb of `auth.NEEDED` that tells which roles may."""


def check_access(caller: Caller, spec: QueueSpec, access: Access) -> None:
    """Raise `PermissionDeniedError` unless the caller's role and the queue's acl both allow it."""
    check_role(caller, VERBS[access])
    if not is_listed(caller, spec, access):
        whose = "a token without an email" if caller.email is None else caller.email
        needed = {"insert": "writer_email", "look": "user_email or writer_email"}.get(access, "user_email")
        raise PermissionDeniedError(
            f"queue {spec.name} has an acl, and {access} is for those it names as {needed}: {whose} is not among them"
        )


def is_listed(caller: Caller, spec: QueueSpec, access: Access) -> bool:
    """Whether the queue's acl, if it has one, lets the caller do it."""
    if caller.role & Role.ADMIN or not (spec.user_emails or spec.writer_emails):
        return True
    if caller.email is None:
        return False
    listed: tuple[str, ...] = ()
    if access != "insert":
        listed += spec.user_emails
    if access in ("insert", "look"):
        listed += spec.writer_emails
    return caller.email.casefold() in {email.casefold() for email in listed}
