"""The parts a run is made of: those that race systems side by side, and those that measure Towline alone."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from tests.bench.places import Engine
from tests.bench.site import Site


class AloneMeasurement(Protocol):
    """`measure` of a module in `alone`: figures by name, in seconds, bytes, shares, or tasks a second."""

    def __call__(self, site: Site, engine: Engine) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Alone:
    """A section without peers: the module of its name in `alone`, on these engines unless others are asked for."""

    name: str
    engines: tuple[Engine, ...] = ("sqlite",)
    is_long: bool = False  # then it is run when asked for, and once

    def owner(self, engine: Engine) -> str:
        """Whose figures they are: the section's, and that of the engine where it is not SQLite."""
        return self.name if engine == "sqlite" else f"{self.name}-{engine}"

    def measure(self, site: Site, engine: Engine) -> Mapping[str, float]:
        """One round. Raises `EngineUnavailableError` and `MeasurementFailedError`."""
        module = importlib.import_module(f"tests.bench.alone.{self.name.replace('-', '_')}")
        return cast("AloneMeasurement", module.measure)(site, engine)


RACES: Final = ("library", "path", "postgresql", "redis")
ALONE: Final = (
    Alone("path"),
    Alone("scale", ("sqlite", "postgresql", "redis")),
    Alone("waiting"),
    Alone("idle"),
    Alone("pools", is_long=True),
    Alone("latency", ("postgresql", "redis")),
    Alone("churn", ("postgresql", "redis"), is_long=True),
    Alone("churn-held", ("postgresql",), is_long=True),
)
SECTIONS: Final[Sequence[str]] = tuple(dict.fromkeys((*RACES, *(part.name for part in ALONE))))
DEFAULT_SECTIONS: Final[Sequence[str]] = tuple(
    name for name in SECTIONS if name not in {part.name for part in ALONE if part.is_long}
)
