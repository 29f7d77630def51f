"""Methods of push queues and of the cloud around them: answered with why they are not here, and what to do instead."""

from queue_core.server.cloudtasks.call import Call
from queue_core.server.cloudtasks.failures import ApiError, Code, refused
from queue_core.server.cloudtasks.fields import Values
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
