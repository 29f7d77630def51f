"""A container that its engine refuses to start: its reason is in the log, `why`, `workers`, `why-died` and `doctor`."""

import pytest

from tests.support.commands import run_program
from tests.support.docker.site import DockerSite
from tests.support.eventually import eventually

SECONDS = 60.0


def told(site: DockerSite, *command: str) -> str:
    """Return what a command tells, in one line."""
    return " ".join(run_program(*command, folder=site.folder).out.split())


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        pytest.param({"network": "nonet"}, "network nonet not found", id="no network"),
        pytest.param({"network": "container:nobody"}, "No such container: nobody", id="no other container"),
        pytest.param({"volumes": ["/no/folder:/data"]}, "bind source path does not exist: /no/folder", id="no folder"),
    ],
)
def test_the_engines_own_sentence_is_where_people_look(
    site: DockerSite, container: dict[str, object], sentence: str
) -> None:
    site.write(resize=site.pool(workers={"min": 0, "max": 1}, container=container))
    site.start()
    site.add("rest 0")
    logged = eventually(lambda: _logged(site), seconds=SECONDS)
    assert sentence in logged
    eventually(lambda: sentence in told(site, "why", "resize"), seconds=SECONDS)
    eventually(lambda: sentence in told(site, "doctor"), seconds=SECONDS)
    if site.deaths():  # a container was created, and could not be started
        assert sentence in told(site, "why-died")
    for text in (logged, told(site, "why", "resize"), told(site, "doctor"), told(site, "why-died")):
        assert "removed" not in text


def _logged(site: DockerSite) -> str:
    refused = [str(entry["error"]) for entry in site.logged("worker.spawn_failed")]
    return "".join(refused + [str(entry["detail"]) for entry in site.logged("worker.reaped")])
