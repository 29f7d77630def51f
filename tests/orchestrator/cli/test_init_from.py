"""`towline init --from`: a settings file with the queues of a queue.yaml or queue.xml, that is right as it stands."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.commands.init import HEAD, settings_text
from orchestrator.settings_file import parse
from queue_core.google.queue_files.entries import QueueFileEntries
from queue_core.task import QueueSpec
from tests.support.commands import Commands

FILE = """\
total_storage_limit: 120M
resume_paused_queues: False
queue:
- name: thumbs
  mode: pull
  retry_parameters: {task_retry_limit: 7}
  acl: [{user_email: worker@example.com}]
- name: mail
  rate: 5/s
"""


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "queue.yaml").write_text(FILE)
    return towline


def test_the_file_is_right_and_tells_what_was_left_out(towline: Commands) -> None:
    assert towline("init", "--from", "queue.yaml").code == 0
    assert towline("check").code == 0
    text = (towline.folder / "towline.yaml").read_text()
    assert "push queues, as nothing here calls handlers: mail" in text
    assert "resume_paused_queues: False" in text
    assert not (towline.folder / "tasks.py").exists()
    settings = parse(text, name="towline.yaml", directory=towline.folder).queue_file
    assert settings.total_storage_limit == 120 << 20
    (spec,) = settings.specs()
    assert spec == QueueSpec("thumbs", max_leases=7, on_exhausted="delete", user_emails=("worker@example.com",))


def test_the_pools_behind_the_hash_are_right_once_it_is_taken_away(towline: Commands) -> None:
    towline("init", "--from", "queue.yaml")
    head, pools = (towline.folder / "towline.yaml").read_text().split("# pools:\n")
    uncommented = [line.removeprefix("# ") for line in pools.split("\n\n")[0].splitlines()]
    text = "\n".join([head, "pools:", *(line.removeprefix("#") for line in uncommented), ""])
    project = parse(text, name="towline.yaml", directory=towline.folder)
    assert [pool.queue for pool in project.pools.values()] == ["thumbs"]


def test_a_queue_xml_is_taken_too(towline: Commands) -> None:
    xml = "<queue-entries><queue><name>pullq</name><mode>pull</mode></queue></queue-entries>"
    (towline.folder / "queue.xml").write_text(xml)
    assert towline("init", "--from", "queue.xml", "--dir", "new", "--json").code == 0
    assert list(yaml.safe_load((towline.folder / "new/towline.yaml").read_text())["queues"]) == ["pullq"]


def test_mistakes_and_files_that_are_there_leave_everything_as_it_is(towline: Commands) -> None:
    (towline.folder / "queue.yaml").write_text(FILE.replace("pull", "PULL"))
    assert towline("init", "--from", "queue.yaml").code == 78
    assert not (towline.folder / "towline.yaml").exists()
    assert towline("init", "--from", "absent.yaml").code == 66
    (towline.folder / "queue.yaml").write_text(FILE)
    (towline.folder / "towline.yaml").write_text("mine")
    assert towline("init", "--from", "queue.yaml").code == 73
    assert (towline.folder / "towline.yaml").read_text() == "mine"


NAMES = st.from_regex(r"[a-zA-Z0-9-]{1,12}", fullmatch=True) | st.sampled_from(["true", "No", "null", "010", "-", "y"])
VISIBLE = st.characters(categories=["L", "N", "P", "S"])
EMAILS = st.lists(st.text(VISIBLE, min_size=1, max_size=8), max_size=3, unique=True).map(tuple)
SPECS = st.builds(
    QueueSpec,
    NAMES,
    max_leases=st.none() | st.integers(1, 9),
    on_exhausted=st.just("delete"),
    user_emails=EMAILS,
    writer_emails=EMAILS,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(SPECS, max_size=4, unique_by=lambda spec: spec.name).map(tuple), st.text(max_size=8))
def test_whatever_the_queues_the_settings_file_says_the_same(specs: tuple[QueueSpec, ...], source: str) -> None:
    text = settings_text(QueueFileEntries(specs, ("mail",), 5, resume_paused_queues=False), head=HEAD, source=source)
    assert tuple(parse(text, name="towline.yaml", directory=Path("/"), overrides=()).queue_file.specs()) == specs
