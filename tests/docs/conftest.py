"""What the pages share: engines, and commands that are imported already."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs import NOT_HERE
from tests.docs.addresses import Addresses, addresses_of
from tests.docs.blocks import Page, read_page
from tests.docs.runner import PageRun
from tests.docs.shell import Shell
from tests.screens.terminal import ForkedCommands
from tests.support.commands import ROOT
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.rabbitmq import RabbitNode, rabbitmq
from tests.support.stores.engine_process import EngineUnavailableError
from tests.support.stores.shared_engines import SharedEngines

CLONE = ("Makefile", "run.py", "deploy", "docs", "examples")
"""What a page of the repository finds around it."""
WITH_ADDRESSES = (".py", ".yaml", ".toml", ".html")

RunPage = Callable[[str, str], PageRun]
"""Runs the text of a page, given its path within the repository."""


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


@pytest.fixture
def run_page(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    shared_engines: SharedEngines,
    docs_commands: ForkedCommands,
) -> RunPage:
    """Runs a page in a folder of its own; skips the test where an engine that it needs can't be had."""
    folder, scratch = tmp_path / "page", tmp_path / "scratch"

    def run(text: str, name: str) -> PageRun:
        page = read_page(Path(name), text)
        folder.mkdir()
        scratch.mkdir()
        addresses, variables = surroundings(page, text, request, shared_engines)
        if "examples/" in text or not name.startswith("docs/"):
            clone(folder, addresses)
        with Shell(folder, scratch, docs_commands, variables) as shell:
            made = PageRun(page, shell, addresses)
            try:
                made.run()
            finally:
                request.node.user_properties += [(NOT_HERE, str(block)) for block in made.not_here]
        return made

    return run


def surroundings(
    page: Page, text: str, request: pytest.FixtureRequest, engines: SharedEngines
) -> tuple[Addresses, dict[str, str]]:
    """Return the addresses of a page, and the variables of its reader's environment."""
    new_urls: dict[str, Callable[[], str]] = {
        "postgresql": lambda: engines.new_url("postgresql"),
        "redis": lambda: engines.new_url("redis"),
    }
    variables: dict[str, str] = {}
    try:
        if "rabbitmq" in page.needs:
            node: RabbitNode | EngineUnavailableError = request.getfixturevalue("rabbit_node")
            if isinstance(node, EngineUnavailableError):
                raise node
            new_urls["rabbitmq"] = lambda: node.url
        addresses = addresses_of(page, text, new_urls)
        for engine in sorted(page.needs & set(new_urls)):
            variables[f"{engine.upper()}_URL"] = addresses.first_url(engine, page.shown)
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    if "docker" in page.needs:
        docker: PrivateDockerEngine = request.getfixturevalue("docker_engine")
        variables["DOCKER_HOST"] = docker.url
        with docker.client() as client:
            client.tag(docker.image(), "towline")  # in place of the image that deploy/Dockerfile makes
    if "nginx" in page.needs and shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("nginx: not installed (Debian: apt-get install nginx-light)")
    if not any(block.title.endswith(".yaml") and "listen:" in block.text for block in page.blocks):
        variables["TOWLINE_LISTEN"] = f"127.0.0.1:{addresses.ports['7878']}"
    return addresses, variables


def clone(folder: Path, addresses: Addresses) -> None:
    """Put what a clone has into a page's folder: the examples as copies, since their pages write there."""
    ignored = shutil.ignore_patterns("*.db*", ".towline", "__pycache__")
    for entry in CLONE:
        if entry == "examples":
            shutil.copytree(ROOT / entry, folder / entry, ignore=ignored)
            for path in (folder / entry).rglob("*"):
                if path.suffix in WITH_ADDRESSES:
                    path.write_text(addresses.replaced(path.read_text()))
        else:
            (folder / entry).symlink_to(ROOT / entry)
