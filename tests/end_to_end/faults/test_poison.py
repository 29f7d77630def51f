"""Tasks that end their process, among many: only they are dead, each with its reason; and one certificate is read."""

import json
from pathlib import Path

from tests.soak.poison import Shape, run
from tests.support.commands import run_program


def test_of_a_thousand_tasks_only_the_two_that_kill_their_worker_are_dead(tmp_path: Path) -> None:
    shape = Shape(tasks=1_000, poisons=2, task_seconds=0.005, workers=2, room=1, max_leases=3)
    found = run(tmp_path, shape, poisons=2)
    assert (found.done, found.dead_poison, found.dead_innocents) == (998, 2, 0)
    assert all(
        reason.startswith("its worker died 3 times while it ran, last: ended by SIG") for reason in found.reasons
    )
    worker = found.reasons[0].rpartition("(worker ")[2].rstrip(")")
    assert ".alone." in worker
    told = run_program("why-died", worker, "--json", folder=tmp_path)
    assert told.code == 0, told.err
    answer = json.loads(told.out)
    death = answer["death"]
    assert death["cause"] == "signalled"
    assert [(one["fate"], one["deaths"]) for one in death["held"]] == [("dead", 3)]
    assert answer["tasks_now"][0]["reason"] in found.reasons
