"""`add --name` of a name that was used before says what may have become of its task, and no more than is known."""

import pytest

from tests.support.commands import Commands


@pytest.mark.parametrize(
    ("ends", "may_be"),
    [(("purge", "q", "--yes"), "purged"), (("delete", "q", "--named", "cat"), "deleted")],
    ids=["purged", "deleted"],
)
def test_a_name_whose_task_is_gone_is_not_said_to_be_done(
    towline: Commands, ends: tuple[str, ...], may_be: str
) -> None:
    (towline.folder / "towline.yaml").write_text("store: sqlite:///a.db\nqueues: {q: {}}\n")
    assert towline("add", "q", "x", "--name", "cat").code == 0
    assert towline(*ends).code == 0
    told = towline("add", "q", "x", "--name", "cat")
    said = " ".join(told.err.split())
    assert said.startswith("cat: was added before, and is done, deleted or purged; nothing changed")
    assert may_be in said
    assert "done before" not in said
    assert towline("peek", "q", "--json").json == {"tasks": [], "next_after": None}
