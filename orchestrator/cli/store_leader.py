"""The supervisor that leads a store, as commands find it: registered at the store, whichever program serves that."""

from dataclasses import dataclass
from typing import Final, Unpack

from queue_core.cli import exits
from queue_core.cli.credentials import bearer_token
from queue_core.cli.failure import CommandError
from queue_core.cli.target import Target, TargetOptions, find_target
from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.errors import QueueError
from queue_core.stores import sqlite_path
from queue_core.unit.supervisors import (
    KIND,
    RegisteredSupervisor,
    is_alive_here,
    is_within_reach,
    leader_among,
)

CALL_SECONDS: Final = 3.0
"""Timeout of one call: a person waits at a terminal."""


class NoFleetError(CommandError):
    """No supervisor can be asked here; the message says whether one leads elsewhere."""


@dataclass(frozen=True, slots=True)
class StoreLeader:
    """The supervisor that leads a store.

    Args:
        queues: the server or store at which it registered.
        api: where its API answers: that server, else its own listener; None: out of reach.
    """

    supervisor: RegisteredSupervisor
    queues: Target
    api: Target | None

    def error(self) -> NoFleetError:
        """Return the error of a command that can't ask it."""
        url = self.supervisor.url
        fix = (
            f"--url {url}"
            if url
            else f"run it on {self.supervisor.host} with its settings file, or set supervisor.listen there"
        )
        hosts = "This server hosts the queues only. " if self.queues.is_server else ""
        message = f"{hosts}The supervisor runs {self.supervisor.place}"
        return NoFleetError(message, code=exits.UNAVAILABLE, where=self.queues.shown, fix=fix)


def leader_of(**where: Unpack[TargetOptions]) -> StoreLeader | None:
    """Return the leading supervisor of the store that the options name; None: nobody leads, or nothing answers."""
    try:
        target = find_target(**where)
        return leader_at(target, token=bearer_token(where["token_file"]))
    except (CommandError, OSError):
        return None


def leader_at(target: Target, *, token: str | None) -> StoreLeader | None:
    """Return the leading supervisor of a server or a store; `token` is for the listener of one within reach."""
    if target.url.startswith("sqlite:") and not sqlite_path(target.url).exists():
        return None  # none is made to look into it
    retries = Retries(tries=1, timeouts=1)
    try:
        queues = open_queues(
            target.url, token=target.token, durability=target.durability, retries=retries, timeout_seconds=CALL_SECONDS
        )
        try:
            leader = leader_among(queues.registrations(KIND))
        finally:
            queues.close()
    except (QueueError, OSError):
        return None
    if leader is None:
        return None
    if target.is_server:
        return StoreLeader(leader, target, target)
    is_asked = is_within_reach(leader) and is_alive_here(leader)
    api = Target(leader.url, "its registration", token) if is_asked else None
    return StoreLeader(leader, target, api)
