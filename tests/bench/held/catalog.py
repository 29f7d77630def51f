"""The systems of `postgres-held` by name, each imported only when it is measured."""

import importlib
from typing import Final, Literal, cast, get_args

from tests.bench.catalog import OUR_PACKAGES, PEERS_HINT
from tests.bench.held.system import HeldSystem
from tests.support.stores.engines import EngineUnavailableError

PeerName = Literal["towline", "pgmq", "procrastinate", "awa"]
PEERS: Final[tuple[PeerName, ...]] = get_args(PeerName)
_CLASSES: Final = {
    "towline": "HeldTowline",
    "pgmq": "HeldPgmq",
    "procrastinate": "HeldProcrastinate",
    "awa": "HeldAwa",
}


def system_named(name: PeerName) -> HeldSystem:
    """Return a system. Raises `EngineUnavailableError` when its package is not installed."""
    try:
        module = importlib.import_module(f"tests.bench.held.systems.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OUR_PACKAGES:
            raise
        raise EngineUnavailableError(f"no Python package {error.name}: {PEERS_HINT}") from None
    return cast("HeldSystem", getattr(module, _CLASSES[name])())
