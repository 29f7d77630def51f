"""The methods of IAM policies and locations: the queue's acl, the caller's permissions, and one location."""

from collections.abc import Mapping
from types import MappingProxyType

from queue_core.errors import UnknownQueueError
from queue_core.server.cloudtasks.call import CloudTasksCall, Values
from queue_core.server.cloudtasks.names import parse_place, parse_project, parse_queue
from queue_core.server.state import ServerState
from queue_core.task import QueueSpec
from queue_core.unit_of_work import UnitOfWork

LOCATION = "local"
"""The only location listed; any other name is accepted, too."""

PERMISSIONS: Mapping[str, str] = MappingProxyType(
    {
        "cloudtasks.tasks.create": "add",
        "cloudtasks.tasks.lease": "lease",
        "cloudtasks.tasks.consume": "lease",
        "cloudtasks.tasks.get": "peek",
        "cloudtasks.tasks.list": "peek",
        "cloudtasks.tasks.fullView": "peek",
        "cloudtasks.tasks.delete": "delete",
        "cloudtasks.queues.get": "queues",
        "cloudtasks.queues.list": "queues",
        "cloudtasks.queues.getIamPolicy": "queues",
        "cloudtasks.queues.create": "set-queue",
        "cloudtasks.queues.update": "set-queue",
        "cloudtasks.queues.delete": "set-queue",
        "cloudtasks.queues.pause": "pause",
        "cloudtasks.queues.resume": "resume",
        "cloudtasks.queues.purge": "purge",
    }
)
"""Verb of `auth.NEEDED` for each permission of the service."""


async def get_iam_policy(core: ServerState, call: CloudTasksCall) -> Values:
    """Return the queue's acl as bindings; none without an acl."""
    name = parse_queue(call.fields.text("resource"), field="resource")
    spec = await core.look(lambda unit: unit.transaction.queue(name.queue))
    policy: Values = {"version": 1, "etag": b"\x00"}
    if bindings := _bindings(spec):
        policy["bindings"] = bindings
    return policy


def _bindings(spec: QueueSpec) -> list[Values]:
    roles = {"roles/cloudtasks.taskRunner": spec.user_emails, "roles/cloudtasks.enqueuer": spec.writer_emails}
    return [
        {"role": role, "members": tuple(f"user:{email}" for email in emails)}
        for role, emails in roles.items()
        if emails
    ]


async def test_iam_permissions(core: ServerState, call: CloudTasksCall) -> Values:
    """Return the requested permissions that the caller has; none for a queue that does not exist."""
    name = parse_queue(call.fields.text("resource"), field="resource")

    def exists(unit: UnitOfWork) -> bool:
        try:
            unit.transaction.queue(name.queue)
        except UnknownQueueError:
            return False
        return True

    if not await core.look(exists):
        return {}
    requested = call.fields.texts("permissions")
    granted = tuple(one for one in requested if one in PERMISSIONS and call.is_allowed(PERMISSIONS[one]))
    return {"permissions": granted} if granted else {}


async def get_location(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    name = parse_place(call.fields.text("name"), field="name")
    return {"name": name, "locationId": name.rpartition("/")[2]}


async def list_locations(core: ServerState, call: CloudTasksCall) -> Values:  # noqa: ARG001 - a method
    name = parse_project(call.fields.text("name"), field="name")
    return {"locations": [{"name": f"{name}/locations/{LOCATION}", "locationId": LOCATION}]}
