"""A worker's end in one sentence: why, and what became of its tasks."""

import pytest

from orchestrator.fleet.death_sentences import death_sentence
from orchestrator.fleet.exits import Cause


def a_task(fate: str, **more: object) -> dict[str, object]:
    return {"queue": "thumbs", "task": "cat-1", "fate": fate} | more


@pytest.mark.parametrize(
    ("held", "told"),
    [
        pytest.param([], "it hung", id="none"),
        pytest.param(
            [a_task("given back", lease_number=2)], "it hung; its task thumbs/cat-1, lease 2, was given back", id="one"
        ),
        pytest.param(
            [a_task("lease ended")], "it hung; its task thumbs/cat-1 was ready again when its lease ended", id="lapsed"
        ),
        pytest.param(
            [a_task("deleted")], "it hung; its task thumbs/cat-1 was deleted while it was running", id="deleted"
        ),
        pytest.param(
            [a_task("given back"), a_task("dead"), a_task("given back")],
            "it hung; of its 3 tasks 2 were given back, 1 is dead",
            id="several",
        ),
    ],
)
def test_it_says_what_became_of_the_tasks(held: list[dict[str, object]], told: str) -> None:
    assert death_sentence(Cause.HUNG, "it hung", held) == told
