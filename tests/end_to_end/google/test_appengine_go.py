"""A Go program on Google's own SDK, as Debian packages it, against `towline serve`: told where the API is by its
environment, and nothing else. It checks every answer itself; see `tests/support/sdks/go/story.go`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.stores.memory.store import MemoryStore
from tests.support.commands import ROOT
from tests.support.sdks.serving import SdkServer, sdk_environment, serving, serving_here

SOURCE = ROOT / "tests" / "support" / "sdks" / "go" / "story.go"
PACKAGES = Path("/usr/share/gocode")
CACHE = ROOT / ".cache" / "go-build"
"""What Go has compiled of its libraries, for the next run: a minute's work. It knows by itself what has changed."""
SECONDS = 120.0
STORIES = ("tags", "leases", "names", "limits", "refusals")
QUEUES = "queue:\n" + "".join(
    f"- {{name: {name}, mode: pull, retry_parameters: {{task_retry_limit: 3}}}}\n" for name in (*STORIES, "ticket")
)
SPECS = read_queue_yaml(QUEUES).queues


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/bin")
    if go is None or not (PACKAGES / "src" / "google.golang.org" / "appengine").is_dir():
        pytest.skip("golang-go or golang-google-appengine-dev is absent")
    folder = tmp_path_factory.mktemp("go")
    settings = {"GO111MODULE": "off", "GOPATH": str(PACKAGES), "GOCACHE": str(CACHE), "GOFLAGS": ""}
    built = subprocess.run(
        [go, "build", "-o", str(folder / "story"), str(SOURCE)],
        env=sdk_environment(**settings),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "story"


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkServer]:
    if request.param == "memory":
        with serving_here(MemoryStore(), SPECS) as running:
            yield running
    else:
        with serving(tmp_path_factory.mktemp("served"), queue_yaml=QUEUES) as running:
            yield running


def run(program: Path, story: str, served: SdkServer, *, service: str = "default") -> None:
    """Run one story; where the metadata server of Google's machines would be asked, the environment answers."""
    environment = sdk_environment(
        API_HOST=served.host,
        API_PORT=str(served.port),
        GOOGLE_CLOUD_PROJECT="project",
        GAE_SERVICE=service,
        GAE_VERSION="1",
        GAE_DEPLOYMENT_ID="1",
        GAE_INSTANCE="instance",
    )
    told = subprocess.run(
        [str(program), story], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (told.returncode, told.stdout) == (0, "ok\n"), told.stderr


@pytest.mark.parametrize("story", STORIES)
def test_a_go_program_finds_what_app_engine_would_tell_it(program: Path, served: SdkServer, story: str) -> None:
    run(program, story, served)


def test_the_ticket_of_a_go_program_is_the_servers_token(program: Path) -> None:
    with serving_here(MemoryStore(), SPECS, ticket="project/trusted.1.instance") as server:
        run(program, "ticket", server, service="trusted")
        run(program, "ticket", server, service="stranger")
