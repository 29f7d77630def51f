"""Every code block and command of README, the manual and the examples does what its page says."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.addresses import Addresses, addresses_of
from tests.docs.blocks import read_page
from tests.docs.conftest import NOT_HERE
from tests.docs.runner import PageRun
from tests.docs.shell import Shell
from tests.support.commands import ROOT
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.rabbitmq import RabbitNode
from tests.support.stores.engine_process import EngineUnavailableError
from tests.support.stores.shared_engines import SharedEngines

UNTESTED = ("docs/adr",)
"""Decisions are never rewritten, so their examples are of their time."""
CLONE = ("Makefile", "run.py", "deploy", "docs", "examples")
"""What a page of the repository finds around it."""


def manual() -> list[str]:
    """Return every page that is run."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = [str(path.relative_to(ROOT)) for path in sorted(found)]
    return [name for name in names if not name.startswith(UNTESTED)]


@pytest.mark.parametrize("name", manual())
def test_a_page_does_what_it_says(
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    shared_engines: SharedEngines,
) -> None:
    text = (ROOT / name).read_text()
    page = read_page(Path(name), text)
    if not page.blocks:
        return
    folder, scratch = tmp_path / "page", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    new_urls: dict[str, Callable[[], str]] = {
        "postgresql": lambda: shared_engines.new_url("postgresql"),
        "redis": lambda: shared_engines.new_url("redis"),
    }
    variables = {}
    try:
        if "rabbitmq" in page.needs:
            node: RabbitNode | EngineUnavailableError = request.getfixturevalue("rabbit_node")
            if isinstance(node, EngineUnavailableError):
                raise node
            url = node.url
            new_urls["rabbitmq"] = lambda: url
        if "docker" in page.needs:
            engine: PrivateDockerEngine = request.getfixturevalue("docker_engine")
            variables["DOCKER_HOST"] = engine.url
        addresses = addresses_of(page, text, new_urls)
        for engine_name in sorted(page.needs & set(new_urls)):
            variables[f"{engine_name.upper()}_URL"] = addresses.first_url(
                engine_name, "".join(block.text for block in page.blocks)
            )
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    if "nginx" in page.needs and shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("nginx: not installed (Debian: apt-get install nginx-light)")
    if not any(block.title.endswith(".yaml") and "listen:" in block.text for block in page.blocks):
        variables["TOWLINE_LISTEN"] = f"127.0.0.1:{addresses.ports['7878']}"
    if "examples/" in text or not name.startswith("docs/"):
        clone(folder, addresses)
    with Shell(folder, scratch, request.getfixturevalue("docs_commands"), variables) as shell:
        run = PageRun(page, shell, addresses)
        try:
            run.run()
        finally:
            request.node.user_properties += [(NOT_HERE, str(block)) for block in run.not_here]


def clone(folder: Path, addresses: Addresses) -> None:
    """Put what a clone has into a page's folder: the examples as copies, since their pages write there."""
    for entry in CLONE:
        if entry == "examples":
            shutil.copytree(
                ROOT / entry, folder / entry, ignore=shutil.ignore_patterns("*.db*", ".towline", "__pycache__")
            )
            for path in (folder / entry).rglob("*"):
                if path.suffix in (".py", ".yaml", ".toml", ".html"):
                    path.write_text(addresses.replaced(path.read_text()))
        else:
            (folder / entry).symlink_to(ROOT / entry)
