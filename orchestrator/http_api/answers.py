"""The common parts of the answers of a supervisor's API: frozen models, and refusals."""

from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel, ConfigDict

from queue_core.config.messages import did_you_mean
from queue_core.process.terminal import clean
from queue_core.server.base.problems import Problem, refusal

RETRY_SECONDS: Final = 5
MAX_SHOWN_NAME: Final = 100

Json = dict[str, object]


class FleetAnswer(BaseModel):
    """An answer of a supervisor: every member is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FleetQuery(BaseModel):
    """The query of a request: unknown parameters are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def unknown_pool(name: str, pools: Iterable[str]) -> Problem:
    """Return the refusal of a pool that is not there."""
    shown = clean(name[:MAX_SHOWN_NAME])
    return refusal(404, "unknown-pool", f"there is no pool '{shown}'{did_you_mean(shown, [*pools])}")


def not_now(detail: str) -> Problem:
    """Return the refusal of a call that can be answered later."""
    return refusal(503, "supervisor-not-ready", detail, headers=((b"retry-after", str(RETRY_SECONDS).encode()),))
