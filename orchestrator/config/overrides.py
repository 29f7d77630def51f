"""Operators' overrides of a pool's settings: a size for a while, a pause, an instant to be done by. Pure (ADR 7).

They are kept as plain values in the state directory, so that they survive a restart of the supervisor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from orchestrator.config.model import MAX_WORKERS
from queue_core.process.wording import shown_seconds

Paused = Literal["no", "both", "up", "down"]
"""The changes of size that an operator has paused."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """An instant on both clocks; `boot` identifies this boot of the host, and may be empty."""

    wall_seconds: float
    monotonic: float
    boot: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """The end of an override: `wall_seconds` since the epoch, and the same on the monotonic clock of one boot.

    The monotonic clock decides, as it can't be set; after a reboot, when it is meaningless, the wall clock does.
    """

    wall_seconds: float
    monotonic: float
    boot: str

    @staticmethod
    def after(seconds: float, now: Moment) -> "Expiry":
        """Return the expiry that many seconds from now."""
        return Expiry(round(now.wall_seconds + seconds, 3), round(now.monotonic + seconds, 3), now.boot)

    def left_seconds(self, now: Moment) -> float:
        """Return the time left; 0 or less once it is over."""
        if self.boot and self.boot == now.boot:
            return self.monotonic - now.monotonic
        return self.wall_seconds - now.wall_seconds

    def to_json(self) -> dict[str, object]:
        """Return plain values."""
        return {"until": self.wall_seconds, "until_monotonic": self.monotonic, "boot": self.boot}

    @staticmethod
    def from_json(data: object) -> "Expiry":
        """Read what `to_json` returned, among other values. Raises `ValueError` for anything else."""
        match data:
            case {
                "until": int() | float() as wall,
                "until_monotonic": int() | float() as monotonic,
                "boot": str() as boot,
            }:
                return Expiry(float(wall), float(monotonic), boot)
        raise ValueError(f"not an expiry: {data!r}")


@dataclass(frozen=True, slots=True)
class ScaleOverride:
    """A fixed number of workers for a while."""

    workers: int
    until: Expiry


@dataclass(frozen=True, slots=True)
class FinishOverride:
    """An instant by which waiting work must be done. `utc_offset_seconds` is the operator's clock's."""

    until: Expiry
    utc_offset_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Overrides:
    """The overrides of one pool."""

    scale: ScaleOverride | None = None
    paused: Paused = "no"
    finish_by: FinishOverride | None = None

    def in_force(self, now: Moment) -> "Overrides":
        """Return the overrides without expired ones."""
        scale, finish_by = self.scale, self.finish_by
        if scale is not None and scale.until.left_seconds(now) <= 0:
            scale = None
        if finish_by is not None and finish_by.until.left_seconds(now) <= 0:
            finish_by = None
        return (
            self
            if (scale, finish_by) == (self.scale, self.finish_by)
            else replace(self, scale=scale, finish_by=finish_by)
        )

    def to_json(self) -> dict[str, object]:
        """Return plain values; overrides that are not set are left out."""
        plain: dict[str, object] = {}
        if self.scale is not None:
            plain["scale"] = {"workers": self.scale.workers, **self.scale.until.to_json()}
        if self.paused != "no":
            plain["paused"] = self.paused
        if self.finish_by is not None:
            offset = {"utc_offset_seconds": self.finish_by.utc_offset_seconds}
            plain["finish_by"] = {**self.finish_by.until.to_json(), **offset}
        return plain

    @staticmethod
    def from_json(data: object) -> "Overrides":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"not overrides: {data!r}")  # noqa: TRY004  callers handle one class of error
        paused = data.get("paused", "no")
        if paused not in ("no", "both", "up", "down"):
            raise ValueError(f"paused must be both, up or down: {paused!r}")
        scale = data.get("scale")
        finish_by = data.get("finish_by")
        return Overrides(
            scale=None if scale is None else ScaleOverride(_workers(scale), Expiry.from_json(scale)),
            paused=cast("Paused", paused),
            finish_by=None if finish_by is None else FinishOverride(Expiry.from_json(finish_by), _offset(finish_by)),
        )


NO_OVERRIDES: Final = Overrides()

MAX_SCALE_SECONDS: Final = 30 * 86_400.0
"""How long a size set by hand lasts, at most."""
MAX_FINISH_SECONDS: Final = 366 * 86_400.0
"""How far ahead the instant is, at most, by which waiting work must be done."""


def with_size(before: Overrides, workers: int | None, *, seconds: float, now: Moment) -> Overrides:
    """Return overrides with this size for so long; None: the size of the settings, and no `finish_by` either."""
    if workers is None:
        return Overrides(paused=before.paused)
    return replace(before, scale=ScaleOverride(workers, Expiry.after(seconds, now)))


def with_pause(before: Overrides, paused: Paused) -> Overrides:
    """Return overrides with these changes of size paused."""
    return replace(before, paused=paused)


def with_finish(before: Overrides, at: float | None, *, utc_offset_seconds: int, now: Moment) -> Overrides:
    """Return overrides with waiting work to be done by `at`, in seconds since the epoch; None: by no time."""
    if at is None:
        return replace(before, finish_by=None)
    return replace(before, finish_by=FinishOverride(Expiry.after(at - now.wall_seconds, now), utc_offset_seconds))


@dataclass(frozen=True, slots=True)
class HostOverride:
    """The override of a whole host: drained since `drained_at`, in seconds since the epoch, it runs no worker."""

    drained_at: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as plain values."""
        return {"version": _VERSION, "drained_at": self.drained_at}

    @staticmethod
    def from_json(data: object) -> "HostOverride":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        match data:
            case {"version": int() as version, "drained_at": (int() | float() | None) as at} if version == _VERSION:
                return HostOverride(at)
        raise ValueError(f"not a host override of version {_VERSION}")


NOT_DRAINED: Final = HostOverride()


def describe_overrides(given: Overrides, now: Moment) -> list[str]:
    """Describe the overrides, one sentence each."""
    words = []
    if given.scale is not None:
        left = shown_seconds(given.scale.until.left_seconds(now))
        words.append(f"scaled to {given.scale.workers} by hand, for {left} more")
    if given.paused != "no":
        words.append("changes of size are paused" if given.paused == "both" else f"changes {given.paused} are paused")
    if given.finish_by is not None:
        words.append(f"to be done in {shown_seconds(given.finish_by.until.left_seconds(now))}")
    return words


def overrides_to_json(by_pool: Mapping[str, Overrides]) -> dict[str, object]:
    """Return the overrides of all pools as plain values; pools without any are left out."""
    return {"version": _VERSION, "pools": {name: one.to_json() for name, one in by_pool.items() if one != NO_OVERRIDES}}


def overrides_from_json(data: object) -> dict[str, Overrides]:
    """Read what `overrides_to_json` returned. Raises `ValueError` for anything else."""
    match data:
        case {"version": int() as version, "pools": dict() as pools} if version == _VERSION:
            return {str(name): Overrides.from_json(one) for name, one in pools.items()}
    raise ValueError(f"not overrides of version {_VERSION}")


def _workers(data: object) -> int:
    match data:
        case {"workers": int() as workers} if 0 <= workers <= MAX_WORKERS:
            return workers
    raise ValueError(f"workers must be in [0, {MAX_WORKERS}]: {data!r}")


def _offset(data: object) -> int:
    match data:
        case {"utc_offset_seconds": int() as offset}:
            return offset
    return 0
