"""The names of keys. All keys of a queue share a hash slot by the name between braces; `lua/base.lua` lists them.

Keys of no queue have braces too, as a function keeps answers beside its first key. No queue's name has a colon.
"""

QUEUES = "towline:{:queues}"
"""The list of all queues, oldest first."""
IDS = "towline:{:ids}"
"""The last id that was given to a task of any queue."""
RETIRED = "towline:{:retired}"
"""The retired workers, for queues that are created later."""
STORAGE = "towline:{:storage}"
"""The limit of the bytes of all payloads; the key is absent without a limit."""
SHARDED = "towline:{:spread}"
"""The number of shards of each queue that an earlier version stored as several; absent without one (ADR 122)."""
LAYOUT = "towline:{:layout}"
"""The version of the layout of all these keys."""
IDENTITY = "towline:{:identity}"
"""A random name of the store's data, which shows that the store was emptied: it is then another name, or absent."""
CLOCK = "towline:{:clock}"
"""The steps of the store's clock that the time of verbs went on over; absent before the first (`ClockRecord`)."""
SETTINGS = "."
"""The field of a queue's settings in its hash."""
KEPT_SETTINGS = "*"
"""The field, in a queue's hash, of the settings that no function reads; absent when there are none."""


def key_of(queue: str) -> str:
    """Return the key of a queue's hash; all other keys of the queue begin with it."""
    return f"towline:{{{queue}}}"


def queue_of(key: str) -> str:
    """Return the name of the queue whose hash is at `key`."""
    return key[len("towline:{") : -1]


def stored_key(queue: str) -> str:
    """Return the key of the bytes of the queue's payloads, which exists while they are counted."""
    return f"{key_of(queue)}:b"


def lead_key(name: str) -> str:
    """Return the key of the holder of a lead."""
    return f"towline:{{:lead:{name}}}"


def session_key(session: str) -> str:
    """Return the key of the last answer to a client's session."""
    return f"towline:{{:session:{session}}}"
