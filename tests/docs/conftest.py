"""What the pages share: engines, commands that are imported already; and the list of what can't run here."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.screens.terminal import ForkedCommands
from tests.support.rabbitmq import RabbitNode, rabbitmq
from tests.support.stores.engine_process import EngineUnavailableError

NOT_HERE = "documentation that is not run here"


@pytest.fixture(scope="session")
def docs_commands() -> Iterator[ForkedCommands]:
    """Commands in forks of one process."""
    with ForkedCommands() as running:
        yield running


@pytest.fixture(scope="session")
def rabbit_node() -> Iterator[RabbitNode | EngineUnavailableError]:
    """One RabbitMQ, or why there is none."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(rabbitmq())
        except EngineUnavailableError as error:
            yield error


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the blocks that were not run, each with its reason."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "nodeid")]
    told = {text for report in reports for name, text in getattr(report, "user_properties", ()) if name == NOT_HERE}
    if told:
        terminalreporter.section(f"{NOT_HERE}: {len(told)} blocks")
        for text in sorted(map(str, told)):
            terminalreporter.write_line(text)
