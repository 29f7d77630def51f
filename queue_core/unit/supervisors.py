"""The supervisors of a store as they registered themselves: where each listens, its pools, and which one leads.

What another program wrote there is read leniently.
"""

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.clock import MICROSECONDS
from queue_core.config.store_urls import masked
from queue_core.process.own_addresses import is_of_this_machine
from queue_core.process.process_start import process_start
from queue_core.verbs.registration import MAX_FACTS_BYTES, Registration

KIND: Final = "supervisors"
"""The registrations of supervisors."""
LASTING_SECONDS: Final = 60.0
"""How long a supervisor that was killed is still listed, at most."""
LEADING: Final = "leading"
"""The phase of the one that starts workers."""
_POOLS_BYTES: Final = MAX_FACTS_BYTES // 2
"""Room for the names of pools among a supervisor's facts."""


@dataclass(frozen=True, slots=True)
class RegisteredSupervisor:
    """A supervisor as it registered itself.

    Args:
        url: where its API listens; "": it has no listener (`supervisor.listen`).
        reach: `network`, or `host`: only programs on its own host reach the URL.
        pools: their names; of many, the first ones.
        since: when it started, in seconds since the epoch; 0: unknown.
        heard_at: when it registered last, in seconds since the epoch.
        process_start: see `process_start`; "": an older program, which did not register it.
    """

    name: str
    host: str
    pid: int
    url: str
    reach: str
    version: str
    phase: str
    pools: tuple[str, ...]
    since: float
    heard_at: float
    process_start: str

    @property
    def place(self) -> str:
        """Return where it runs, for a sentence: its URL, or its host where it has no listener."""
        return f"at {self.url}" if self.url else f"on {self.host}, without a listener (supervisor.listen)"


def supervisor_in(one: Registration) -> RegisteredSupervisor:
    """Return a registration as a supervisor."""
    facts = one.facts
    pid = facts.get("pid", "")
    return RegisteredSupervisor(
        name=one.name,
        host=facts.get("host", ""),
        pid=int(pid) if pid.isdecimal() and len(pid) < 10 else 0,
        url=masked(facts.get("url", "")),
        reach=facts.get("reach", "host"),
        version=facts.get("version", ""),
        phase=facts.get("phase", ""),
        pools=_names(facts.get("pools", "")),
        since=_seconds(facts.get("since", "")),
        heard_at=one.until / MICROSECONDS - LASTING_SECONDS,
        process_start=facts.get("process_start", ""),
    )


def leader_among(found: Sequence[Registration]) -> RegisteredSupervisor | None:
    """Return the supervisor that leads; of several that say so, the newest: one that was killed says it until its
    registration ends."""
    leading = (one for one in found if one.facts.get("phase") == LEADING)
    newest = max(leading, key=lambda one: one.until, default=None)
    return None if newest is None else supervisor_in(newest)


def is_within_reach(leader: RegisteredSupervisor) -> bool:
    """Return whether a supervisor's listener is on this machine: no other gets a token that nobody sent there."""
    is_ours = leader.reach == "network" or leader.host == socket.gethostname()
    return bool(leader.url) and is_ours and is_of_this_machine(leader.url)


def is_alive_here(one: RegisteredSupervisor) -> bool:
    """Return whether the very process that registered runs on this machine: it holds its listener's port.

    Of one that was killed, any program may hold the port before the registration ends.
    """
    is_here = one.host == socket.gethostname()
    return is_here and bool(one.process_start) and process_start(one.pid) == one.process_start


def pools_fact(names: Iterable[str]) -> str:
    """Return the names of pools as one fact: as many as have room."""
    kept: list[str] = []
    for name in names:
        if len(json.dumps(json.dumps([*kept, name]))) > _POOLS_BYTES:
            break
        kept.append(name)
    return json.dumps(kept)


def supervisor_json(one: RegisteredSupervisor, *, leads: bool, is_this: bool) -> Mapping[str, object]:
    """Return a supervisor as an API lists it."""
    return {
        "name": one.name,
        "host": one.host,
        "pid": one.pid,
        "url": one.url,
        "reach": one.reach,
        "version": one.version,
        "phase": one.phase,
        "leads": leads,
        "heard_at": one.heard_at,
        "is_this": is_this,
        "pools": list(one.pools),
        "since": one.since,
        "process_start": one.process_start,
    }


def _names(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if 0 <= found < 1e11 else 0.0
