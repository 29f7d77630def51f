"""A supervisor of containers whose folder is removed and made anew, with another supervisor in it, while it stops."""

import shutil

from tests.support.docker.site import DockerSite
from tests.support.eventually import eventually

SECONDS = 60.0


def test_a_supervisor_that_stops_ends_within_its_grace_although_another_has_its_folder(site: DockerSite) -> None:
    site.write(resize=site.pool(workers={"min": 1, "max": 1}))
    old = site.start()
    site.add("hold go")
    eventually(site.notes, seconds=SECONDS)
    old.terminate()
    eventually(lambda: site.shown().get("phase") == "stopping")
    shutil.rmtree(site.files.path)
    site.start()
    assert old.wait(timeout=SECONDS) == 0
    eventually(lambda: len(site.notes()) == 2, seconds=SECONDS)
    (site.folder / "go").touch()
    eventually(site.is_done, seconds=SECONDS)
    site.stop()
