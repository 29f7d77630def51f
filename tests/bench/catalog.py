"""Every system the benchmark knows, by the name `--only` takes. A driver is imported only when it is measured."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from tests.bench.driver import Driver
from tests.support.engines import EngineUnavailableError

OUR_PACKAGES = ("queue_core", "orchestrator", "tests")
PEERS_HINT = "uv sync --group peers"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a driver is, and how this configuration of it is made."""

    name: str
    module: str
    driver: str
    options: Mapping[str, bool | str] = field(default_factory=dict)

    def make(self) -> Driver:
        """The driver. Raises `EngineUnavailableError` when its package is not installed."""
        try:
            module = importlib.import_module(f"tests.bench.drivers.{self.module}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in OUR_PACKAGES:
                raise
            raise EngineUnavailableError(f"no Python package {error.name}: {PEERS_HINT}") from None
        return cast("Driver", getattr(module, self.driver)(**self.options))


ENTRIES = (
    Entry("towline", "towline", "TowlineDriver", {"durability": "strict"}),
    Entry("towline-relaxed", "towline", "TowlineDriver", {"durability": "relaxed"}),
    Entry("towline-served", "towline_served", "TowlineServedDriver", {"durability": "strict"}),
    Entry("towline-served-relaxed", "towline_served", "TowlineServedDriver", {"durability": "relaxed"}),
    Entry("celery", "celery", "CeleryDriver"),
    Entry("rq", "rq", "RqDriver", {"simple": False}),
    Entry("rq-simple", "rq", "RqDriver", {"simple": True}),
    Entry("procrastinate", "procrastinate", "ProcrastinateDriver"),
    Entry("pgmq", "pgmq", "PgmqDriver"),
    Entry("beanstalkd", "beanstalkd", "BeanstalkdDriver", {"synced": False}),
    Entry("beanstalkd-synced", "beanstalkd", "BeanstalkdDriver", {"synced": True}),
    Entry("huey", "huey", "HueyDriver"),
    Entry("dramatiq", "dramatiq", "DramatiqDriver"),
)
NAMES = tuple(entry.name for entry in ENTRIES)
