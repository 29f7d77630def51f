"""The roles of callers, and the kinds of access to a queue: who may do what is said with each verb. Pure."""

from enum import IntFlag
from typing import Final, Literal, TypeAlias


class Role(IntFlag):
    """The rights of a caller; a token's roles add up."""

    VIEWER = 1
    PRODUCER = 2
    WORKER = 4
    ADMIN = 8
    OPERATOR = 16
    """Looks at everything, and gives the orders of daily work: pause, resume, redrive, scale, drain, reload."""


ADD: Final = Role.PRODUCER | Role.WORKER | Role.ADMIN
"""Workers add too: the next stage of a pipeline."""
WORK: Final = Role.WORKER | Role.ADMIN
ADMINISTER: Final = Role.ADMIN
OPERATE: Final = Role.OPERATOR | Role.ADMIN
"""Orders of daily work, which delete nothing and change no settings."""
READ: Final = Role.VIEWER | Role.OPERATOR | Role.PRODUCER | Role.WORKER | Role.ADMIN
"""Counts, which reveal nothing of the payloads."""
INSPECT: Final = Role.VIEWER | Role.OPERATOR | Role.WORKER | Role.ADMIN
"""Tasks with their payloads, and the event log."""

Access: TypeAlias = Literal["look", "list", "get", "lease", "delete", "update", "insert"]
"""The kinds of access that a queue's acl grants. Administrators are listed in every acl."""
