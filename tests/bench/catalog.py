"""The benchmark's systems, by the names `--only` takes, and its sections. Drivers are imported only when measured."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from tests.bench.driver import BenchDriver
from tests.bench.measure import Kind
from tests.bench.places import Engine
from tests.bench.site import BenchSite
from tests.support.stores.engines import EngineUnavailableError

OUR_PACKAGES = ("queue_core", "orchestrator", "tests")
PEERS_HINT = "uv sync --no-default-groups --group peers"

Sections = Mapping[str, tuple[Kind, ...]]

_VERBS: Final[tuple[Kind, ...]] = ("add", "add_batch", "drain", "drain_batch")
_RUN: Final[tuple[Kind, ...]] = ("drain", "latency")
_LIBRARY: Final[Sections] = {"library": _VERBS}
_FRAMEWORK: Final[Sections] = {"library": _VERBS, "path": _RUN}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """The driver, how this configuration of it is made, and what each section measures of it."""

    name: str
    module: str
    driver: str
    sections: Sections
    options: Mapping[str, bool | int | str] = field(default_factory=dict)

    def kinds(self, sections: Sequence[str]) -> frozenset[Kind]:
        """Return what these sections measure of it."""
        return frozenset(kind for section in sections for kind in self.sections.get(section, ()))

    def make(self) -> BenchDriver:
        """Return the driver. Raises `EngineUnavailableError` when its package is not installed."""
        try:
            module = importlib.import_module(f"tests.bench.drivers.{self.module}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in OUR_PACKAGES:
                raise
            raise EngineUnavailableError(f"no Python package {error.name}: {PEERS_HINT}") from None
        return cast("BenchDriver", getattr(module, self.driver)(**self.options))


def _towline(name: str, sections: Sections, **options: str) -> CatalogEntry:
    return CatalogEntry(name, "towline", "TowlineDriver", sections, options)


def _served(name: str, **options: str) -> CatalogEntry:
    return CatalogEntry(name, "towline_served", "TowlineServedDriver", {"path": _RUN}, options)


def _work(name: str, sections: Sections, **options: int | str) -> CatalogEntry:
    return CatalogEntry(name, "towline_work", "TowlineWorkDriver", sections, options)


ENTRIES = (
    _towline("towline", _LIBRARY, durability="strict"),
    _towline("towline-relaxed", _LIBRARY, durability="relaxed"),
    _served("towline-served", durability="strict"),
    _served("towline-served-relaxed", durability="relaxed"),
    CatalogEntry("celery", "celery", "CeleryDriver", _FRAMEWORK),
    CatalogEntry("rq", "rq", "RqDriver", _FRAMEWORK, {"simple": False}),
    CatalogEntry("rq-simple", "rq", "RqDriver", _FRAMEWORK, {"simple": True}),
    _towline("towline-postgresql", {"postgresql": _VERBS}, engine="postgresql", durability="strict"),
    _work("towline-postgresql-work", {"postgresql": _RUN}, engine="postgresql", durability="strict"),
    CatalogEntry(
        "procrastinate", "procrastinate", "ProcrastinateDriver", _FRAMEWORK | {"postgresql": (*_VERBS, "latency")}
    ),
    CatalogEntry("pgmq", "pgmq", "PgmqDriver", _LIBRARY | {"postgresql": _VERBS}),
    CatalogEntry("beanstalkd", "beanstalkd", "BeanstalkdDriver", _LIBRARY, {"synced": False}),
    CatalogEntry("beanstalkd-synced", "beanstalkd", "BeanstalkdDriver", _LIBRARY, {"synced": True}),
    CatalogEntry("huey", "huey", "HueyDriver", _FRAMEWORK),
    CatalogEntry("dramatiq", "dramatiq", "DramatiqDriver", _FRAMEWORK),
    _towline("towline-redis", {"redis": _VERBS}, engine="redis", durability="relaxed"),
    _work("towline-redis-work", {"redis": _RUN}, engine="redis", durability="relaxed"),
    _work("towline-redis-work-100", {"redis": _RUN}, engine="redis", durability="relaxed", concurrency=100),
    CatalogEntry("celery-logged", "celery", "CeleryDriver", {"redis": ("add", *_RUN)}, {"logged": True}),
    CatalogEntry("celery-tuned", "celery", "CeleryDriver", {"redis": _RUN}, {"logged": True, "tuned": True}),
    CatalogEntry("taskiq", "taskiq", "TaskiqDriver", {"redis": ("add", *_RUN)}),
    CatalogEntry("arq", "arq", "ArqDriver", {"redis": ("add", *_RUN)}),
    CatalogEntry("arq-tuned", "arq", "ArqDriver", {"redis": _RUN}, {"tuned": True}),
)
NAMES = tuple(entry.name for entry in ENTRIES)


class SoloMeasurement(Protocol):
    """`measure` of a module in `alone`: figures by name, in seconds, bytes, shares, or tasks a second."""

    def __call__(self, site: BenchSite, engine: Engine) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class SoloSection:
    """A section without peers: the module of its name in `alone`, on these engines unless others are chosen."""

    name: str
    engines: tuple[Engine, ...] = ("sqlite",)
    is_long: bool = False  # then it runs once, and only when named

    def owner(self, engine: Engine) -> str:
        """Return the owner of the figures: the section, with the engine where it is not SQLite."""
        return self.name if engine == "sqlite" else f"{self.name}-{engine}"

    def measure(self, site: BenchSite, engine: Engine) -> Mapping[str, float]:
        """Run one round. Raises `EngineUnavailableError` and `MeasurementFailedError`."""
        module = importlib.import_module(f"tests.bench.alone.{self.name.replace('-', '_')}")
        return cast("SoloMeasurement", module.measure)(site, engine)


RACES: Final = ("library", "path", "postgresql", "redis")
ALONE: Final = (
    SoloSection("path"),
    SoloSection("scale", ("sqlite", "postgresql", "redis")),
    SoloSection("waiting"),
    SoloSection("idle"),
    SoloSection("relaying"),
    SoloSection("starts", is_long=True),
    SoloSection("pools", is_long=True),
    SoloSection("latency", ("postgresql", "redis")),
    SoloSection("churn", ("sqlite", "postgresql", "redis"), is_long=True),
    SoloSection("churn-held", ("postgresql",), is_long=True),
    SoloSection("postgres-held", ("postgresql",), is_long=True),
)
SECTIONS: Final[Sequence[str]] = tuple(dict.fromkeys((*RACES, *(part.name for part in ALONE))))
DEFAULT_SECTIONS: Final[Sequence[str]] = tuple(
    name for name in SECTIONS if name not in {part.name for part in ALONE if part.is_long}
)
