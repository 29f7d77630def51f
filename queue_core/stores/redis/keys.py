"""The names of keys. All keys of a queue share a hash slot, as their name between braces does: see `lua/base.lua`.

What belongs to no queue has braces too, as a function keeps answers beside its first key; no queue's name has a colon.
"""

QUEUES = "towline:{:queues}"
"""All queues in the order of their birth."""
IDS = "towline:{:ids}"
"""The last id given to a task of any queue."""
RETIRED = "towline:{:retired}"
"""Retired workers, for queues that are created later."""
SHARDS = "towline:{:spread}"
"""The number of shards of each queue that is spread."""
STORAGE = "towline:{:storage}"
"""How many bytes the payloads of all queues may come to; it is not there when there is no such limit."""
LAYOUT = "towline:{:layout}"
"""The version of the layout of all these keys."""
IDENTITY = "towline:{:identity}"
"""Names the store since it was made, or was marked last: it is another one, or none, once somebody emptied it."""
SETTINGS = "."
"""The field of a queue's settings in its hash."""
KEPT_SETTINGS = "*"
"""The field of those settings that are only kept; it is not there when there are none."""


def key_of(queue: str) -> str:
    """A queue's hash; all its other keys begin with this."""
    return f"towline:{{{queue}}}"


def queue_of(key: str) -> str:
    """The queue whose settings are at `key`."""
    return key[len("towline:{") : -1]


def stored_key(queue: str) -> str:
    """How many bytes the queue's payloads come to, while they are counted."""
    return f"{key_of(queue)}:b"


def lead_key(name: str) -> str:
    """Where it stands who leads."""
    return f"towline:{{:lead:{name}}}"


def session_key(session: str) -> str:
    """Where the last answer to a client's session is kept."""
    return f"towline:{{:session:{session}}}"
