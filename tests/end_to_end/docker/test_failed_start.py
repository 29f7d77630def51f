"""A container that can't be started is told by `why` and `pools` with the engine's reason, and at once."""

import subprocess
import sys
from typing import cast

from tests.support.commands import program_environment
from tests.support.docker.site import DockerSite
from tests.support.eventually import eventually

SECONDS = 30.0


def test_a_missing_image_is_the_reason_that_why_and_pools_tell(site: DockerSite) -> None:
    site.write(resize=site.pool(workers={"min": 0, "max": 1}, container={"image": "nowhere.invalid/none:1"}))
    site.start()
    site.add("hold go")

    def failure() -> str:
        pools = cast("dict[str, dict[str, dict[str, str]]]", site.shown()["pools"])
        return (pools["resize"]["last_failure"] or {}).get("why", "")

    why = eventually(failure, seconds=SECONDS)
    assert "nowhere.invalid/none:1" in why
    for words in (["why", "resize"], ["pools"]):
        program = [sys.executable, "-m", "orchestrator", *words]
        told = subprocess.run(
            program, cwd=site.folder, env=program_environment(), capture_output=True, text=True, check=True
        )
        said = " ".join((told.stdout + told.stderr).split())
        assert "last failure, " in said
        assert "nowhere.invalid/none:1" in said
        assert "nothing to change" not in told.stdout.partition("\n\n")[0]  # below are the decisions before
