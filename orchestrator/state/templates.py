"""The state of a pool's template, as its supervisor writes it for other commands, and as a sentence. Pure."""

from collections.abc import Mapping
from typing import Final

from orchestrator.base.values import value
from queue_core.process.wording import shown_seconds

_SHOWN_HAZARDS: Final = 3
_MIB: Final = 1 << 20


@value
class TemplateRecord:
    """A pool's template at one instant.

    Args:
        state: importing, ready, unsafe, failed, outdated or ended (see `TemplateState`).
        app: the application that it imports.
        since: when it was started, in seconds since the epoch.
        forks: the number of workers forked from it.
        memory_bytes: its resident memory, which its workers share; 0 where unknown.
        is_forced: `start` is fork, so it forks although it is unsafe.
        hazards: sentences that say why no worker should be forked from it.
        failure: the text of a failed import, or why it ended.
    """

    state: str
    app: str = ""
    since: float = 0.0
    forks: int = 0
    import_seconds: float = 0.0
    memory_bytes: int = 0
    is_forced: bool = False
    hazards: tuple[str, ...] = ()
    failure: str = ""

    @property
    def forks_workers(self) -> bool:
        """True if the pool's next worker is forked from it."""
        return self.state == "ready" or (self.state == "unsafe" and self.is_forced)

    @property
    def reason(self) -> str:
        """Why no worker should be forked from it, or why its import failed, in one line; "" where nothing is wrong."""
        if self.hazards:
            more = len(self.hazards) - _SHOWN_HAZARDS
            return "; ".join(self.hazards[:_SHOWN_HAZARDS]) + (f"; and {more} more" if more > 0 else "")
        return reason_in(self.failure)

    @property
    def sentence(self) -> str:
        """How the pool's workers start, and why not otherwise, with the remedy."""
        match self.state:
            case "ready":
                took = shown_seconds(self.import_seconds)
                return f"workers are forked from a template that imported {self.app} in {took}"
            case "unsafe" if self.is_forced:
                return f"workers are forked, as start is fork, although it is not safe: {self.reason}"
            case "unsafe":
                return f"workers are not forked: {self.reason}"
            case "failed":
                is_sentence = "\n" not in self.failure.strip()  # else a traceback
                return f"workers are not forked: {'' if is_sentence else f'{self.app} fails to import: '}{self.reason}"
            case "importing":
                return f"workers are not forked yet: a template imports {self.app}"
            case "outdated":
                return f"workers are not forked until a new template has imported {self.app}: {self.reason}"
        reason = f" ({self.reason})" if self.reason else ""
        return f"workers are not forked: their template has ended{reason}; a later start makes a new one"

    def to_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {
            "state": self.state,
            "app": self.app,
            "since": self.since,
            "forks": self.forks,
            "import_seconds": self.import_seconds,
            "memory_bytes": self.memory_bytes,
            "forced": self.is_forced,
            "hazards": list(self.hazards),
            "failure": self.failure,
            "forks_workers": self.forks_workers,
            "sentence": self.sentence,
        }


def template_in(data: object) -> TemplateRecord | None:
    """Read a record; None when it is none."""
    if not isinstance(data, Mapping) or not isinstance(data.get("state"), str):
        return None
    hazards = data.get("hazards")
    return TemplateRecord(
        data["state"],
        app=str(data.get("app") or ""),
        since=_number(data, "since"),
        forks=int(_number(data, "forks")),
        import_seconds=_number(data, "import_seconds"),
        memory_bytes=int(_number(data, "memory_bytes")),
        is_forced=data.get("forced") is True,
        hazards=tuple(map(str, hazards)) if isinstance(hazards, list) else (),
        failure=str(data.get("failure") or ""),
    )


def reason_in(failure: str) -> str:
    """Return the last line of a failure: of a traceback, the error itself."""
    return failure.strip().rpartition("\n")[2].strip()


def rounded_bytes(size: int) -> int:
    """Return a size in whole MiB, so that a record does not change with every page."""
    return round(size / _MIB) * _MIB


def _number(data: Mapping[str, object], name: str) -> float:
    found = data.get(name)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else 0.0
