"""`towline export`: where it writes, what it writes over, and which command lines it refuses."""

import pytest

from tests.support.commands import Commands
from tests.support.fleet.export_requests import SETTINGS


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    return towline


def test_the_command_writes_to_stdout_or_to_a_folder_and_over_nothing_unasked(towline: Commands) -> None:
    told = towline("export", "--to", "keda", "--image", "resize=thumbs:1")
    assert told.code == 0
    assert told.out.startswith("# Queue, supervisor and workers on Kubernetes")
    assert "warning: towline.yaml:1:1: store:" in told.err
    assert towline("export", "--to", "keda", "--image", "thumbs:1", "--out", "made").code == 0
    assert (towline.folder / "made" / "towline-keda.yaml").is_file()
    assert towline("export", "--to", "keda", "--image", "thumbs:1", "--out", "made").code == 0
    changed = towline("export", "--to", "keda", "--image", "thumbs:2", "--out", "made")
    assert changed.code == 73
    assert towline("export", "--to", "keda", "--image", "thumbs:2", "--out", "made", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--to", "keda"], 78, "which image?"),
        (["--to", "keda", "--image", "resise=a"], 2, "did you mean"),
        (["--to", "keda", "--image", "resize="], 2, "POOL=IMAGE"),
        (["--to", "keda", "--namespace", "No_Name"], 2, "--namespace"),
        (["--to", "nomad"], 2, "keda"),
        (["--to", "keda", "backup.jsonl"], 2, "goes with neither"),
        ([], 2, "give a FILE"),
        (["backup.jsonl", "--out", "x"], 2, "go with --to"),
        (["--to", "keda", "-f", "missing.yaml"], 66, "missing.yaml"),
    ],
)
def test_a_command_line_that_can_not_be_meant_says_what_would(
    towline: Commands, arguments: list[str], code: int, told: str
) -> None:
    found = towline("export", *arguments)
    assert found.code == code
    assert told in found.err


def test_tasks_are_exported_as_before(towline: Commands) -> None:
    assert towline("add", "thumbs", "a cat").code == 0
    assert towline("export", "backup.jsonl").code == 0
    assert (towline.folder / "backup.jsonl").read_text().count("\n") >= 2


def test_the_json_of_an_export_has_the_files(towline: Commands) -> None:
    told = towline("export", "--to", "systemd", "--json").json
    assert isinstance(told, dict)
    assert set(told["files"]) >= {"towline-queue.service"}
