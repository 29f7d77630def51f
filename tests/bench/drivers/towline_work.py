"""Towline's workers without a server: two `towline work` processes that open the store themselves."""

from collections.abc import Sequence
from contextlib import ExitStack

from tests.bench.alone.served import TOWLINE, work_command
from tests.bench.driver import WORKERS, Loads, Producer
from tests.bench.drivers.towline import NAMES, TowlineClient, durable
from tests.bench.places import BenchStore, Durability, Engine, new_place, opened
from tests.bench.site import BenchSite


class TowlineWorkDriver:
    """One task at a time without prefetch, or `concurrency` async handlers per worker."""

    def __init__(self, *, engine: Engine, durability: Durability, concurrency: int = 1) -> None:
        held = f", {concurrency} tasks a worker" if concurrency > 1 else ""
        self.name = f"Towline, {NAMES[engine]}, `work`{held}"
        self.durable = durable(engine, durability)
        self.loads = Loads(add=5_000, drain=6_000 if concurrency == 1 else 20_000, add_batch=50_000)
        self._engine: Engine = engine
        self._durability: Durability = durability
        self._concurrency = concurrency
        self._place = BenchStore("", durability, engine)
        self._stack = ExitStack()

    def start(self, site: BenchSite) -> None:
        self._place = self._stack.enter_context(new_place(site, self._engine, durability=self._durability))
        opened(self._place).close()

    def producer(self) -> Producer:
        return TowlineClient(self._place)

    def workers(self) -> Sequence[Sequence[str]]:
        app = "tests.bench.handlers:app" if self._concurrency == 1 else "tests.bench.async_handlers:app"
        arguments, settings = work_command(self._place.url, app=app)
        settings = {**settings, "TOWLINE_DURABILITY": self._place.durability}
        environment = [f"{name}={value}" for name, value in settings.items()]
        command = ["env", *environment, *TOWLINE, *arguments, "--concurrency", str(self._concurrency)]
        return [command] * WORKERS

    def stop(self) -> None:
        self._stack.close()
