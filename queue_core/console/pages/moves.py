"""Moves of queues to another store, while somebody runs `towline migrate`."""

from collections.abc import Mapping
from typing import Final, cast

from queue_core.console.call import PageCall
from queue_core.console.pages.page import ConsolePage
from queue_core.verbs.wire import Json

NEEDS: Final = "/v1/registrations/{kind}"


async def moves(call: PageCall) -> Mapping[str, object]:
    """Return the moves of now, and those that ended within a minute."""
    found = await call.get("/v1/registrations/moves")
    return {"moves": [_move(one) for one in cast("list[Json]", found["registrations"])]}


def _move(registration: Json) -> Mapping[str, object]:
    """Return a move as it is shown; what another program registered there is read leniently."""
    facts = cast("Mapping[str, str]", registration["facts"])
    counts = {name: int(facts.get(name, "0")) if facts.get(name, "").isdecimal() else 0 for name in ("done", "total")}
    texts = {name: facts.get(name, "") for name in ("from", "to", "state")}
    return {"queue": registration["name"], **counts, **texts}


PAGES: Final = (ConsolePage("/moves", "Migrations", "moves", "moves.html", moves, needs=NEEDS),)
