"""Every method of the API in one table: its messages, the verb whose right it needs, and what it does."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from queue_core.server.auth import Caller
from queue_core.server.cloudtasks import leasing, policies, queues, tasks, uploads
from queue_core.server.cloudtasks.call import Call, IsGone
from queue_core.server.cloudtasks.failures import ApiError, Code, refused
from queue_core.server.cloudtasks.fields import Fields, Values
from queue_core.server.cloudtasks.names import parse_queue, parse_task
from queue_core.server.core import ServerCore


async def run_task(core: ServerCore, call: Call) -> Values:  # noqa: ARG001 - a method
    name = parse_task(call.fields.text("name"), field="name")
    raise refused(f"RunTask cannot be called on a pull task, and {name} is one: lease it with LeaseTasks")


async def buffer_task(core: ServerCore, call: Call) -> Values:  # noqa: ARG001 - a method
    queue = parse_queue(call.fields.text("queue"), field="queue")
    raise refused(f"BufferTask needs a queue with an HTTP target, and {queue} is a pull queue: use CreateTask")


async def batch(core: ServerCore, call: Call) -> Values:  # noqa: ARG001 - a method
    raise ApiError(
        Code.UNIMPLEMENTED, "batchCreate and batchDelete are not offered: create or delete the tasks one by one"
    )


async def set_iam_policy(core: ServerCore, call: Call) -> Values:  # noqa: ARG001 - a method
    raise ApiError(
        Code.UNIMPLEMENTED,
        "policies are not set here: who may do what is the server's tokens and roles, and the acl of a queue",
    )


async def customer_keys(core: ServerCore, call: Call) -> Values:  # noqa: ARG001 - a method
    raise ApiError(Code.UNIMPLEMENTED, "there are no customer-managed keys here: encrypt the disk of the store")


Handler = Callable[[ServerCore, Call], Coroutine[None, None, Values]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method.

    Args:
        takes, gives: names of messages.
        verb: of `auth.NEEDED`.
    """

    takes: str
    gives: str
    verb: str
    handler: Handler


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "CreateTask": Method("CreateTaskRequest", "Task", "add", tasks.create_task),
        "LeaseTasks": Method("LeaseTasksRequest", "LeaseTasksResponse", "lease", leasing.lease_tasks),
        "AcknowledgeTask": Method("AcknowledgeTaskRequest", "Empty", "delete", leasing.acknowledge_task),
        "RenewLease": Method("RenewLeaseRequest", "Task", "renew", leasing.renew_lease),
        "CancelLease": Method("CancelLeaseRequest", "Task", "release", leasing.cancel_lease),
        "GetTask": Method("GetTaskRequest", "Task", "peek", tasks.get_task),
        "ListTasks": Method("ListTasksRequest", "ListTasksResponse", "peek", tasks.list_tasks),
        "DeleteTask": Method("DeleteTaskRequest", "Empty", "delete", tasks.delete_task),
        "RunTask": Method("RunTaskRequest", "Task", "lease", run_task),
        "BufferTask": Method("BufferTaskRequest", "Task", "add", buffer_task),
        "BatchCreateTasks": Method("BatchCreateTasksRequest", "Empty", "add", batch),
        "BatchDeleteTasks": Method("BatchDeleteTasksRequest", "Empty", "delete", batch),
        "GetQueue": Method("GetQueueRequest", "Queue", "queues", queues.get_queue),
        "ListQueues": Method("ListQueuesRequest", "ListQueuesResponse", "queues", queues.list_queues),
        "CreateQueue": Method("CreateQueueRequest", "Queue", "set-queue", queues.create_queue),
        "UpdateQueue": Method("UpdateQueueRequest", "Queue", "set-queue", queues.update_queue),
        "DeleteQueue": Method("DeleteQueueRequest", "Empty", "set-queue", queues.delete_queue),
        "PauseQueue": Method("PauseQueueRequest", "Queue", "pause", queues.pause_queue),
        "ResumeQueue": Method("ResumeQueueRequest", "Queue", "resume", queues.resume_queue),
        "PurgeQueue": Method("PurgeQueueRequest", "Queue", "purge", queues.purge_queue),
        "UploadQueueYaml": Method("UploadQueueYamlRequest", "Empty", "set-queue", uploads.upload_queue_yaml),
        "GetIamPolicy": Method("GetIamPolicyRequest", "Policy", "queues", policies.get_iam_policy),
        "SetIamPolicy": Method("SetIamPolicyRequest", "Policy", "set-queue", set_iam_policy),
        "TestIamPermissions": Method(
            "TestIamPermissionsRequest", "TestIamPermissionsResponse", "stats", policies.test_iam_permissions
        ),
        "GetLocation": Method("GetLocationRequest", "Location", "queues", policies.get_location),
        "ListLocations": Method("ListLocationsRequest", "ListLocationsResponse", "queues", policies.list_locations),
        "GetCmekConfig": Method("GetLocationRequest", "CmekConfig", "queues", customer_keys),
        "UpdateCmekConfig": Method("UpdateCmekConfigRequest", "CmekConfig", "set-queue", customer_keys),
    }
)


class CloudTasks:
    """The API over the queues of one server; lives in its loop."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core

    async def run(self, method: Method, values: Values, caller: Caller, is_gone: IsGone) -> Values:
        """Call a method for somebody who was let in. Raises `ApiError` or an error of the queue."""
        return await method.handler(self.core, Call(Fields(values), caller, self.core.lease_rate, is_gone))
